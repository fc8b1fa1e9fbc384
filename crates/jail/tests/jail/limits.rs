//! Limits, as far as this machine enforces them.

use std::time::Duration;

use atoll_jail::{Bound, Exit, Limits};

use crate::harness::{Harness, skip, spec};
use crate::isolation::wait_for;

const HOG: &str = "head -c 300m /dev/zero | tail -c 299m >/dev/null";

#[test]
fn too_much_memory_is_told_from_another_end() {
    let Some(harness) = Harness::new() else { return };
    let place = harness.prepared("a");
    if place.enforced.memory != Bound::Enforced {
        return skip("memory_not_enforced");
    }
    let output = harness.shell("a", &format!("{HOG}; exit $?"));
    // The shell survives tail and says how that ended.
    assert_eq!(output.exit, Exit::OutOfMemory, "{output:?}");
    let usage = harness.launcher.usage("a").unwrap();
    assert!(usage.oom_kills.unwrap() >= 1, "{usage:?}");
    assert!(usage.memory_peak.unwrap() >= 250 << 20, "{usage:?}");
    // Files in memory count too.
    let output = harness.shell(
        "a",
        "head -c 120m /dev/zero >/dev/shm/a && head -c 120m /dev/zero >/tmp/b; head -c 300m /dev/zero >/dev/shm/c",
    );
    assert_ne!(output.exit, Exit::Exited(0), "{output:?}");
    assert_eq!(harness.shell("a", "kill -9 $$; exit 3").exit, Exit::Exited(3), "the first process can't kill itself");
    assert_eq!(harness.shell("a", "sh -c 'kill -9 $$'; exit $?").exit, Exit::Exited(137));
}

#[test]
fn the_agents_memory_is_not_the_workers() {
    // The worker lets a child enter the agent's cgroup through the descriptors that it inherited, as the real one does.
    let worker = format!(
        "#!/bin/bash
agent() {{ for n in $(seq 5 $((4 + ATOLL_CGROUP_FDS))); do echo 0 >&$n; done; cat /proc/self/cgroup >/tmp/groups; {HOG}; }}
agent & wait $!
cat <&$ATOLL_OOM_FD >/tmp/oom.new; mv /tmp/oom.new /tmp/oom
exec sleep 100000
"
    );
    let Some(harness) = Harness::with_worker(&worker) else { return };
    let place = harness.prepared("a");
    if place.enforced.memory != Bound::Enforced {
        return skip("memory_not_enforced");
    }
    let place = harness.launcher.start_worker(&place.name).unwrap();
    let told = wait_for(&place.dir.join("tmp/oom"));
    assert!(told.lines().any(|line| line == "oom_kill 1"), "{told}");
    assert!(wait_for(&place.dir.join("tmp/groups")).contains("/../agent"));
    assert!(harness.launcher.find("a").unwrap().unwrap().alive);
    assert_eq!(harness.launcher.usage("a").unwrap().oom_kills, Some(1));
    harness.launcher.destroy("a").unwrap();
}

#[test]
fn a_fork_bomb_ends_at_the_limit() {
    let Some(harness) = Harness::new() else { return };
    let mut wanted = spec("a");
    wanted.limits.pids = 20;
    let place = harness.launcher.prepare(&wanted).unwrap();
    if place.enforced.pids == Bound::No {
        return skip("pids not enforced");
    }
    let output = harness.shell("a", "for n in $(seq 60); do sleep 20 & done; echo started");
    assert!(output.stderr.contains("fork"), "{output:?}");
    let bomb = harness.shell("a", "b() { b | b & }; b; sleep 1");
    assert_ne!(bomb.exit, Exit::Unknown);
    assert_eq!(harness.said("a", "echo alive"), "alive");
}

#[test]
fn open_files_are_bounded() {
    let Some(harness) = Harness::new() else { return };
    let mut wanted = spec("a");
    wanted.limits.open_files = 40;
    harness.launcher.prepare(&wanted).unwrap();
    assert_eq!(harness.said("a", "ulimit -n; ulimit -Hn"), "40\n40");
}

