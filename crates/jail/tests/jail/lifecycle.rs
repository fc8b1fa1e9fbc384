//! How sandboxes begin, are found again and end.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use atoll_jail::{Bound, Ended, Error, Exit, Launcher, Step};

use crate::harness::{Harness, enter, groups_of, launcher_of, options, processes_with, run, skip, spec};
use crate::isolation::wait_for;

/// A worker that leaves a daemon behind, in a session of its own and without a parent but pid 1.
fn daemonising(mark: &str) -> String {
    format!("#!/bin/sh\nsetsid sh -c 'sleep 1000{mark} & echo x >/tmp/ready' &\nwait\nexec sleep 2000{mark}\n")
}

fn null() -> OwnedFd {
    fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap().into()
}

pub fn mounts() -> BTreeSet<String> {
    fs::read_to_string("/proc/self/mounts").unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_end_leaves_nothing() {
    let mark = format!("{:05}", std::process::id() % 100_000);
    let before = mounts();
    let Some(harness) = Harness::with_worker(&daemonising(&mark)) else { return };
    let place = harness.prepared("a");
    harness.launcher.start_worker("a").unwrap();
    wait_for(&place.dir.join("tmp/ready"));
    assert!(!processes_with(&format!("1000{mark}")).is_empty(), "the daemon runs");
    harness.said("a", "mkdir -p deep/er && chmod 000 deep/er && ln -s / out && mkfifo pipe");
    assert!(!groups_of(&harness.options).is_empty() || place.enforced.pids != Bound::Enforced);
    harness.launcher.destroy("a").unwrap();
    for number in ["1000", "2000"] {
        assert_eq!(processes_with(&format!("{number}{mark}")), Vec::<PathBuf>::new());
    }
    assert_eq!(groups_of(&harness.options), Vec::<PathBuf>::new());
    let left: Vec<_> = fs::read_dir(harness.options.data_dir.join("sandboxes"))
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left, [".lock"]);
    assert_eq!(mounts(), before);
    assert_eq!(harness.launcher.find("a").unwrap(), None);
    assert_eq!(harness.launcher.list().unwrap(), []);
    harness.launcher.destroy("a").unwrap();
    assert!(matches!(harness.launcher.kill("a"), Err(Error::Unknown { .. })));
    let pid = launcher_of(&harness.options);
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    assert_eq!(children.trim(), "", "no zombie is left");
}

#[test]
fn killing_keeps_the_files_and_another_worker_can_start() {
    let Some(harness) = Harness::new() else { return };
    let ended = harness.launcher.ended();
    let place = harness.prepared("a");
    harness.said("a", "echo kept >/workspace/file");
    for _ in 0..3 {
        assert!(harness.launcher.start_worker("a").unwrap().alive);
        assert_eq!(harness.launcher.start_worker("a"), Err(Error::Alive { name: "a".into() }));
        harness.launcher.kill("a").unwrap();
        let found = harness.launcher.find("a").unwrap().unwrap();
        assert_eq!((found.alive, found.exit), (false, Some(Exit::Signalled(9))));
        let told = ended.recv_timeout(Duration::from_secs(5)).unwrap();
        assert_eq!(told, Ended { name: "a".into(), exit: Exit::Signalled(9) });
    }
    harness.launcher.kill("a").unwrap();
    assert_eq!(fs::read_to_string(place.workspace.join("file")).unwrap(), "kept\n");
    assert_eq!(harness.said("a", "cat file"), "kept");
}

#[test]
fn the_end_of_a_worker_is_told_as_it_was() {
    let Some(harness) = Harness::with_worker("#!/bin/sh\necho last words >&2\nexit 7\n") else { return };
    let ended = harness.launcher.ended();
    let place = harness.prepared("a");
    harness.launcher.start_worker("a").unwrap();
    assert_eq!(ended.recv_timeout(Duration::from_secs(10)).unwrap().exit, Exit::Exited(7));
    let found = harness.launcher.find("a").unwrap().unwrap();
    assert_eq!((found.alive, found.exit), (false, Some(Exit::Exited(7))));
    assert_eq!(fs::read_to_string(place.log).unwrap(), "last words\n");
    assert!(found.connect().is_err(), "nobody listens");
}

