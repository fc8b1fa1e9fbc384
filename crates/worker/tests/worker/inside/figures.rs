//! What an idle worker costs, and how fast a command is. Prints; run by hand, with the worker that is shipped:
//! `ATOLL_WORKER=target/worker/atoll-worker cargo test -p atoll-worker --test worker figures -- --ignored --nocapture`

use super::{Sandbox, start};
use atoll_protocol::exec::End;
use rustix::process::Pid;
use std::time::{Duration, Instant};

fn status(pid: Pid, key: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
    let of_task = |text: String| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    tasks.flatten().filter_map(|task| of_task(std::fs::read_to_string(task.path().join("status")).ok()?)).sum()
}

fn switches(pid: Pid) -> u64 {
    status(pid, "voluntary_ctxt_switches:") + status(pid, "nonvoluntary_ctxt_switches:")
}

fn pss(pid: Pid) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn child(pid: Pid) -> Pid {
    let pid = pid.as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    Pid::from_raw(children.split_whitespace().next().unwrap().parse().unwrap()).unwrap()
}

#[test]
#[ignore = "takes two minutes and prints figures"]
fn figures() {
    let sandbox = Sandbox::with(|fake| fake.with(|state| state.interval_s = 30));
    sandbox.wait_for("agent.waiting", 1);
    let mut times = Vec::new();
    for _ in 0..300 {
        let beginning = Instant::now();
        assert_eq!(sandbox.exec(start(&["/bin/true"])).end(), End::Exited { code: 0 });
        times.push(beginning.elapsed());
    }
    let mut spawns = Vec::new();
    for _ in 0..300 {
        let beginning = Instant::now();
        assert!(std::process::Command::new("/bin/true").status().unwrap().success());
        spawns.push(beginning.elapsed());
    }
    times.sort();
    spawns.sort();
    println!("exec of true, p50: {:?}; spawn and wait of it: {:?}", times[150], spawns[150]);

    std::thread::sleep(Duration::from_secs(10));
    let (worker, hands) = (sandbox.worker(), child(sandbox.worker()));
    println!("PSS: worker {} kB, hands {} kB", pss(worker), pss(hands));
    let before = (switches(worker), switches(hands));
    std::thread::sleep(Duration::from_secs(90));
    let after = (switches(worker), switches(hands));
    println!("context switches in 90 s: worker {}, hands {}", after.0 - before.0, after.1 - before.1);
}
