//! A program that feeds a worker through its stdin while the test kills the worker. It writes numbered events,
//! replies to messages at random, and records every line that it writes and reads.

use atoll_tests::actor::ExternalSandbox;
use atoll_tests::worker_process::WorkerProcess;
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
pub enum DeliveryReply {
    Ack,
    /// Not handed to the agent, retry. Only after this reply may the message come again.
    Return,
    /// Not handed to the agent, do not retry.
    Refuse,
    /// Perhaps handed to the agent.
    MaybeSeen,
}

/// The durability of a reply: a kill cannot lose a durable one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// The program wrote the reply after this many events of the run.
    WrittenAfter(usize),
    /// The worker has printed a later event's key, so the reply is at least in the current disk write. That write ends
    /// before the worker takes an event after this one.
    DurableAfter(usize),
    Durable,
}

#[derive(Debug)]
pub struct RecordedReply {
    pub kind: DeliveryReply,
    /// Unique per reply, to find it in the log.
    pub turn: i64,
    durability: Durability,
}

impl RecordedReply {
    pub fn is_durable(&self) -> bool {
        self.durability == Durability::Durable
    }
}

/// One hand-over of a message to the program.
#[derive(Debug)]
pub struct HandOver {
    run: usize,
    pub content: String,
    pub reply: Option<RecordedReply>,
}

/// One run of the worker process.
#[derive(Debug, Default)]
struct WorkerRun {
    /// The numbers of the events written to the worker, in order. It confirmed the first `confirmed` of them.
    numbers: Vec<u64>,
    confirmed: usize,
}

#[derive(Debug, Default)]
pub struct ProgramRecord {
    runs: Vec<WorkerRun>,
    pub hand_overs: HashMap<String, Vec<HandOver>>,
    unanswered: Vec<String>,
    next_number: u64,
    next_turn: i64,
}

impl ProgramRecord {
    /// The numbers of the events that the worker confirmed.
    pub fn confirmed_numbers(&self) -> Vec<u64> {
        self.runs.iter().flat_map(|run| &run.numbers[..run.confirmed]).copied().collect()
    }

    pub fn written_count(&self) -> u64 {
        self.next_number
    }

    pub fn start_count(&self) -> usize {
        self.runs.len()
    }

    fn record_line(&mut self, run: usize, line: &Value) {
        if let Some(key) = line["key"].as_u64() {
            let this = &mut self.runs[run];
            this.confirmed += 1;
            assert_eq!(key, this.confirmed as u64, "keys must be printed in order");
            assert!(this.confirmed <= this.numbers.len(), "key {key} belongs to no event");
            let (confirmed, written) = (this.confirmed, this.numbers.len());
            let answers = self.hand_overs.values_mut().flatten().filter(|handed| handed.run == run);
            for answer in answers.filter_map(|handed| handed.reply.as_mut()) {
                answer.durability = match answer.durability {
                    Durability::WrittenAfter(after) if confirmed > after => Durability::DurableAfter(written),
                    Durability::DurableAfter(after) if confirmed > after => Durability::Durable,
                    same => same,
                };
            }
        } else if let Some(message) = line.get("message") {
            let (id, content) = (message["id"].as_str().unwrap(), message["content"].as_str().unwrap());
            let handed = HandOver { run, content: content.to_owned(), reply: None };
            self.hand_overs.entry(id.to_owned()).or_default().push(handed);
            self.unanswered.push(id.to_owned());
        } else {
            // The worker refuses replies to messages of an earlier run.
            let error = line["error"].as_str().unwrap_or_else(|| panic!("unexpected line: {line}"));
            assert!(error.contains("is already acknowledged") || error.contains("was not handed over"), "{error}");
        }
    }
}

/// State that the test and the program's thread share.
struct SharedState {
    record: Mutex<ProgramRecord>,
    process: Mutex<Option<WorkerProcess>>,
    killed: AtomicBool,
    /// The program writes no more events and acknowledges every message.
    settling: AtomicBool,
    finishing: AtomicBool,
}

fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct WorkerProgram {
    pub sandbox: ExternalSandbox,
    shared: Arc<SharedState>,
    thread: JoinHandle<()>,
}