#[test]
fn a_new_launcher_takes_over_what_lives() {
    let Some(harness) = Harness::with_worker("#!/bin/bash\nexec sleep 100000\n") else { return };
    harness.prepared("living");
    harness.prepared("idle");
    harness.prepared("dead");
    harness.launcher.start_worker("living").unwrap();
    harness.launcher.start_worker("dead").unwrap();
    harness.launcher.kill("dead").unwrap();
    let Harness { launcher, data, options } = harness;
    let gone = launcher.ended();
    let pid = launcher_of(&options);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    assert!(gone.recv_timeout(Duration::from_secs(10)).is_err());
    assert_eq!(launcher.list(), Err(Error::Gone));
    drop(launcher);

    // Something of a sandbox that was half removed, and a directory that was never more.
    let sandboxes = options.data_dir.join("sandboxes");
    fs::create_dir_all(sandboxes.join(".gone-old-1/workspace/x")).unwrap();
    fs::create_dir(sandboxes.join("empty")).unwrap();
    fs::create_dir_all(sandboxes.join("half/workspace")).unwrap();
    fs::create_dir_all(sandboxes.join("broken/workspace")).unwrap();
    fs::write(sandboxes.join("broken/record.json"), "{").unwrap();

    let launcher = Launcher::start(options.clone()).unwrap();
    let ended = launcher.ended();
    let places = launcher.list().unwrap();
    let alive: Vec<_> = places.iter().map(|place| (place.name.as_str(), place.alive)).collect();
    assert_eq!(alive, [("dead", false), ("idle", false), ("living", true)]);
    assert_eq!(places[2].labels.get("atoll").map(String::as_str), Some("1"));
    assert_eq!(launcher.start_worker("living"), Err(Error::Alive { name: "living".into() }));
    assert_eq!(run(&launcher, "living", &["/bin/true"]).exit, Exit::Exited(0));
    assert!(matches!(launcher.usage("living").unwrap().processes, Some(1) | None));
    let idle = launcher.find("idle").unwrap().unwrap();
    assert!(idle.range != places[2].range || idle.range.is_none());
    assert_eq!(launcher.find("empty").unwrap(), None);
    assert_eq!(launcher.find("half").unwrap(), None);
    assert!(launcher.prepare(&spec("half")).is_ok());
    assert_eq!(launcher.prepare(&spec("broken")), Err(Error::HalfMade { name: "broken".into() }));
    launcher.destroy("broken").unwrap();

    launcher.kill("living").unwrap();
    assert_eq!(
        ended.recv_timeout(Duration::from_secs(5)).unwrap(),
        Ended { name: "living".into(), exit: Exit::Unknown }
    );
    for name in ["living", "idle", "dead", "half"] {
        launcher.destroy(name).unwrap();
    }
    assert_eq!(groups_of(&options), Vec::<PathBuf>::new());
    let start = Instant::now();
    while sandboxes.join(".gone-old-1").exists() {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(10));
    }
    let templates = fs::read_dir(options.data_dir.join("etc")).unwrap().count();
    assert_eq!(templates, 2, "that of the sandbox that lived at the start, and this launcher's");
    drop(launcher);
    drop(data);
}

#[test]
fn a_launcher_that_goes_leaves_the_sandboxes_alone_and_takes_its_one_shots() {
    let mark = format!("7{:05}", std::process::id() % 100_000);
    let Some(harness) = Harness::with_worker(&format!("#!/bin/sh\nexec sleep 4000{mark}\n")) else { return };
    harness.prepared("a");
    harness.launcher.start_worker("a").unwrap();
    let argv = ["/bin/sleep".to_owned(), format!("3000{mark}")];
    let mut running = harness.launcher.run("a", &argv, null(), null(), null()).unwrap();
    let Harness { launcher, data: _data, options } = harness;
    drop(launcher);
    assert_eq!(running.wait(Duration::from_secs(5)), Err(Error::Gone));
    let start = Instant::now();
    while !processes_with(&format!("3000{mark}")).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(10), "the one-shot outlives its launcher");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!processes_with(&format!("4000{mark}")).is_empty(), "the worker does");
    let launcher = Launcher::start(options).unwrap();
    launcher.destroy("a").unwrap();
    assert!(processes_with(&format!("4000{mark}")).is_empty());
}

#[test]
fn one_launcher_at_a_time() {
    let Some(harness) = Harness::new() else { return };
    harness.prepared("a");
    let second = Launcher::start(harness.options.clone()).unwrap();
    assert!(second.probe().is_ok(), "looking is free");
    let waiting = std::thread::spawn(move || second.list());
    std::thread::sleep(Duration::from_millis(200));
    assert!(!waiting.is_finished(), "it waits for the first to go");
    drop(harness.launcher);
    assert_eq!(waiting.join().unwrap().unwrap().len(), 1);
}

