//! A program with a worker that is killed under it. It writes numbered events, answers messages one
//! way or another, and notes exactly what it wrote and what it was told.

use atoll_tests::actor::External;
use atoll_tests::program::WorkerProcess;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ChildStdin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Ack,
    /// Not seen, to be tried again: the one answer after which a message may come again.
    GiveBack,
    /// Not seen, not to be tried again.
    Refuse,
    /// Seen, perhaps.
    Unsure,
}

/// How sure it is that an answer is written down, so that no kill can lose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// After this many events of the run it was written.
    Written(usize),
    /// A later event's key was printed, so the answer is in what the disk does now at the latest;
    /// it is done with that before it takes an event after this one.
    Soon(usize),
    Surely,
}

#[derive(Debug)]
pub struct Answer {
    pub verdict: Verdict,
    /// Different for every answer, to be found again in the log.
    pub turn: i64,
    kept: Kept,
}

impl Answer {
    pub fn is_surely_kept(&self) -> bool {
        self.kept == Kept::Surely
    }
}

/// One time that a message was handed over.
#[derive(Debug)]
pub struct Handed {
    run: usize,
    pub content: String,
    pub answer: Option<Answer>,
}

/// One life of the worker.
#[derive(Debug, Default)]
struct Run {
    /// The numbers of the events written to it, in order; the first `confirmed` of them are promised.
    numbers: Vec<u64>,
    confirmed: usize,
}

#[derive(Debug, Default)]
pub struct Notes {
    runs: Vec<Run>,
    pub handed: HashMap<String, Vec<Handed>>,
    unanswered: Vec<String>,
    next_number: u64,
    next_turn: i64,
}

impl Notes {
    /// The numbers that the worker promised to keep.
    pub fn confirmed(&self) -> Vec<u64> {
        self.runs.iter().flat_map(|run| &run.numbers[..run.confirmed]).copied().collect()
    }

    pub fn written(&self) -> u64 {
        self.next_number
    }

    pub fn starts(&self) -> usize {
        self.runs.len()
    }

    fn hear(&mut self, run: usize, line: &Value) {
        if let Some(key) = line["key"].as_u64() {
            let this = &mut self.runs[run];
            this.confirmed += 1;
            assert_eq!(key, this.confirmed as u64, "keys are printed in order");
            assert!(this.confirmed <= this.numbers.len(), "key {key} is of no event");
            let (confirmed, written) = (this.confirmed, this.numbers.len());
            let answers = self.handed.values_mut().flatten().filter(|handed| handed.run == run);
            for answer in answers.filter_map(|handed| handed.answer.as_mut()) {
                answer.kept = match answer.kept {
                    Kept::Written(after) if confirmed > after => Kept::Soon(written),
                    Kept::Soon(after) if confirmed > after => Kept::Surely,
                    same => same,
                };
            }
        } else if let Some(message) = line.get("message") {
            let (id, content) = (message["id"].as_str().unwrap(), message["content"].as_str().unwrap());
            let handed = Handed { run, content: content.to_owned(), answer: None };
            self.handed.entry(id.to_owned()).or_default().push(handed);
            self.unanswered.push(id.to_owned());
        } else {
            // Answers to what an earlier life was told are refused.
            let error = line["error"].as_str().unwrap_or_else(|| panic!("an unexpected line: {line}"));
            assert!(error.contains("answered already") || error.contains("was not handed over"), "{error}");
        }
    }
}

