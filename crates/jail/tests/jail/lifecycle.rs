//! Start, adoption and end of sandboxes.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use atoll_jail::{Enforcement, Error, Exit, LaunchStep, Launcher, WorkerExit};
use atoll_test_wait::wait_until;

use crate::harness::{
    Harness, cgroup_dirs, exec_shell, launcher_pid, launchers_with_lock, options, processes_with, run_program,
    skip_test, spec, wait_for_file,
};

/// A worker that leaves a daemon in its own session, reparented to pid 1.
fn daemonizing_worker(mark: &str) -> String {
    format!("#!/bin/sh\nsetsid sh -c 'sleep 1000{mark} & echo x >/tmp/ready' &\nwait\nexec sleep 2000{mark}\n")
}

fn open_null() -> OwnedFd {
    fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap().into()
}

pub fn list_mounts() -> BTreeSet<String> {
    fs::read_to_string("/proc/self/mounts").unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn destroying_leaves_no_processes_files_or_mounts() {
    let mark = format!("{:05}", std::process::id() % 100_000);
    let before = list_mounts();
    let Some(harness) = Harness::with_worker(&daemonizing_worker(&mark)) else { return };
    let sandbox = harness.prepare_sandbox("a");
    harness.launcher.start_worker("a").unwrap();
    wait_for_file(&sandbox.dir.join("tmp/ready"));
    assert!(!processes_with(&format!("1000{mark}")).is_empty(), "the daemon runs");
    harness.shell_output("a", "mkdir -p deep/er && chmod 000 deep/er && ln -s / out && mkfifo pipe");
    assert!(!cgroup_dirs(&harness.options).is_empty() || sandbox.enforced.pids != Enforcement::Enforced);
    harness.launcher.destroy_sandbox("a").unwrap();
    for number in ["1000", "2000"] {
        assert_eq!(processes_with(&format!("{number}{mark}")), Vec::<PathBuf>::new());
    }
    assert_eq!(cgroup_dirs(&harness.options), Vec::<PathBuf>::new());
    let left: Vec<_> = fs::read_dir(harness.options.data_dir.join("sandboxes"))
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left, [".lock"]);
    assert_eq!(list_mounts(), before);
    assert_eq!(harness.launcher.find_sandbox("a").unwrap(), None);
    assert_eq!(harness.launcher.list_sandboxes().unwrap(), []);
    harness.launcher.destroy_sandbox("a").unwrap();
    assert!(matches!(harness.launcher.kill_sandbox("a"), Err(Error::UnknownSandbox { .. })));
    let pid = launcher_pid(&harness.options);
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    assert_eq!(children.trim(), "", "a zombie is left");
}

#[test]
fn killing_keeps_the_files_and_another_worker_can_start() {
    let Some(harness) = Harness::new() else { return };
    let ended = harness.launcher.subscribe_worker_exits();
    let sandbox = harness.prepare_sandbox("a");
    harness.shell_output("a", "echo kept >/workspace/file");
    for _ in 0..3 {
        assert!(harness.launcher.start_worker("a").unwrap().is_alive);
        assert_eq!(harness.launcher.start_worker("a"), Err(Error::AlreadyRunning { name: "a".into() }));
        harness.launcher.kill_sandbox("a").unwrap();
        let found = harness.launcher.find_sandbox("a").unwrap().unwrap();
        assert_eq!((found.is_alive, found.exit), (false, Some(Exit::Signalled(9))));
        let reported = ended.recv_timeout(Duration::from_secs(5)).unwrap();
        assert_eq!(reported, WorkerExit { name: "a".into(), exit: Exit::Signalled(9) });
    }
    harness.launcher.kill_sandbox("a").unwrap();
    assert_eq!(fs::read_to_string(sandbox.workspace.join("file")).unwrap(), "kept\n");
    assert_eq!(harness.shell_output("a", "cat file"), "kept");
}

