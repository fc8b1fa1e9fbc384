//! Kills servers, workers and agents at random moments while agents work. Afterwards every sandbox has the right state,
//! spooled events are stored once, and the host is clean.

use atoll_test_wait::poll_until;
use atoll_tests::local::host_state::{self, HostProcess};
use atoll_tests::local::spool::spooled_messages;
use atoll_tests::local::{LocalServer, agent_messages, assert_log_is_complete, has_ended, is_root, report_skipped};
use atoll_tests::scale;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

/// Number of kills at full scale.
const FULL_SCALE_KILLS: usize = 100;
const CONCURRENT_SANDBOXES: usize = 4;
const MESSAGES_PER_SANDBOX: usize = 60;
/// Maximum time from a start of the server until all states are right.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KillTarget {
    Server,
    Worker,
    Agent,
    /// Kills the server first, so that no server ingests the worker's spool.
    ServerAndWorker,
}

/// A sandbox and the kills in it.
struct SandboxRecord {
    id: String,
    worker_killed: bool,
    agent_killed: bool,
    /// Messages in the spool after both server and worker died.
    spooled: Vec<String>,
}

#[derive(Debug, Default)]
struct LocalKillCounts {
    server_kills: usize,
    server_kills_while_starting: usize,
    worker_kills: usize,
    agent_kills: usize,
    completed: usize,
    failed: std::collections::BTreeMap<String, usize>,
    never_ran: usize,
    spooled: usize,
    messages: usize,
}

struct LocalKillTest {
    server: LocalServer,
    rng: StdRng,
    running: Vec<SandboxRecord>,
    ended: Vec<SandboxRecord>,
    /// All processes seen alive so far.
    processes: Vec<HostProcess>,
    counts: LocalKillCounts,
}

