//! Servers, workers and agents killed at any moment while agents work. Afterwards every sandbox is in
//! the state that is true of it, what was spooled is stored once, and nothing is left on the machine.

mod spool;

use atoll_tests::local::traces::{self, Process};
use atoll_tests::local::{Ground, assert_whole, has_ended, is_root, said, skipped};
use atoll_tests::scale;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

/// Kills of a whole run.
const KILLS: usize = 100;
const AT_ONCE: usize = 4;
const SAYS: usize = 60;
/// For what must come in the end, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(120);
/// How soon after a start states are true again.
const SOON: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Server,
    Worker,
    Agent,
    /// First the server, so that nobody takes over what the worker leaves behind.
    Both,
}

/// One sandbox and what was done to it.
struct Life {
    id: String,
    worker_killed: bool,
    agent_killed: bool,
    /// What stood in the spool when nobody was there any more to send it.
    spooled: Vec<String>,
}

#[derive(Debug, Default)]
struct Figures {
    server_kills: usize,
    server_kills_while_starting: usize,
    worker_kills: usize,
    agent_kills: usize,
    completed: usize,
    failed: std::collections::BTreeMap<String, usize>,
    never_ran: usize,
    spooled: usize,
    said: usize,
}

struct Run {
    ground: Ground,
    rng: StdRng,
    living: Vec<Life>,
    over: Vec<Life>,
    /// Everything that was ever seen alive.
    processes: Vec<Process>,
    figures: Figures,
}

