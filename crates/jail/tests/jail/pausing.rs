//! A paused sandbox stands still, all but its worker.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use atoll_jail::{Bound, Error, Launcher, Place};

use crate::harness::{Harness, enter, groups_of, processes_with};
use crate::isolation::wait_for;
use crate::ordinary;

/// The worker counts, and so does a child of it in the agent's cgroup; a second child starts when it is asked for.
fn counting(mark: &str) -> String {
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

fn number(path: &Path) -> u64 {
    wait_for(path).trim().parse().unwrap()
}

/// Whether a counter moves within a while that is long for it.
fn moves(path: &Path) -> bool {
    let before = number(path);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(400) {
        if number(path) != before {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

fn pauses(harness: &Harness) -> Place {
    let place = harness.prepared("a");
    assert!(matches!(harness.launcher.pause("a"), Err(Error::NotAlive { .. })));
    assert!(matches!(harness.launcher.pause("b"), Err(Error::Unknown { .. })));
    harness.launcher.start_worker("a").unwrap();
    let (agent, worker) = (place.dir.join("tmp/agent"), place.dir.join("tmp/worker"));
    assert!(moves(&agent) && moves(&worker));
    let start = Instant::now();
    let paused = harness.launcher.pause("a").unwrap();
    println!("paused in {:?}", start.elapsed());
    assert!(paused.paused && paused.alive);
    assert!(!moves(&agent), "the agent stands still");
    if place.enforced.pids == Bound::Enforced {
        // (By signals the programs that this worker waits for stop too: only itself goes on.)
        assert!(moves(&worker), "the worker goes on");
    }
    assert!(harness.launcher.pause("a").unwrap().paused, "again is no harm");
    assert!(harness.launcher.find("a").unwrap().unwrap().paused);
    assert!(harness.launcher.list().unwrap()[0].paused);
    assert_eq!(harness.said("a", "echo well"), "well", "a one-shot is none of the paused");
    let refused = enter(&harness.launcher, "a", false, "true");
    assert!(matches!(&refused, Err(Error::Busy { reason, .. }) if reason.contains("paused")), "{refused:?}");
    place
}

#[test]
fn a_paused_sandbox_stands_still_and_goes_on() {
    let mark = format!("{:05}", std::process::id() % 100_000);
    let Some(harness) = Harness::with_worker(&counting(&mark)) else { return };
    let place = pauses(&harness);
    let (agent, late) = (place.dir.join("tmp/agent"), place.dir.join("tmp/late"));
    let frozen = place.enforced.pids == Bound::Enforced;
    if frozen {
        fs::write(place.dir.join("tmp/wanted"), "").unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(!place.dir.join("tmp/wanted").exists(), "the worker has started another");
        assert!(!late.exists(), "which stands still as well");
    }
    // The next launcher finds it as it is.
    let Harness { launcher, options, data } = harness;
    drop(launcher);
    let launcher = Launcher::start(options.clone()).unwrap();
    assert!(launcher.find("a").unwrap().unwrap().paused);
    assert!(!moves(&agent));
    assert!(!launcher.resume("a").unwrap().paused);
    assert!(moves(&agent));
    if frozen {
        wait_for(&late);
    }
    assert!(!launcher.resume("a").unwrap().paused, "again is no harm");
    // What is paused can be ended, and leaves nothing.
    launcher.pause("a").unwrap();
    let start = Instant::now();
    launcher.kill("a").unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let place = launcher.find("a").unwrap().unwrap();
    assert!(!place.alive && !place.paused);
    launcher.start_worker("a").unwrap();
    assert!(moves(&agent), "the next worker's agent is not paused");
    launcher.pause("a").unwrap();
    launcher.destroy("a").unwrap();
    assert!(!place.dir.exists());
    assert_eq!(processes_with(&format!("1000{mark}")), Vec::<std::path::PathBuf>::new());
    assert_eq!(groups_of(&options), Vec::<std::path::PathBuf>::new());
    drop((launcher, data));
}

#[test]
fn without_cgroups_signals_do_it() {
    if !ordinary::possible() {
        return;
    }
    let harness = Harness::with(&counting("0"), |options| ordinary::as_user(options, ""));
    let place = pauses(&harness);
    let agent = place.dir.join("tmp/agent");
    assert!(!harness.launcher.resume("a").unwrap().paused);
    assert!(moves(&agent));
    harness.launcher.pause("a").unwrap();
    harness.launcher.kill("a").unwrap();
    harness.launcher.start_worker("a").unwrap();
    assert!(!harness.launcher.find("a").unwrap().unwrap().paused);
    assert!(moves(&agent));
    harness.launcher.pause("a").unwrap();
    harness.launcher.destroy("a").unwrap();
    assert!(!place.dir.exists());
}