fn build_prompt() -> String {
    let step = |number: usize| match number % 4 {
        0 => format!("say {number}\nedit file{number}.txt {number}\n"),
        1 => format!("say {number}\nrun echo {number} >> log.txt\n"),
        _ => format!("say {number}\nwait 0.08\n"),
    };
    (0..MESSAGES_PER_SANDBOX).map(step).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn random_kills_leave_correct_states_and_no_leftovers() {
    if !is_root() {
        return report_skipped("kills of real sandboxes", "only root has cgroups to find their processes by");
    }
    // This process adopts and reaps orphans.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let rng = StdRng::seed_from_u64(scale::choose_seed("local kill"));
    let server = block_in_place(LocalServer::start);
    let mut run = LocalKillTest {
        server,
        rng,
        running: Vec::new(),
        ended: Vec::new(),
        processes: Vec::new(),
        counts: LocalKillCounts::default(),
    };
    let mut kills = scale::scale_count(FULL_SCALE_KILLS);
    while kills > 0 {
        run.replace_ended_sandboxes().await;
        // Mostly soon, sometimes after the agents have made progress.
        let max_delay_ms = if run.rng.random_bool(0.7) { 500 } else { 3000 };
        let pause = Duration::from_millis(run.rng.random_range(0..max_delay_ms));
        tokio::time::sleep(pause).await;
        kills -= usize::from(block_in_place(|| run.kill_one()));
    }
    run.wait_until_all_ended().await;
    run.check_results().await;
    run.assert_nothing_left().await;
}

impl LocalKillTest {
    async fn replace_ended_sandboxes(&mut self) {
        for record in std::mem::take(&mut self.running) {
            let is_over = record.worker_killed || has_ended(&self.server.get_sandbox(&record.id).await);
            if is_over { &mut self.ended } else { &mut self.running }.push(record);
        }
        while self.running.len() < CONCURRENT_SANDBOXES {
            let id = self.server.create_sandbox(json!({ "prompt": build_prompt() })).await;
            self.running.push(SandboxRecord { id, worker_killed: false, agent_killed: false, spooled: Vec::new() });
        }
    }

    fn track_processes(&mut self) {
        self.processes.retain(|process| {
            let alive = process.is_alive();
            if !alive {
                process.reap();
            }
            alive
        });
        let found = self.running.iter().flat_map(|record| host_state::list_sandbox_processes(&record.id));
        self.processes.extend(found.chain(host_state::list_children(self.server.process.pid())));
    }

    /// Returns true if a process was killed.
    fn kill_one(&mut self) -> bool {
        let target = match self.rng.random_range(0..10) {
            0..3 => KillTarget::Server,
            3..6 => KillTarget::Worker,
            6..8 => KillTarget::Agent,
            _ => KillTarget::ServerAndWorker,
        };
        self.track_processes();
        let with_server = target == KillTarget::Server || target == KillTarget::ServerAndWorker;
        if with_server {
            self.server.process.kill();
            self.counts.server_kills += 1;
        }
        let killed = match target {
            KillTarget::Server => true,
            KillTarget::Worker => self.kill_worker().is_some(),
            KillTarget::ServerAndWorker => {
                if let Some(index) = self.kill_worker() {
                    let record = &mut self.running[index];
                    record.spooled = spooled_messages(&self.server.sandbox_dir(&record.id).join("spool"));
                    self.counts.spooled += record.spooled.len();
                }
                true
            }
            KillTarget::Agent => self.kill_agent(),
        };
        if with_server {
            self.restart_server();
        }
        killed
    }

    /// Kills the worker of a random running sandbox. Returns the sandbox's index.
    fn kill_worker(&mut self) -> Option<usize> {
        let workers: Vec<(usize, HostProcess)> = self
            .running
            .iter()
            .enumerate()
            .filter_map(|(index, record)| Some((index, host_state::find_worker_process(&record.id)?)))
            .collect();
        let (index, worker) = self.pick_random(workers)?;
        let killed = worker.kill();
        assert!(worker.ends_in_time(), "SIGKILL must end {worker:?}");
        self.running[index].worker_killed |= killed;
        self.counts.worker_kills += usize::from(killed);
        killed.then_some(index)
    }

    /// Kills a random process with the agent's id: the agent, one of its commands, or the worker's spawner.
    fn kill_agent(&mut self) -> bool {
        let agents = self.running.iter().enumerate();
        let agents = agents.flat_map(|(index, record)| {
            host_state::list_leaf_processes(&record.id, "agent").into_iter().map(move |agent| (index, agent))
        });
        let Some((index, agent)) = self.pick_random(agents.collect()) else { return false };
        let killed = agent.kill();
        self.running[index].agent_killed |= killed;
        self.counts.agent_kills += usize::from(killed);
        killed
    }

    fn pick_random<T>(&mut self, mut all: Vec<T>) -> Option<T> {
        if all.is_empty() { None } else { Some(all.swap_remove(self.rng.random_range(0..all.len()))) }
    }

    fn restart_server(&mut self) {
        std::thread::sleep(Duration::from_millis(self.rng.random_range(0..300)));
        if self.rng.random_bool(0.3) {
            let after = Duration::from_millis(self.rng.random_range(0..300));
            self.server.process.start_and_kill(after);
            self.counts.server_kills_while_starting += 1;
        }
        self.server.process.restart();
    }

    async fn wait_until_all_ended(&mut self) {
        let started = Instant::now();
        self.ended.append(&mut self.running);
        for record in &self.ended {
            poll_until("the sandbox's end", async || {
                let row = self.server.get_sandbox(&record.id).await;
                let is_late = record.worker_killed && started.elapsed() > RECOVERY_TIMEOUT;
                assert!(has_ended(&row) || !is_late, "the sandbox does not end: {row}");
                has_ended(&row)
            })
            .await;
        }
    }

    async fn check_results(&mut self) {
        let expected: Vec<String> = (0..MESSAGES_PER_SANDBOX).map(|number| number.to_string()).collect();
        for record in &self.ended {
            let row = self.server.get_sandbox(&record.id).await;
            let events = self.server.admin.all_events(&record.id).await;
            assert_log_is_complete(&events);
            let messages = agent_messages(&events);
            assert!(expected.starts_with(&messages), "each message once, in order: {messages:?}");
            assert!(
                messages.starts_with(&record.spooled),
                "{:?} were spooled, {messages:?} are stored",
                record.spooled
            );
            self.counts.messages += messages.len();
            let ran = events.iter().any(|event| event["type"] == "sandbox.running");
            let unexpected_types = ["worker.lost", "worker.rejected", "agent.unparsed"];
            let unexpected: Vec<&Value> =
                events.iter().filter(|event| unexpected_types.iter().any(|kind| event["type"] == *kind)).collect();
            assert!(unexpected.is_empty(), "{unexpected:?}");
            if row["state"] == "completed" {
                assert_eq!(
                    (row["outcome"].as_str(), messages.len()),
                    (Some("succeeded"), MESSAGES_PER_SANDBOX),
                    "{row}"
                );
                self.counts.completed += 1;
                continue;
            }
            let code = row["reason"]["code"].as_str().unwrap().to_owned();
            let is_plausible = match code.as_str() {
                // Or the server was killed while it started the worker.
                "worker_died" => record.worker_killed || record.agent_killed || !ran,
                "agent_crashed" | "agent_failed" | "agent_exited" | "agent_not_started" => record.agent_killed,
                // Failed before the next server could adopt it.
                _ => !ran,
            };
            assert!(
                is_plausible,
                "worker killed: {}, agent killed: {}: {row}",
                record.worker_killed, record.agent_killed
            );
            self.counts.never_ran += usize::from(!ran);
            *self.counts.failed.entry(code).or_default() += 1;
        }
    }

    async fn assert_nothing_left(mut self) {
        self.track_processes();
        let line = format!("local kill: {:?}\n", self.counts);
        drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
        self.server.stop_and_check().await;
        for process in &self.processes {
            assert!(process.ends_in_time(), "a process is left: {process:?}");
            process.reap();
        }
    }
}