#[test]
fn reports_how_a_worker_exited() {
    let Some(harness) = Harness::with_worker("#!/bin/sh\necho last words >&2\nexit 7\n") else { return };
    let ended = harness.launcher.subscribe_worker_exits();
    let sandbox = harness.prepare_sandbox("a");
    harness.launcher.start_worker("a").unwrap();
    assert_eq!(ended.recv_timeout(Duration::from_secs(10)).unwrap().exit, Exit::Exited(7));
    let found = harness.launcher.find_sandbox("a").unwrap().unwrap();
    assert_eq!((found.is_alive, found.exit), (false, Some(Exit::Exited(7))));
    assert_eq!(fs::read_to_string(sandbox.log).unwrap(), "last words\n");
    assert!(found.connect().is_err(), "no worker listens");
}

#[test]
fn a_new_launcher_adopts_running_sandboxes() {
    let Some(harness) = Harness::with_worker("#!/bin/bash\nexec sleep 100000\n") else { return };
    harness.prepare_sandbox("living");
    harness.prepare_sandbox("idle");
    harness.prepare_sandbox("dead");
    harness.launcher.start_worker("living").unwrap();
    harness.launcher.start_worker("dead").unwrap();
    harness.launcher.kill_sandbox("dead").unwrap();
    let Harness { launcher, data, options } = harness;
    let gone = launcher.subscribe_worker_exits();
    let pid = launcher_pid(&options);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    assert!(gone.recv_timeout(Duration::from_secs(10)).is_err());
    assert_eq!(launcher.list_sandboxes(), Err(Error::LauncherGone));
    drop(launcher);

    // A partly removed sandbox and an empty directory.
    let sandboxes = options.data_dir.join("sandboxes");
    fs::create_dir_all(sandboxes.join(".gone-old-1/workspace/x")).unwrap();
    fs::create_dir(sandboxes.join("empty")).unwrap();
    fs::create_dir_all(sandboxes.join("half/workspace")).unwrap();
    fs::create_dir_all(sandboxes.join("broken/workspace")).unwrap();
    fs::write(sandboxes.join("broken/record.json"), "{").unwrap();

    let launcher = Launcher::start(options.clone()).unwrap();
    let ended = launcher.subscribe_worker_exits();
    let adopted = launcher.list_sandboxes().unwrap();
    let alive: Vec<_> = adopted.iter().map(|sandbox| (sandbox.name.as_str(), sandbox.is_alive)).collect();
    assert_eq!(alive, [("dead", false), ("idle", false), ("living", true)]);
    assert_eq!(adopted[2].labels.get("atoll").map(String::as_str), Some("1"));
    assert_eq!(launcher.start_worker("living"), Err(Error::AlreadyRunning { name: "living".into() }));
    assert_eq!(run_program(&launcher, "living", &["/bin/true"]).exit, Exit::Exited(0));
    assert!(matches!(launcher.read_usage("living").unwrap().processes, Some(1) | None));
    let idle = launcher.find_sandbox("idle").unwrap().unwrap();
    assert!(idle.id_range != adopted[2].id_range || idle.id_range.is_none());
    assert_eq!(launcher.find_sandbox("empty").unwrap(), None);
    assert_eq!(launcher.find_sandbox("half").unwrap(), None);
    assert!(launcher.prepare_sandbox(&spec("half")).is_ok());
    assert_eq!(launcher.prepare_sandbox(&spec("broken")), Err(Error::Incomplete { name: "broken".into() }));
    launcher.destroy_sandbox("broken").unwrap();

    launcher.kill_sandbox("living").unwrap();
    assert_eq!(
        ended.recv_timeout(Duration::from_secs(5)).unwrap(),
        WorkerExit { name: "living".into(), exit: Exit::Unknown }
    );
    for name in ["living", "idle", "dead", "half"] {
        launcher.destroy_sandbox(name).unwrap();
    }
    assert_eq!(cgroup_dirs(&options), Vec::<PathBuf>::new());
    wait_until("the partly removed sandbox to be gone", || !sandboxes.join(".gone-old-1").exists());
    let templates = fs::read_dir(options.data_dir.join("etc")).unwrap().count();
    assert_eq!(templates, 2, "templates of the adopted sandbox and of this launcher");
    drop(launcher);
    drop(data);
}