impl WorkerProgram {
    pub fn start(server: &str, sandbox: ExternalSandbox, dir: PathBuf, seed: u64) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        let shared = Arc::new(SharedState {
            record: Mutex::default(),
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

    /// Kills the worker. Returns false if it is not running.
    pub fn kill_worker(&self) -> bool {
        let mut process = lock_ignoring_poison(&self.shared.process);
        let Some(process) = process.as_mut().filter(|_| !self.shared.killed.load(Ordering::SeqCst)) else {
            return false;
        };
        self.shared.killed.store(true, Ordering::SeqCst);
        process.kill();
        true
    }

    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Returns true if the program has the message and has not replied to it.
    pub fn has_unanswered(&self, message: &str) -> bool {
        let record = lock_ignoring_poison(&self.shared.record);
        record.hand_overs.get(message).and_then(|times| times.last()).is_some_and(|last| last.reply.is_none())
    }

    /// Returns the end of the running worker's stderr.
    pub fn worker_log(&self) -> String {
        lock_ignoring_poison(&self.shared.process).as_ref().map(WorkerProcess::stderr_tail).unwrap_or_default()
    }

    pub fn start_settling(&self) {
        self.shared.settling.store(true, Ordering::SeqCst);
    }

    /// Closes the worker's stdin, waits until the worker has sent everything, and returns the record.
    pub fn finish(self) -> ProgramRecord {
        self.shared.finishing.store(true, Ordering::SeqCst);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        std::mem::take(&mut *lock_ignoring_poison(&self.shared.record))
    }
}

struct Feeder {
    server: String,
    sandbox: ExternalSandbox,
    dir: PathBuf,
    rng: StdRng,
    shared: Arc<SharedState>,
}

/// The program pauses at this many events that the worker has not confirmed.
const MAX_UNCONFIRMED_EVENTS: usize = 1000;

struct WorkerGone;

impl Feeder {
    fn run(mut self) {
        loop {
            let run = {
                let mut record = lock_ignoring_poison(&self.shared.record);
                record.runs.push(WorkerRun::default());
                record.runs.len() - 1
            };
            let shared = Arc::clone(&self.shared);
            let on_line = move |line: Value| lock_ignoring_poison(&shared.record).record_line(run, &line);
            let (process, stdin) = WorkerProcess::start(&self.server, &self.sandbox, &self.dir, on_line);
            self.shared.killed.store(false, Ordering::SeqCst);
            *lock_ignoring_poison(&self.shared.process) = Some(process);
            if self.feed_worker(run, stdin).is_ok() {
                return self.wait_for_last_worker(run);
            }
            let mut gone = lock_ignoring_poison(&self.shared.process).take().unwrap();
            let status = gone.wait_for_exit();
            assert!(self.shared.killed.load(Ordering::SeqCst), "the worker exited without a kill: {status:?}");
            std::thread::sleep(Duration::from_millis(self.rng.random_range(0..60)));
        }
    }

    fn feed_worker(&mut self, run: usize, mut stdin: ChildStdin) -> Result<(), WorkerGone> {
        while !self.shared.finishing.load(Ordering::SeqCst) {
            let burst = if self.rng.random_bool(0.02) { 120 } else { self.rng.random_range(0..4) };
            let burst = if self.is_behind(run) { 0 } else { burst };
            for _ in 0..burst {
                let line = self.next_event(run);
                write_line(&mut stdin, &line)?;
            }
            let waiting = std::mem::take(&mut lock_ignoring_poison(&self.shared.record).unanswered);
            for id in waiting {
                if let Some(line) = self.next_reply(run, id) {
                    write_line(&mut stdin, &line)?;
                }
            }
            std::thread::sleep(Duration::from_millis(self.rng.random_range(1..50)));
        }
        Ok(())
    }

    /// Returns true if the program must pause, so that a slow worker does not fall ever further behind.
    fn is_behind(&self, run: usize) -> bool {
        let record = lock_ignoring_poison(&self.shared.record);
        let run = &record.runs[run];
        self.shared.settling.load(Ordering::SeqCst) || run.numbers.len() - run.confirmed > MAX_UNCONFIRMED_EVENTS
    }

    fn next_event(&mut self, run: usize) -> Value {
        let size = match self.rng.random_range(0..100) {
            0 => 60_000,
            1..20 => self.rng.random_range(1_000..4_000),
            _ => self.rng.random_range(0..200),
        };
        let kinds = ["agent.message", "agent.tool_use", "agent.waiting", "agent.started", "agent.completed", "my.own"];
        let kind = kinds[self.rng.random_range(0..kinds.len())];
        let mut record = lock_ignoring_poison(&self.shared.record);
        let number = record.next_number;
        record.next_number += 1;
        record.runs[run].numbers.push(number);
        json!({ "type": kind, "data": { "number": number, "text": "x".repeat(size) } })
    }

    fn next_reply(&mut self, run: usize, id: String) -> Option<Value> {
        let settling = self.shared.settling.load(Ordering::SeqCst);
        let reply = match self.rng.random_range(0..100) {
            _ if settling => DeliveryReply::Ack,
            0..70 => DeliveryReply::Ack,
            70..78 => DeliveryReply::Return,
            78..83 => DeliveryReply::Refuse,
            83..88 => DeliveryReply::MaybeSeen,
            _ => return None,
        };
        let mut record = lock_ignoring_poison(&self.shared.record);
        let (turn, after) = (record.next_turn, record.runs[run].numbers.len());
        record.next_turn += 1;
        let handed = record.hand_overs.get_mut(&id).and_then(|times| times.last_mut()).unwrap();
        // A reply to a message of an earlier run has no effect.
        if handed.run == run {
            handed.reply = Some(RecordedReply { kind: reply, turn, durability: Durability::WrittenAfter(after) });
        }
        let nack = |handed: bool, retry: bool| json!({ "nack": { "id": id, "handed": handed, "retry": retry } });
        Some(match reply {
            DeliveryReply::Ack if turn % 2 == 0 => json!({ "ack": { "id": id, "how": "injected", "turn": turn } }),
            DeliveryReply::Ack => json!({ "ack": { "id": id, "how": "new_turn", "turn": turn } }),
            DeliveryReply::Return => nack(false, true),
            DeliveryReply::Refuse => nack(false, false),
            DeliveryReply::MaybeSeen => nack(true, false),
        })
    }

    /// Waits until the worker has sent everything after the end of its input, and exits.
    fn wait_for_last_worker(&self, run: usize) {
        let mut process = lock_ignoring_poison(&self.shared.process).take().unwrap();
        let status = process.wait_for_exit();
        assert!(status.success(), "the last worker ended with {status:?}");
        let mut record = lock_ignoring_poison(&self.shared.record);
        assert_eq!(
            record.runs[run].confirmed,
            record.runs[run].numbers.len(),
            "the worker must confirm every event of the last run"
        );
        let last = record.hand_overs.values_mut().flatten().filter(|handed| handed.run == run);
        last.filter_map(|handed| handed.reply.as_mut()).for_each(|answer| answer.durability = Durability::Durable);
    }
}

fn write_line(stdin: &mut ChildStdin, line: &Value) -> Result<(), WorkerGone> {
    let mut text = line.to_string();
    text.push('\n');
    stdin.write_all(text.as_bytes()).map_err(|_| WorkerGone)
}
