//! A pause stops all processes of a sandbox except its worker.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use atoll_jail::{Enforcement, Error, Launcher, SandboxInfo};
use atoll_test_wait::wait_until;

use crate::harness::{Harness, assert_unchanged, cgroup_dirs, exec_shell, processes_with, wait_for_file};
use crate::unprivileged;

/// The worker counts, and so does a child in the agent's cgroup; a second child starts on request.
fn counting_worker(mark: &str) -> String {
    format!(
        "#!/bin/bash
enter() {{ for n in $(seq 5 $((4 + ATOLL_CGROUP_FDS))); do echo 0 >&$n; done; }}
agent() {{ enter; i=0; while :; do i=$((i+1)); echo $i >/tmp/agent.new; mv /tmp/agent.new /tmp/agent; done; }}
late() {{ enter; echo here >/tmp/late; exec sleep 1000{mark}; }}
agent &
i=0; while :; do
  i=$((i+1)); echo $i >/tmp/worker.new; mv /tmp/worker.new /tmp/worker
  if test -e /tmp/wanted; then rm /tmp/wanted; late & fi
  sleep 0.01
done
"
    )
}

fn read_number(path: &Path) -> u64 {
    wait_for_file(path).trim().parse().unwrap()
}

fn wait_until_counting(path: &Path) {
    let before = read_number(path);
    wait_until("the counter", || read_number(path) != before);
}

fn check_pause(harness: &Harness) -> SandboxInfo {
    let sandbox = harness.prepare_sandbox("a");
    assert!(matches!(harness.launcher.pause_sandbox("a"), Err(Error::NotRunning { .. })));
    assert!(matches!(harness.launcher.pause_sandbox("b"), Err(Error::UnknownSandbox { .. })));
    harness.launcher.start_worker("a").unwrap();
    let (agent, worker) = (sandbox.dir.join("tmp/agent"), sandbox.dir.join("tmp/worker"));
    wait_until_counting(&agent);
    wait_until_counting(&worker);
    let start = Instant::now();
    let paused = harness.launcher.pause_sandbox("a").unwrap();
    println!("paused in {:?}", start.elapsed());
    assert!(paused.is_paused && paused.is_alive);
    assert_unchanged(&harness.launcher, "a", || read_number(&agent));
    if sandbox.enforced.pids == Enforcement::Enforced {
        // Signals also stop the programs that this worker waits for.
        wait_until_counting(&worker);
    }
    assert!(harness.launcher.pause_sandbox("a").unwrap().is_paused, "pausing or resuming again is no error");
    assert!(harness.launcher.find_sandbox("a").unwrap().unwrap().is_paused);
    assert!(harness.launcher.list_sandboxes().unwrap()[0].is_paused);
    assert_eq!(harness.shell_output("a", "echo alive"), "alive", "one-shot runs are not paused");
    let refused = exec_shell(&harness.launcher, "a", false, "true");
    assert!(matches!(&refused, Err(Error::Busy { reason, .. }) if reason.contains("paused")), "{refused:?}");
    sandbox
}

#[test]
fn a_paused_sandbox_stops_and_resumes() {
    let mark = format!("{:05}", std::process::id() % 100_000);
    let Some(harness) = Harness::with_worker(&counting_worker(&mark)) else { return };
    let sandbox = check_pause(&harness);
    let (agent, late) = (sandbox.dir.join("tmp/agent"), sandbox.dir.join("tmp/late"));
    let frozen = sandbox.enforced.pids == Enforcement::Enforced;
    if frozen {
        fs::write(sandbox.dir.join("tmp/wanted"), "").unwrap();
        wait_until("the worker to start a child", || !sandbox.dir.join("tmp/wanted").exists());
        assert_unchanged(&harness.launcher, "a", || late.exists());
        assert!(!late.exists(), "the new child is frozen too");
    }
    // The next launcher finds it paused.
    let Harness { launcher, options, data } = harness;
    drop(launcher);
    let launcher = Launcher::start(options.clone()).unwrap();
    assert!(launcher.find_sandbox("a").unwrap().unwrap().is_paused);
    assert_unchanged(&launcher, "a", || read_number(&agent));
    assert!(!launcher.resume_sandbox("a").unwrap().is_paused);
    wait_until_counting(&agent);
    if frozen {
        wait_for_file(&late);
    }
    assert!(!launcher.resume_sandbox("a").unwrap().is_paused, "pausing or resuming again is no error");
    // A paused sandbox can be killed and leaves nothing.
    launcher.pause_sandbox("a").unwrap();
    let start = Instant::now();
    launcher.kill_sandbox("a").unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let sandbox = launcher.find_sandbox("a").unwrap().unwrap();
    assert!(!sandbox.is_alive && !sandbox.is_paused);
    launcher.start_worker("a").unwrap();
    // The next worker's agent is not paused.
    wait_until_counting(&agent);
    launcher.pause_sandbox("a").unwrap();
    launcher.destroy_sandbox("a").unwrap();
    assert!(!sandbox.dir.exists());
    assert_eq!(processes_with(&format!("1000{mark}")), Vec::<std::path::PathBuf>::new());
    assert_eq!(cgroup_dirs(&options), Vec::<std::path::PathBuf>::new());
    drop((launcher, data));
}

#[test]
fn pauses_by_signals_without_cgroups() {
    if !unprivileged::can_switch_user() {
        return;
    }
    let harness = Harness::with(&counting_worker("0"), |options| unprivileged::run_as_user(options, ""));
    let sandbox = check_pause(&harness);
    let agent = sandbox.dir.join("tmp/agent");
    assert!(!harness.launcher.resume_sandbox("a").unwrap().is_paused);
    wait_until_counting(&agent);
    harness.launcher.pause_sandbox("a").unwrap();
    harness.launcher.kill_sandbox("a").unwrap();
    harness.launcher.start_worker("a").unwrap();
    assert!(!harness.launcher.find_sandbox("a").unwrap().unwrap().is_paused);
    wait_until_counting(&agent);
    harness.launcher.pause_sandbox("a").unwrap();
    harness.launcher.destroy_sandbox("a").unwrap();
    assert!(!sandbox.dir.exists());
}