#[test]
fn one_shot_runs_die_with_the_launcher_and_sandboxes_do_not() {
    let mark = format!("7{:05}", std::process::id() % 100_000);
    let Some(harness) = Harness::with_worker(&format!("#!/bin/sh\nexec sleep 4000{mark}\n")) else { return };
    harness.prepare_sandbox("a");
    harness.launcher.start_worker("a").unwrap();
    let argv = ["/bin/sleep".to_owned(), format!("3000{mark}")];
    let mut running = harness.launcher.run_program("a", &argv, open_null(), open_null(), open_null()).unwrap();
    let Harness { launcher, data: _data, options } = harness;
    drop(launcher);
    assert_eq!(running.wait(Duration::from_secs(5)), Err(Error::LauncherGone));
    wait_until("the one-shot run to die", || processes_with(&format!("3000{mark}")).is_empty());
    assert!(!processes_with(&format!("4000{mark}")).is_empty(), "the worker keeps running");
    let launcher = Launcher::start(options).unwrap();
    launcher.destroy_sandbox("a").unwrap();
    assert!(processes_with(&format!("4000{mark}")).is_empty());
}

#[test]
fn only_one_launcher_uses_a_data_directory() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    let second = Launcher::start(harness.options.clone()).unwrap();
    assert!(second.probe_host().is_ok(), "a probe needs no lock");
    let waiting = std::thread::spawn(move || second.list_sandboxes());
    wait_until("the second launcher to wait for the lock", || launchers_with_lock(&harness.options).len() == 2);
    assert!(!waiting.is_finished());
    drop(harness.launcher);
    assert_eq!(waiting.join().unwrap().unwrap().len(), 1);
}

#[test]
fn a_one_shot_run_can_time_out_and_be_dropped() {
    let mark = format!("8{:05}", std::process::id() % 100_000);
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    let sleep = |number: &str| ["/bin/sh".to_owned(), "-c".to_owned(), format!("sleep {number}{mark} & wait")];
    let mut running = harness.launcher.run_program("a", &sleep("1"), open_null(), open_null(), open_null()).unwrap();
    assert_eq!(running.wait(Duration::from_millis(100)), Ok(Exit::TimedOut));
    assert!(processes_with(&format!("sleep\01{mark}")).is_empty());
    let running = harness.launcher.run_program("a", &sleep("2"), open_null(), open_null(), open_null()).unwrap();
    drop(running);
    harness.launcher.kill_sandbox("a").unwrap();
    assert!(processes_with(&format!("sleep\02{mark}")).is_empty());
    let mut running =
        harness.launcher.run_program("a", &["false".to_owned()], open_null(), open_null(), open_null()).unwrap();
    assert_eq!(running.wait(Duration::from_secs(10)), Ok(Exit::Exited(1)), "found in PATH");
}

