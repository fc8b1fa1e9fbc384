//! Resource limits, where this host enforces them.

use std::time::Duration;

use atoll_jail::{Enforcement, Exit, ResourceLimits, SandboxSpec};
use atoll_test_wait::wait_until;

use crate::harness::{Harness, skip_test, spec, wait_for_file};

const HOG: &str = "head -c 300m /dev/zero | tail -c 299m >/dev/null";

#[test]
fn reports_an_oom_kill_as_out_of_memory() {
    let Some(harness) = Harness::new() else { return };
    let sandbox = harness.prepare_sandbox("a");
    if sandbox.enforced.memory != Enforcement::Enforced {
        return skip_test("no memory limit by cgroup");
    }
    let output = harness.run_shell("a", &format!("{HOG}; exit $?"));
    // The shell survives `tail` and returns its exit code.
    assert_eq!(output.exit, Exit::OutOfMemory, "{output:?}");
    let usage = harness.launcher.read_usage("a").unwrap();
    assert!(usage.oom_kills.unwrap() >= 1, "{usage:?}");
    assert!(usage.memory_peak.unwrap() >= 250 << 20, "{usage:?}");
    // Files on a tmpfs count too.
    let output = harness.run_shell(
        "a",
        "head -c 120m /dev/zero >/dev/shm/a && head -c 120m /dev/zero >/tmp/b; head -c 300m /dev/zero >/dev/shm/c",
    );
    assert_ne!(output.exit, Exit::Exited(0), "{output:?}");
    assert_eq!(
        harness.run_shell("a", "kill -9 $$; exit 3").exit,
        Exit::Exited(3),
        "the init process cannot kill itself"
    );
    assert_eq!(harness.run_shell("a", "sh -c 'kill -9 $$'; exit $?").exit, Exit::Exited(137));
}

#[test]
fn the_agents_memory_does_not_count_for_the_worker() {
    // The worker moves a child into the agent's cgroup through inherited descriptors, like the real one.
    let worker = format!(
        "#!/bin/bash
agent() {{ for n in $(seq 5 $((4 + ATOLL_CGROUP_FDS))); do echo 0 >&$n; done; cat /proc/self/cgroup >/tmp/groups; {HOG}; }}
agent & wait $!
cat <&$ATOLL_OOM_FD >/tmp/oom.new; mv /tmp/oom.new /tmp/oom
exec sleep 100000
"
    );
    let Some(harness) = Harness::with_worker(&worker) else { return };
    let sandbox = harness.prepare_sandbox("a");
    if sandbox.enforced.memory != Enforcement::Enforced {
        return skip_test("no memory limit by cgroup");
    }
    let sandbox = harness.launcher.start_worker(&sandbox.name).unwrap();
    let reported = wait_for_file(&sandbox.dir.join("tmp/oom"));
    assert!(reported.lines().any(|line| line == "oom_kill 1"), "{reported}");
    assert!(wait_for_file(&sandbox.dir.join("tmp/groups")).contains("/../agent"));
    assert!(harness.launcher.find_sandbox("a").unwrap().unwrap().is_alive);
    assert_eq!(harness.launcher.read_usage("a").unwrap().oom_kills, Some(1));
    harness.launcher.destroy_sandbox("a").unwrap();
}

#[test]
fn a_fork_bomb_stops_at_the_process_limit() {
    let Some(harness) = Harness::new() else { return };
    let mut limited = spec("a");
    limited.limits.pids = 20;
    let sandbox = harness.launcher.prepare_sandbox(&limited).unwrap();
    if sandbox.enforced.pids == Enforcement::None {
        return skip_test("no process limit");
    }
    let output = harness.run_shell("a", "for n in $(seq 60); do sleep 20 & done; echo started");
    assert!(output.stderr.contains("fork"), "{output:?}");
    let bomb = harness.run_shell("a", "b() { b | b & }; b; sleep 1");
    assert_ne!(bomb.exit, Exit::Unknown);
    assert_eq!(harness.shell_output("a", "echo alive"), "alive");
}

#[test]
fn limits_open_files() {
    let Some(harness) = Harness::new() else { return };
    let mut limited = spec("a");
    limited.limits.open_files = 40;
    harness.launcher.prepare_sandbox(&limited).unwrap();
    assert_eq!(harness.shell_output("a", "ulimit -n; ulimit -Hn"), "40\n40");
}

#[test]
fn limits_and_measures_cpu_time() {
    let Some(harness) = Harness::new() else { return };
    let mut limited = spec("a");
    limited.limits = ResourceLimits { cpu_milli: 200, ..limited.limits };
    let sandbox = harness.launcher.prepare_sandbox(&limited).unwrap();
    if sandbox.enforced.cpu != Enforcement::Enforced {
        return skip_test("no CPU limit");
    }
    let before = harness.launcher.read_usage("a").unwrap().cpu_microseconds.unwrap_or(0);
    let output = harness.run_shell("a", "timeout 2 sh -c 'while :; do :; done'");
    assert_eq!(output.exit, Exit::Exited(124), "{output:?}");
    let Some(after) = harness.launcher.read_usage("a").unwrap().cpu_microseconds else {
        return skip_test("CPU time is not measured");
    };
    let used = Duration::from_micros(after - before);
    assert!(used < Duration::from_millis(900), "a fifth of a CPU for two seconds, not {used:?}");
    assert!(used > Duration::from_millis(20), "{used:?}");
}

