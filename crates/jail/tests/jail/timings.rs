//! Timings to read, not to check: `cargo test --release -p atoll-jail timings -- --ignored --nocapture`.
//! `ATOLL_JAIL_TEST_DIR` selects another directory than /dev/shm, `ATOLL_JAIL_TEST_POOL` a disk pool there.

use std::time::{Duration, Instant};

use crate::harness::{Harness, run_program, spec};

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |part: usize| times[times.len() * part / 100];
    println!("{what}: p50 {:?}, p95 {:?}, best {:?} of {}", at(50), at(95), times[0], times.len());
}

#[test]
#[ignore = "figures for a person to read"]
fn prints_timings() {
    let Some(harness) = Harness::in_memory() else { return };
    let launcher = &harness.launcher;
    launcher.list_sandboxes().unwrap();
    let (mut preparing, mut starting, mut ending) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..100 {
        let name = format!("t{number}");
        let start = Instant::now();
        launcher.prepare_sandbox(&spec(&name)).unwrap();
        preparing.push(start.elapsed());
        let start = Instant::now();
        launcher.start_worker(&name).unwrap();
        starting.push(start.elapsed());
        let start = Instant::now();
        launcher.destroy_sandbox(&name).unwrap();
        ending.push(start.elapsed());
    }
    report("prepare", preparing);
    report("start_worker, until it executes", starting);
    report("destroy", ending);
    harness.prepare_sandbox("runs");
    let mut running = Vec::new();
    for _ in 0..100 {
        let start = Instant::now();
        run_program(launcher, "runs", &["/bin/true"]);
        running.push(start.elapsed());
    }
    report("run of /bin/true, until its end", running);
    harness.prepare_sandbox("forked");
    launcher.start_worker("forked").unwrap();
    let (mut forking, mut beginning) = (Vec::new(), Vec::new());
    for number in 0..50 {
        run_program(launcher, "forked", &["/bin/touch", &format!("/workspace/change{number}")]);
        let name = format!("f{number}");
        let start = Instant::now();
        launcher.fork_sandbox("forked", &spec(&name)).unwrap();
        forking.push(start.elapsed());
        let start = Instant::now();
        launcher.start_worker(&name).unwrap();
        beginning.push(start.elapsed());
        launcher.destroy_sandbox(&name).unwrap();
    }
    report("fork of one that lives", forking);
    report("start_worker of a fork", beginning);
    let probe = Instant::now();
    launcher.probe_host().unwrap();
    println!("probe: {:?}", probe.elapsed());
}