#[test]
fn a_one_shot_can_be_timed_out_and_dropped() {
    let mark = format!("8{:05}", std::process::id() % 100_000);
    let Some(harness) = Harness::new() else { return };
    harness.prepared("a");
    let sleep = |number: &str| ["/bin/sh".to_owned(), "-c".to_owned(), format!("sleep {number}{mark} & wait")];
    let mut running = harness.launcher.run("a", &sleep("1"), null(), null(), null()).unwrap();
    assert_eq!(running.wait(Duration::from_millis(100)), Ok(Exit::TimedOut));
    assert!(processes_with(&format!("sleep\01{mark}")).is_empty());
    let running = harness.launcher.run("a", &sleep("2"), null(), null(), null()).unwrap();
    drop(running);
    harness.launcher.kill("a").unwrap();
    assert!(processes_with(&format!("sleep\02{mark}")).is_empty());
    let mut running = harness.launcher.run("a", &["false".to_owned()], null(), null(), null()).unwrap();
    assert_eq!(running.wait(Duration::from_secs(10)), Ok(Exit::Exited(1)), "found by its name alone");
}

#[test]
fn what_fails_inside_is_named() {
    let Some(harness) = Harness::with_worker("#!/no/such/interpreter\n") else { return };
    harness.prepared("a");
    let error = harness.launcher.start_worker("a").unwrap_err();
    assert!(matches!(&error, Error::Step { step: Step::Execute, .. }), "{error}");
    assert!(error.to_string().contains("not visible inside"), "{error}");
    let found = harness.launcher.find("a").unwrap().unwrap();
    assert_eq!((found.alive, found.exit), (false, None));
    let argv = ["/no/such/program".to_owned()];
    let error = harness.launcher.run("a", &argv, null(), null(), null()).unwrap_err();
    assert!(error.to_string().contains("failed to execute the program (/no/such/program)"), "{error}");
    assert!(matches!(harness.launcher.run("b", &argv, null(), null(), null()), Err(Error::Unknown { .. })));
    harness.launcher.kill("a").unwrap();
    assert_eq!(groups_of(&harness.options), Vec::<PathBuf>::new());
    fs::remove_file(&harness.options.worker).unwrap();
    let error = harness.launcher.start_worker("a").unwrap_err();
    assert!(
        matches!(&error, Error::Step { step: Step::Trees, detail, .. } if detail.contains("test-worker")),
        "{error}"
    );
}

#[test]
fn names_and_limits_are_checked() {
    let Some(harness) = Harness::new() else { return };
    assert!(matches!(harness.launcher.prepare(&spec("../x")), Err(Error::Name { .. })));
    assert!(matches!(harness.launcher.destroy("../x"), Err(Error::Name { .. })));
    assert_eq!(harness.launcher.find("../x"), Ok(None));
    let mut wanted = spec("a");
    wanted.limits.memory_bytes = 1;
    assert!(matches!(harness.launcher.prepare(&wanted), Err(Error::Spec { .. })));
    let first = harness.prepared("a");
    assert_eq!(harness.launcher.prepare(&spec("a")).unwrap(), first, "once is enough");
}

#[test]
fn a_long_path_is_no_obstacle() {
    let data = tempfile::Builder::new().prefix("atoll-jail-").tempdir_in("/var/tmp").unwrap();
    let mut options = options(
        data.path(),
        "#!/bin/bash\nexec python3 -c 'import socket; s=socket.socket(fileno=3); c,_=s.accept(); c.sendall(b\"hello\")'\n",
    );
    options.data_dir = data.path().join("d".repeat(100)).join("e".repeat(100));
    let launcher = Launcher::start(options).unwrap();
    launcher.prepare(&spec("a")).unwrap();
    let place = launcher.start_worker("a").unwrap();
    assert!(place.socket.as_os_str().len() > 200);
    let mut said = String::new();
    place.connect().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "hello");
    launcher.destroy("a").unwrap();
}

#[test]
fn a_terminals_signals_do_not_reach_it() {
    let Some(harness) = Harness::new() else { return };
    harness.prepared("a");
    let pid = launcher_of(&harness.options);
    for signal in ["INT", "HUP", "QUIT"] {
        assert!(Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status().unwrap().success());
    }
    assert_eq!(harness.launcher.list().unwrap().len(), 1);
    let group = rustix::process::getpgid(rustix::process::Pid::from_raw(pid.cast_signed())).unwrap();
    assert_eq!(group.as_raw_nonzero().get(), pid.cast_signed(), "it leads a group of its own");
}