fn prompt() -> String {
    let step = |number: usize| match number % 4 {
        0 => format!("say {number}\nedit file{number}.txt {number}\n"),
        1 => format!("say {number}\nrun echo {number} >> log.txt\n"),
        _ => format!("say {number}\nwait 0.08\n"),
    };
    (0..SAYS).map(step).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn kills_leave_true_states_and_nothing_else() {
    if !is_root() {
        return skipped("kills of real sandboxes", "only root has cgroups to find their processes by");
    }
    // Orphans come to this process, whose children they then are until it takes note of their end.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let rng = StdRng::seed_from_u64(scale::seed("local kill"));
    let ground = block_in_place(Ground::start);
    let mut run =
        Run { ground, rng, living: Vec::new(), over: Vec::new(), processes: Vec::new(), figures: Figures::default() };
    let mut kills = scale::scaled(KILLS);
    while kills > 0 {
        run.fill_up().await;
        // Mostly in the midst of something, and now and then with time to get on.
        let most = if run.rng.random_bool(0.7) { 500 } else { 3000 };
        let pause = Duration::from_millis(run.rng.random_range(0..most));
        tokio::time::sleep(pause).await;
        kills -= usize::from(block_in_place(|| run.kill_one()));
    }
    run.all_end().await;
    run.check().await;
    run.nothing_is_left().await;
}

impl Run {
    async fn fill_up(&mut self) {
        for life in std::mem::take(&mut self.living) {
            let over = life.worker_killed || has_ended(&self.ground.row(&life.id).await);
            if over { &mut self.over } else { &mut self.living }.push(life);
        }
        while self.living.len() < AT_ONCE {
            let id = self.ground.make(json!({ "prompt": prompt() })).await;
            self.living.push(Life { id, worker_killed: false, agent_killed: false, spooled: Vec::new() });
        }
    }

    fn look_around(&mut self) {
        self.processes.retain(|process| {
            let alive = process.is_alive();
            if !alive {
                process.reap();
            }
            alive
        });
        let seen = self.living.iter().flat_map(|life| traces::processes(&life.id));
        self.processes.extend(seen.chain(traces::children(self.ground.server.pid())));
    }

    /// Says whether somebody was killed.
    fn kill_one(&mut self) -> bool {
        let victim = match self.rng.random_range(0..10) {
            0..3 => Victim::Server,
            3..6 => Victim::Worker,
            6..8 => Victim::Agent,
            _ => Victim::Both,
        };
        self.look_around();
        let with_server = victim == Victim::Server || victim == Victim::Both;
        if with_server {
            self.ground.server.kill();
            self.figures.server_kills += 1;
        }
        let killed = match victim {
            Victim::Server => true,
            Victim::Worker => self.kill_worker().is_some(),
            Victim::Both => {
                if let Some(at) = self.kill_worker() {
                    let life = &mut self.living[at];
                    life.spooled = spool::said(&self.ground.home_of(&life.id).join("spool"));
                    self.figures.spooled += life.spooled.len();
                }
                true
            }
            Victim::Agent => self.kill_agent(),
        };
        if with_server {
            self.bring_back_the_server();
        }
        killed
    }

    /// Pid 1 of one of those that have it by now; which one that was.
    fn kill_worker(&mut self) -> Option<usize> {
        let workers: Vec<(usize, Process)> =
            self.living.iter().enumerate().filter_map(|(at, life)| Some((at, traces::worker(&life.id)?))).collect();
        let (at, worker) = self.one_of(workers)?;
        let killed = worker.kill();
        assert!(worker.ends_within(PATIENCE), "SIGKILL ends {worker:?}");
        self.living[at].worker_killed |= killed;
        self.figures.worker_kills += usize::from(killed);
        killed.then_some(at)
    }

    /// Any process that has the agent's id: the agent, what it runs, or the worker's hands.
    fn kill_agent(&mut self) -> bool {
        let agents = self.living.iter().enumerate();
        let agents =
            agents.flat_map(|(at, life)| traces::leaf(&life.id, "agent").into_iter().map(move |agent| (at, agent)));
        let Some((at, agent)) = self.one_of(agents.collect()) else { return false };
        let killed = agent.kill();
        self.living[at].agent_killed |= killed;
        self.figures.agent_kills += usize::from(killed);
        killed
    }

    fn one_of<T>(&mut self, mut all: Vec<T>) -> Option<T> {
        if all.is_empty() { None } else { Some(all.swap_remove(self.rng.random_range(0..all.len()))) }
    }

    fn bring_back_the_server(&mut self) {
        std::thread::sleep(Duration::from_millis(self.rng.random_range(0..300)));
        if self.rng.random_bool(0.3) {
            let after = Duration::from_millis(self.rng.random_range(0..300));
            self.ground.server.start_and_kill(after);
            self.figures.server_kills_while_starting += 1;
        }
        self.ground.server.start_again();
    }

    async fn all_end(&mut self) {
        let began = Instant::now();
        self.over.append(&mut self.living);
        for life in &self.over {
            loop {
                let row = self.ground.row(&life.id).await;
                if has_ended(&row) {
                    break;
                }
                let most = if life.worker_killed { SOON } else { PATIENCE };
                assert!(began.elapsed() < most, "it does not end: {row}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    async fn check(&mut self) {
        let wanted: Vec<String> = (0..SAYS).map(|number| number.to_string()).collect();
        for life in &self.over {
            let row = self.ground.row(&life.id).await;
            let events = self.ground.admin.all_events(&life.id).await;
            assert_whole(&events);
            let said = said(&events);
            assert!(wanted.starts_with(&said), "once each, in order: {said:?}");
            assert!(said.starts_with(&life.spooled), "{:?} were spooled, {said:?} are stored", life.spooled);
            self.figures.said += said.len();
            let ran = events.iter().any(|event| event["type"] == "sandbox.running");
            let unwanted = ["worker.lost", "worker.rejected", "agent.unparsed"];
            let odd: Vec<&Value> =
                events.iter().filter(|event| unwanted.iter().any(|kind| event["type"] == *kind)).collect();
            assert!(odd.is_empty(), "{odd:?}");
            if row["state"] == "completed" {
                assert_eq!((row["outcome"].as_str(), said.len()), (Some("succeeded"), SAYS), "{row}");
                self.figures.completed += 1;
                continue;
            }
            let code = row["reason"]["code"].as_str().unwrap().to_owned();
            let true_of_it = match code.as_str() {
                // Or it was just being started when the server was killed, and who starts it with it.
                "worker_died" => life.worker_killed || life.agent_killed || !ran,
                "agent_crashed" | "agent_failed" | "agent_exited" | "agent_not_started" => life.agent_killed,
                // Cut off before there was anything to take over.
                _ => !ran,
            };
            assert!(true_of_it, "worker killed: {}, agent killed: {}: {row}", life.worker_killed, life.agent_killed);
            self.figures.never_ran += usize::from(!ran);
            *self.figures.failed.entry(code).or_default() += 1;
        }
    }

    async fn nothing_is_left(mut self) {
        self.look_around();
        let line = format!("local kill: {:?}\n", self.figures);
        drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
        self.ground.leave().await;
        for process in &self.processes {
            assert!(process.ends_within(Duration::from_secs(10)), "a process is left: {process:?}");
            process.reap();
        }
    }
}