#[test]
fn errors_name_the_step_that_failed_in_the_sandbox() {
    let Some(harness) = Harness::with_worker("#!/no/such/interpreter\n") else { return };
    harness.prepare_sandbox("a");
    let error = harness.launcher.start_worker("a").unwrap_err();
    assert!(matches!(&error, Error::StepFailed { step: LaunchStep::Execute, .. }), "{error}");
    assert!(error.to_string().contains("not visible inside"), "{error}");
    let found = harness.launcher.find_sandbox("a").unwrap().unwrap();
    assert_eq!((found.is_alive, found.exit), (false, None));
    let argv = ["/no/such/program".to_owned()];
    let error = harness.launcher.run_program("a", &argv, open_null(), open_null(), open_null()).unwrap_err();
    assert!(error.to_string().contains("failed to execute the program (/no/such/program)"), "{error}");
    assert!(matches!(
        harness.launcher.run_program("b", &argv, open_null(), open_null(), open_null()),
        Err(Error::UnknownSandbox { .. })
    ));
    harness.launcher.kill_sandbox("a").unwrap();
    assert_eq!(cgroup_dirs(&harness.options), Vec::<PathBuf>::new());
    fs::remove_file(&harness.options.worker_binary).unwrap();
    let error = harness.launcher.start_worker("a").unwrap_err();
    assert!(
        matches!(&error, Error::StepFailed { step: LaunchStep::CloneMounts, detail, .. } if detail.contains("test-worker")),
        "{error}"
    );
}

#[test]
fn validates_names_and_limits() {
    let Some(harness) = Harness::new() else { return };
    assert!(matches!(harness.launcher.prepare_sandbox(&spec("../x")), Err(Error::InvalidName { .. })));
    assert!(matches!(harness.launcher.destroy_sandbox("../x"), Err(Error::InvalidName { .. })));
    assert_eq!(harness.launcher.find_sandbox("../x"), Ok(None));
    let mut invalid = spec("a");
    invalid.limits.memory_bytes = 1;
    assert!(matches!(harness.launcher.prepare_sandbox(&invalid), Err(Error::InvalidSpec { .. })));
    let first = harness.prepare_sandbox("a");
    assert_eq!(harness.launcher.prepare_sandbox(&spec("a")).unwrap(), first, "preparing again changes nothing");
}

#[test]
fn connects_to_a_socket_with_a_long_path() {
    let data = tempfile::Builder::new().prefix("atoll-jail-").tempdir_in("/var/tmp").unwrap();
    let mut options = options(
        data.path(),
        "#!/bin/bash\nexec python3 -c 'import socket; s=socket.socket(fileno=3); c,_=s.accept(); c.sendall(b\"hello\")'\n",
    );
    options.data_dir = data.path().join("d".repeat(100)).join("e".repeat(100));
    let launcher = Launcher::start(options).unwrap();
    launcher.prepare_sandbox(&spec("a")).unwrap();
    let sandbox = launcher.start_worker("a").unwrap();
    assert!(sandbox.worker_socket.as_os_str().len() > 200);
    let mut greeting = String::new();
    sandbox.connect().unwrap().read_to_string(&mut greeting).unwrap();
    assert_eq!(greeting, "hello");
    launcher.destroy_sandbox("a").unwrap();
}

#[test]
fn terminal_signals_do_not_reach_the_launcher() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    let pid = launcher_pid(&harness.options);
    for signal in ["INT", "HUP", "QUIT"] {
        assert!(Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status().unwrap().success());
    }
    assert_eq!(harness.launcher.list_sandboxes().unwrap().len(), 1);
    let group = rustix::process::getpgid(rustix::process::Pid::from_raw(pid.cast_signed())).unwrap();
    assert_eq!(group.as_raw_nonzero().get(), pid.cast_signed(), "the launcher does not lead its process group");
}

#[test]
fn starts_fifty_sandboxes_at_once() {
    let Some(harness) = Harness::new() else { return };
    std::thread::scope(|scope| {
        for number in 0..50 {
            let launcher = &harness.launcher;
            scope.spawn(move || {
                let name = format!("s{number}");
                launcher.prepare_sandbox(&spec(&name)).unwrap();
                assert!(launcher.start_worker(&name).unwrap().is_alive);
                assert_eq!(run_program(launcher, &name, &["/bin/true"]).exit, Exit::Exited(0));
            });
        }
    });
    let sandboxes = harness.launcher.list_sandboxes().unwrap();
    assert_eq!(sandboxes.iter().filter(|sandbox| sandbox.is_alive).count(), 50);
    let ranges: BTreeSet<u32> = sandboxes.iter().filter_map(|sandbox| Some(sandbox.id_range?.first)).collect();
    assert!(ranges.len() == 50 || sandboxes[0].id_range.is_none());
    std::thread::scope(|scope| {
        for sandbox in &sandboxes {
            scope.spawn(|| harness.launcher.destroy_sandbox(&sandbox.name).unwrap());
        }
    });
    assert_eq!(harness.launcher.list_sandboxes().unwrap(), []);
    assert_eq!(cgroup_dirs(&harness.options), Vec::<PathBuf>::new());
}