#[test]
fn fifty_at_once() {
    let Some(harness) = Harness::new() else { return };
    std::thread::scope(|scope| {
        for number in 0..50 {
            let launcher = &harness.launcher;
            scope.spawn(move || {
                let name = format!("s{number}");
                launcher.prepare(&spec(&name)).unwrap();
                assert!(launcher.start_worker(&name).unwrap().alive);
                assert_eq!(run(launcher, &name, &["/bin/true"]).exit, Exit::Exited(0));
            });
        }
    });
    let places = harness.launcher.list().unwrap();
    assert_eq!(places.iter().filter(|place| place.alive).count(), 50);
    let ranges: BTreeSet<u32> = places.iter().filter_map(|place| Some(place.range?.first)).collect();
    assert!(ranges.len() == 50 || places[0].range.is_none());
    std::thread::scope(|scope| {
        for place in &places {
            scope.spawn(|| harness.launcher.destroy(&place.name).unwrap());
        }
    });
    assert_eq!(harness.launcher.list().unwrap(), []);
    assert_eq!(groups_of(&harness.options), Vec::<PathBuf>::new());
}

fn entered(launcher: &Launcher, script: &str) -> atoll_jail::Running {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned);
    launcher.enter("a", &argv, false, null(), null(), null()).unwrap()
}

#[test]
fn a_program_in_a_living_sandbox_is_ended_with_all_that_it_started() {
    let Some(harness) = Harness::new() else { return };
    harness.prepared("a");
    harness.launcher.start_worker("a").unwrap();
    let mark = format!("7777{:05}", std::process::id() % 100_000);
    let other = entered(&harness.launcher, "exec sleep 100000");
    let mut running = entered(&harness.launcher, &format!("sh -c 'setsid sleep {mark} & sleep {mark} & wait' & wait"));
    let sleeps = || {
        let is_it = |path: &PathBuf| fs::read(path.join("cmdline")).is_ok_and(|line| line.starts_with(b"sleep"));
        processes_with(&mark).into_iter().filter(is_it).count()
    };
    let until = |count: usize| {
        let start = Instant::now();
        while sleeps() != count {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", processes_with(&mark));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until(2);
    let (woken, wakes) = std::sync::mpsc::channel();
    running.when_ended(move || woken.send(()).unwrap());
    running.kill().unwrap();
    wakes.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(running.wait(Duration::ZERO).unwrap(), Exit::Signalled(9));
    until(0);
    // Whoever is woken by the launcher's end hears of that; and who asks too late is woken at once.
    let (woken, wakes) = std::sync::mpsc::channel();
    let mut other = other;
    other.when_ended(move || woken.send(()).unwrap());
    let harness = harness.killed();
    wakes.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(other.wait(Duration::ZERO), Err(Error::Gone));
    let (woken, wakes) = std::sync::mpsc::channel();
    running.when_ended(move || woken.send(()).unwrap());
    wakes.try_recv().unwrap();
    harness.launcher.destroy("a").unwrap();
}

#[test]
fn a_program_that_ran_out_of_memory_says_so() {
    let Some(harness) = Harness::new() else { return };
    let place = harness.prepared("a");
    harness.launcher.start_worker("a").unwrap();
    if place.enforced.memory != Bound::Enforced {
        return skip("memory is not bounded by a cgroup");
    }
    let hog = enter(&harness.launcher, "a", false, "head -c 400m /dev/zero | tail -c 399m >/dev/null").unwrap();
    assert_eq!(hog.exit, Exit::OutOfMemory, "{hog:?}");
    assert_eq!(enter(&harness.launcher, "a", false, "exit 3").unwrap().exit, Exit::Exited(3), "that was before");
}

#[test]
fn so_many_programs_and_no_more_run_in_one_sandbox() {
    let Some(harness) = Harness::new() else { return };
    harness.prepared("a");
    harness.launcher.start_worker("a").unwrap();
    let running: Vec<_> = (0..64).map(|_| entered(&harness.launcher, "exec sleep 100000")).collect();
    let refused = enter(&harness.launcher, "a", false, "true");
    assert!(matches!(&refused, Err(Error::Busy { reason, .. }) if reason.contains("64 commands")), "{refused:?}");
    drop(running);
    let start = Instant::now();
    while enter(&harness.launcher, "a", false, "true").is_err() {
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    harness.launcher.destroy("a").unwrap();
}