#[test]
fn processor_time_is_bounded_and_counted() {
    let Some(harness) = Harness::new() else { return };
    let mut wanted = spec("a");
    wanted.limits = Limits { cpu_milli: 200, ..wanted.limits };
    let place = harness.launcher.prepare(&wanted).unwrap();
    if place.enforced.cpu != Bound::Enforced {
        return skip("cpu not enforced");
    }
    let before = harness.launcher.usage("a").unwrap().cpu_microseconds.unwrap_or(0);
    let output = harness.shell("a", "timeout 2 sh -c 'while :; do :; done'");
    assert_eq!(output.exit, Exit::Exited(124), "{output:?}");
    let Some(after) = harness.launcher.usage("a").unwrap().cpu_microseconds else {
        return skip("processor time is not counted");
    };
    let used = Duration::from_micros(after - before);
    assert!(used < Duration::from_millis(900), "a fifth of a core for two seconds, not {used:?}");
    assert!(used > Duration::from_millis(20), "{used:?}");
}

#[test]
fn a_sandbox_has_no_more_processors_than_it_may_use() {
    let Some(harness) = Harness::new() else { return };
    let all = std::thread::available_parallelism().unwrap().get();
    if all < 2 {
        return skip("one_processor");
    }
    let of = |name: &str, cpu_milli| {
        let mut wanted = spec(name);
        wanted.limits.cpu_milli = cpu_milli;
        harness.launcher.prepare(&wanted).unwrap();
        harness.launcher.start_worker(name).unwrap();
        let told = harness.said(name, "nproc; grep Cpus_allowed_list /proc/self/status");
        let (count, which) = told.split_once('\n').unwrap();
        (count.parse::<usize>().unwrap(), which.to_owned())
    };
    let (one, first) = of("a", 1000);
    if one == all {
        return skip("no_cpuset");
    }
    assert_eq!(one, 1);
    let (fraction, second) = of("b", 100);
    assert_eq!(fraction, 1);
    assert_ne!(first, second, "there is one that nobody had");
    assert_eq!(of("c", u32::try_from(all).unwrap() * 1000).0, all);
    for name in ["a", "b", "c"] {
        harness.launcher.destroy(name).unwrap();
    }
}

#[test]
fn two_that_work_hard_do_not_stay_on_one_processor() {
    // Two workers that keep a processor busy in the agent's cgroup, and one in between that does nothing.
    let busy = "#!/bin/bash
agent() { for n in $(seq 5 $((4 + ATOLL_CGROUP_FDS))); do echo 0 >&$n; done; while :; do grep Cpus_allowed_list /proc/self/status >/tmp/new; mv /tmp/new /tmp/now; done; }
[ -e /workspace/busy ] && agent &
exec sleep 100000
";
    let Some(harness) = Harness::with_worker(busy) else { return };
    let all = std::thread::available_parallelism().unwrap().get();
    let names: Vec<String> = (0..=all).map(|number| format!("s{number}")).collect();
    for name in &names {
        let mut wanted = spec(name);
        wanted.limits.cpu_milli = 1000;
        let place = harness.launcher.prepare(&wanted).unwrap();
        if place.enforced.cpu != Bound::Enforced || all < 2 {
            return skip("cpu_not_enforced");
        }
        // The first and the last get the same: those between have one each.
        if [names.first(), names.last()].contains(&Some(name)) {
            harness.said(name, "touch busy");
        }
        harness.launcher.start_worker(name).unwrap();
    }
    let now = |name: &str| {
        let place = harness.launcher.find(name).unwrap().unwrap();
        wait_for(&place.dir.join("tmp/now"))
    };
    let (first, last) = (names.first().unwrap(), names.last().unwrap());
    if now(first).trim().contains(['-', ',']) {
        return skip("no_cpuset");
    }
    let began = std::time::Instant::now();
    while now(first) == now(last) {
        assert!(began.elapsed() < Duration::from_secs(60), "they still share one: {}", now(first));
        harness.launcher.clocks().unwrap();
        std::thread::sleep(Duration::from_millis(600));
    }
    for name in &names {
        harness.launcher.destroy(name).unwrap();
    }
}

#[test]
fn what_a_program_starts_waits_like_everybody() {
    // As a server does before it has a launcher.
    atoll_jail::prompt(atoll_jail::Heirs::Same);
    let Some(harness) = Harness::new() else { return };
    harness.prepared("a");
    let output = harness.shell("a", "grep se.slice /proc/$$/sched; grep se.slice /proc/self/sched; true");
    let slices: Vec<&str> = output.stdout.lines().filter_map(|line| line.split_whitespace().last()).collect();
    match slices[..] {
        [program, child] if program == "100000" => assert_ne!(child, program, "{output:?}"),
        _ => skip("no_wishes_for_slices"),
    }
}