fn exec_background(launcher: &Launcher, script: &str) -> atoll_jail::RunningProgram {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned);
    launcher.exec_program("a", &argv, false, open_null(), open_null(), open_null()).unwrap()
}

#[test]
fn killing_an_exec_kills_its_descendants() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    harness.launcher.start_worker("a").unwrap();
    let mark = format!("7777{:05}", std::process::id() % 100_000);
    let other = exec_background(&harness.launcher, "exec sleep 100000");
    let mut running =
        exec_background(&harness.launcher, &format!("sh -c 'setsid sleep {mark} & sleep {mark} & wait' & wait"));
    let sleeps = || {
        let is_it = |path: &PathBuf| fs::read(path.join("cmdline")).is_ok_and(|line| line.starts_with(b"sleep"));
        processes_with(&mark).into_iter().filter(is_it).count()
    };
    wait_until("the descendants to start", || sleeps() == 2);
    let (woken, wakes) = std::sync::mpsc::channel();
    running.on_exit(move || woken.send(()).unwrap());
    running.kill().unwrap();
    wakes.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(running.wait(Duration::ZERO).unwrap(), Exit::Signalled(9));
    wait_until("the descendants to die", || sleeps() == 0);
    // A wake-up by the launcher's end reports that; a late subscription is woken at once.
    let (woken, wakes) = std::sync::mpsc::channel();
    let mut other = other;
    other.on_exit(move || woken.send(()).unwrap());
    let harness = harness.restart_after_kill();
    wakes.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(other.wait(Duration::ZERO), Err(Error::LauncherGone));
    let (woken, wakes) = std::sync::mpsc::channel();
    running.on_exit(move || woken.send(()).unwrap());
    wakes.try_recv().unwrap();
    harness.launcher.destroy_sandbox("a").unwrap();
}

#[test]
fn an_exec_that_runs_out_of_memory_reports_it() {
    let Some(harness) = Harness::new() else { return };
    let sandbox = harness.prepare_sandbox("a");
    harness.launcher.start_worker("a").unwrap();
    if sandbox.enforced.memory != Enforcement::Enforced {
        return skip_test("memory is not bounded by a cgroup");
    }
    let hog = exec_shell(&harness.launcher, "a", false, "head -c 400m /dev/zero | tail -c 399m >/dev/null").unwrap();
    assert_eq!(hog.exit, Exit::OutOfMemory, "{hog:?}");
    assert_eq!(
        exec_shell(&harness.launcher, "a", false, "exit 3").unwrap().exit,
        Exit::Exited(3),
        "earlier OOM kills do not count"
    );
}

#[test]
fn limits_the_number_of_execs_per_sandbox() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    harness.launcher.start_worker("a").unwrap();
    let running: Vec<_> = (0..64).map(|_| exec_background(&harness.launcher, "exec sleep 100000")).collect();
    let refused = exec_shell(&harness.launcher, "a", false, "true");
    assert!(matches!(&refused, Err(Error::Busy { reason, .. }) if reason.contains("64 commands")), "{refused:?}");
    drop(running);
    wait_until("the killed programs to be gone", || exec_shell(&harness.launcher, "a", false, "true").is_ok());
    harness.launcher.destroy_sandbox("a").unwrap();
}