#[test]
fn a_sandbox_sees_as_many_cpus_as_its_limit() {
    let Some(harness) = Harness::new() else { return };
    let all = std::thread::available_parallelism().unwrap().get();
    if all < 2 {
        return skip_test("only one CPU");
    }
    let of = |name: &str, cpu_milli| {
        let mut limited = spec(name);
        limited.limits.cpu_milli = cpu_milli;
        harness.launcher.prepare_sandbox(&limited).unwrap();
        harness.launcher.start_worker(name).unwrap();
        let reported = harness.shell_output(name, "nproc; grep Cpus_allowed_list /proc/self/status");
        let (count, which) = reported.split_once('\n').unwrap();
        (count.parse::<usize>().unwrap(), which.to_owned())
    };
    let (one, first) = of("a", 1000);
    if one == all {
        return skip_test("no cpuset controller");
    }
    assert_eq!(one, 1);
    let (fraction, second) = of("b", 100);
    assert_eq!(fraction, 1);
    assert_ne!(first, second, "another CPU is free");
    assert_eq!(of("c", u32::try_from(all).unwrap() * 1000).0, all);
    for name in ["a", "b", "c"] {
        harness.launcher.destroy_sandbox(name).unwrap();
    }
}

#[test]
fn two_busy_sandboxes_do_not_stay_on_one_cpu() {
    // The first and last worker keep a CPU busy in the agent's cgroup; the others idle.
    let busy = "#!/bin/bash
agent() { for n in $(seq 5 $((4 + ATOLL_CGROUP_FDS))); do echo 0 >&$n; done; while :; do grep Cpus_allowed_list /proc/self/status >/tmp/new; mv /tmp/new /tmp/now; done; }
[ -e /workspace/busy ] && agent &
exec sleep 100000
";
    let Some(harness) = Harness::with_worker(busy) else { return };
    let all = std::thread::available_parallelism().unwrap().get();
    let names: Vec<String> = (0..=all).map(|number| format!("s{number}")).collect();
    for name in &names {
        let mut limited = spec(name);
        limited.limits.cpu_milli = 1000;
        let sandbox = harness.launcher.prepare_sandbox(&limited).unwrap();
        if sandbox.enforced.cpu != Enforcement::Enforced || all < 2 {
            return skip_test("no CPU limit, or one CPU");
        }
        // The first and the last worker share a CPU; the others have one each.
        if [names.first(), names.last()].contains(&Some(name)) {
            harness.shell_output(name, "touch busy");
        }
        harness.launcher.start_worker(name).unwrap();
    }
    let now = |name: &str| {
        let sandbox = harness.launcher.find_sandbox(name).unwrap().unwrap();
        wait_for_file(&sandbox.dir.join("tmp/now"))
    };
    let (first, last) = (names.first().unwrap(), names.last().unwrap());
    if now(first).trim().contains(['-', ',']) {
        return skip_test("no cpuset controller");
    }
    wait_until("one of them to move to another CPU", || {
        // Each request lets the launcher sample the load.
        harness.launcher.read_cpu_times().unwrap();
        now(first) != now(last)
    });
    for name in &names {
        harness.launcher.destroy_sandbox(name).unwrap();
    }
}

#[test]
fn reports_a_worker_that_reaches_its_own_memory_limit() {
    let Some(harness) = Harness::with_worker(&format!("#!/bin/sh\n{HOG}; exit $?\n")) else { return };
    let ended = harness.launcher.subscribe_worker_exits();
    let limits = ResourceLimits { worker_memory_bytes: 16 << 20, ..spec("a").limits };
    let sandbox = harness.launcher.prepare_sandbox(&SandboxSpec { limits, ..spec("a") }).unwrap();
    if sandbox.enforced.memory != Enforcement::Enforced {
        return skip_test("no memory limit by cgroup");
    }
    harness.launcher.start_worker("a").unwrap();
    assert_eq!(ended.recv_timeout(Duration::from_secs(30)).unwrap().exit, Exit::OutOfMemory);
    let found = harness.launcher.find_sandbox("a").unwrap().unwrap();
    assert_eq!(found.exit, Some(Exit::OutOfMemory));
}

#[test]
fn children_of_a_program_have_default_slices() {
    // As a server does before it starts a launcher.
    atoll_jail::request_short_slices(atoll_jail::SliceInheritance::Inherit);
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    let output = harness.run_shell("a", "grep se.slice /proc/$$/sched; grep se.slice /proc/self/sched; true");
    let slices: Vec<&str> = output.stdout.lines().filter_map(|line| line.split_whitespace().last()).collect();
    match slices[..] {
        [program, child] if program == "100000" => assert_ne!(child, program, "{output:?}"),
        _ => skip_test("the kernel ignores short slices"),
    }
}
