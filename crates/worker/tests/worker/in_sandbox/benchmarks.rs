//! Prints the memory and wake-ups of an idle worker and the latency of a command. Run it by hand with the static worker:
//! `ATOLL_WORKER=target/worker/atoll-worker cargo test -p atoll-worker --test worker prints_benchmarks -- --ignored --nocapture`

use super::{WorkerSandbox, exec_start};
use atoll_protocol::exec::ExecExit;
use rustix::process::Pid;
use std::time::{Duration, Instant};

fn sum_status_field(pid: Pid, key: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
    let of_task = |text: String| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    tasks.flatten().filter_map(|task| of_task(std::fs::read_to_string(task.path().join("status")).ok()?)).sum()
}

fn count_context_switches(pid: Pid) -> u64 {
    sum_status_field(pid, "voluntary_ctxt_switches:") + sum_status_field(pid, "nonvoluntary_ctxt_switches:")
}

fn read_pss_kb(pid: Pid) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn first_child_pid(pid: Pid) -> Pid {
    let pid = pid.as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    Pid::from_raw(children.split_whitespace().next().unwrap().parse().unwrap()).unwrap()
}

#[test]
#[ignore = "takes two minutes and only prints measurements"]
fn prints_benchmarks() {
    let sandbox = WorkerSandbox::start_with(|fake| fake.with_state(|state| state.interval_s = 30));
    sandbox.wait_for_events("agent.waiting", 1);
    let mut times = Vec::new();
    for _ in 0..300 {
        let began = Instant::now();
        assert_eq!(sandbox.start_exec(exec_start(&["/bin/true"])).wait_for_end(), ExecExit::Exited { code: 0 });
        times.push(began.elapsed());
    }
    let mut spawns = Vec::new();
    for _ in 0..300 {
        let began = Instant::now();
        assert!(std::process::Command::new("/bin/true").status().unwrap().success());
        spawns.push(began.elapsed());
    }
    times.sort();
    spawns.sort();
    println!("exec of true, p50: {:?}; spawn and wait on the host: {:?}", times[150], spawns[150]);

    // Let the worker become idle.
    std::thread::sleep(Duration::from_secs(10));
    let (worker, spawner) = (sandbox.worker_pid(), first_child_pid(sandbox.worker_pid()));
    println!("PSS: worker {} kB, spawner {} kB", read_pss_kb(worker), read_pss_kb(spawner));
    let before = (count_context_switches(worker), count_context_switches(spawner));
    std::thread::sleep(Duration::from_secs(90));
    let after = (count_context_switches(worker), count_context_switches(spawner));
    println!("context switches in 90 s: worker {}, spawner {}", after.0 - before.0, after.1 - before.1);
}