/// What the test and the program's thread share.
struct Shared {
    notes: Mutex<Notes>,
    process: Mutex<Option<WorkerProcess>>,
    killed: AtomicBool,
    /// No more tricks: everything is acknowledged.
    settling: AtomicBool,
    finishing: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Program {
    pub sandbox: External,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Program {
    pub fn start(server: &str, sandbox: External, dir: PathBuf, seed: u64) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        let shared = Arc::new(Shared {
            notes: Mutex::default(),
            process: Mutex::default(),
            killed: AtomicBool::new(false),
            settling: AtomicBool::new(false),
            finishing: AtomicBool::new(false),
        });
        let feeder = Feeder {
            server: server.to_owned(),
            sandbox: sandbox.clone(),
            dir,
            rng: StdRng::seed_from_u64(seed),
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::spawn(move || feeder.run());
        Self { sandbox, shared, thread }
    }

    /// Kills the worker if there is one; says whether there was.
    pub fn kill(&self) -> bool {
        let mut process = locked(&self.shared.process);
        let Some(process) = process.as_mut().filter(|_| !self.shared.killed.load(Ordering::SeqCst)) else {
            return false;
        };
        self.shared.killed.store(true, Ordering::SeqCst);
        process.kill();
        true
    }

    pub fn is_well(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Whether the program has the message and has not said anything about it.
    pub fn holds(&self, message: &str) -> bool {
        let notes = locked(&self.shared.notes);
        notes.handed.get(message).and_then(|times| times.last()).is_some_and(|last| last.answer.is_none())
    }

    pub fn settle(&self) {
        self.shared.settling.store(true, Ordering::SeqCst);
    }

    /// Ends the input, waits until the worker has sent everything, and gives the notes.
    pub fn finish(self) -> Notes {
        self.shared.finishing.store(true, Ordering::SeqCst);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        std::mem::take(&mut *locked(&self.shared.notes))
    }
}

struct Feeder {
    server: String,
    sandbox: External,
    dir: PathBuf,
    rng: StdRng,
    shared: Arc<Shared>,
}

/// Events of a run that the worker has not confirmed.
const MOST_BEHIND: usize = 1000;

/// The worker has gone.
struct Gone;

impl Feeder {
    fn run(mut self) {
        loop {
            let run = {
                let mut notes = locked(&self.shared.notes);
                notes.runs.push(Run::default());
                notes.runs.len() - 1
            };
            let shared = Arc::clone(&self.shared);
            let heard = move |line: Value| locked(&shared.notes).hear(run, &line);
            let (process, stdin) = WorkerProcess::start(&self.server, &self.sandbox, &self.dir, heard);
            self.shared.killed.store(false, Ordering::SeqCst);
            *locked(&self.shared.process) = Some(process);
            if self.feed(run, stdin).is_ok() {
                return self.done(run);
            }
            let mut gone = locked(&self.shared.process).take().unwrap();
            let status = gone.wait(Duration::from_secs(20));
            assert!(self.shared.killed.load(Ordering::SeqCst), "the worker ended by itself: {status:?}");
            std::thread::sleep(Duration::from_millis(self.rng.random_range(0..60)));
        }
    }

    fn feed(&mut self, run: usize, mut stdin: ChildStdin) -> Result<(), Gone> {
        while !self.shared.finishing.load(Ordering::SeqCst) {
            let burst = if self.rng.random_bool(0.03) { 120 } else { self.rng.random_range(0..6) };
            let burst = if self.is_behind(run) { 0 } else { burst };
            for _ in 0..burst {
                let line = self.event(run);
                write(&mut stdin, &line)?;
            }
            let waiting = std::mem::take(&mut locked(&self.shared.notes).unanswered);
            for id in waiting {
                if let Some(line) = self.answer(run, id) {
                    write(&mut stdin, &line)?;
                }
            }
            std::thread::sleep(Duration::from_millis(self.rng.random_range(1..30)));
        }
        Ok(())
    }

    /// More would only pile up: a slow machine is to be killed in the middle of things, not drowned.
    fn is_behind(&self, run: usize) -> bool {
        let notes = locked(&self.shared.notes);
        let run = &notes.runs[run];
        self.shared.settling.load(Ordering::SeqCst) || run.numbers.len() - run.confirmed > MOST_BEHIND
    }

    fn event(&mut self, run: usize) -> Value {
        let size = match self.rng.random_range(0..100) {
            0 => 60_000,
            1..20 => self.rng.random_range(1_000..4_000),
            _ => self.rng.random_range(0..200),
        };
        let kinds = ["agent.message", "agent.tool_use", "agent.waiting", "agent.started", "agent.completed", "my.own"];
        let kind = kinds[self.rng.random_range(0..kinds.len())];
        let mut notes = locked(&self.shared.notes);
        let number = notes.next_number;
        notes.next_number += 1;
        notes.runs[run].numbers.push(number);
        json!({ "type": kind, "data": { "number": number, "text": "x".repeat(size) } })
    }

    fn answer(&mut self, run: usize, id: String) -> Option<Value> {
        let settling = self.shared.settling.load(Ordering::SeqCst);
        let verdict = match self.rng.random_range(0..100) {
            _ if settling => Verdict::Ack,
            0..70 => Verdict::Ack,
            70..78 => Verdict::GiveBack,
            78..83 => Verdict::Refuse,
            83..88 => Verdict::Unsure,
            _ => return None,
        };
        let mut notes = locked(&self.shared.notes);
        let (turn, after) = (notes.next_turn, notes.runs[run].numbers.len());
        notes.next_turn += 1;
        let handed = notes.handed.get_mut(&id).and_then(|times| times.last_mut()).unwrap();
        // Told to an earlier life: the answer comes too late and counts for nothing.
        if handed.run == run {
            handed.answer = Some(Answer { verdict, turn, kept: Kept::Written(after) });
        }
        let nack = |handed: bool, retry: bool| json!({ "nack": { "id": id, "handed": handed, "retry": retry } });
        Some(match verdict {
            Verdict::Ack if turn % 2 == 0 => json!({ "ack": { "id": id, "how": "injected", "turn": turn } }),
            Verdict::Ack => json!({ "ack": { "id": id, "how": "new_turn", "turn": turn } }),
            Verdict::GiveBack => nack(false, true),
            Verdict::Refuse => nack(false, false),
            Verdict::Unsure => nack(true, false),
        })
    }

    /// The input has ended: the worker sends what is left and goes.
    fn done(&self, run: usize) {
        let mut process = locked(&self.shared.process).take().unwrap();
        let status = process.wait(Duration::from_secs(300));
        assert!(status.is_some_and(|status| status.success()), "the last worker ended with {status:?}");
        let mut notes = locked(&self.shared.notes);
        assert_eq!(notes.runs[run].confirmed, notes.runs[run].numbers.len(), "every event of the last run is kept");
        let last = notes.handed.values_mut().flatten().filter(|handed| handed.run == run);
        last.filter_map(|handed| handed.answer.as_mut()).for_each(|answer| answer.kept = Kept::Surely);
    }
}

fn write(stdin: &mut ChildStdin, line: &Value) -> Result<(), Gone> {
    let mut text = line.to_string();
    text.push('\n');
    stdin.write_all(text.as_bytes()).map_err(|_| Gone)
}
