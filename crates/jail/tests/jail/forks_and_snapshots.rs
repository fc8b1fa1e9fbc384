//! Forks and snapshots: isolation of their files, and removal of unused layers.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use atoll_jail::{CatalogKind, Error, Exit, IdMapKind, LaunchStep, SandboxInfo, SandboxSpec};
use atoll_test_wait::{wait_for, wait_until};

use crate::harness::{Harness, exec_shell, launcher_pid, require_root, run_program, skip_test, spec, wait_for_file};
use crate::unprivileged;

const WORKER: &str = "#!/bin/sh\nexec sleep 1000000\n";

fn from_snapshot(snapshot: &str, name: &str) -> SandboxSpec {
    SandboxSpec { snapshot: Some(snapshot.to_owned()), ..spec(name) }
}

impl Harness {
    fn fork(&self, parent: &str, name: &str) -> SandboxInfo {
        self.launcher.fork_sandbox(parent, &spec(name)).unwrap()
    }

    /// Output of a script in the running sandbox itself.
    fn exec_output(&self, name: &str, script: &str) -> String {
        let output = exec_shell(&self.launcher, name, false, script).unwrap();
        assert_eq!(output.exit, Exit::Exited(0), "{script}: {output:?}");
        output.stdout.trim().to_owned()
    }
}

/// The whole lifecycle, for any user of the launcher.
fn check_forks_are_isolated(harness: &Harness) {
    let ended = harness.launcher.subscribe_worker_exits();
    harness.prepare_sandbox("parent");
    harness.launcher.start_worker("parent").unwrap();
    harness.exec_output(
        "parent",
        "echo one >kept; echo one >changed; echo one >removed; mkdir -p d/e; echo x >d/e/f; echo h >~/h; chmod 700 d",
    );
    let child = harness.fork("parent", "child");
    assert!(!child.is_alive && !child.was_started);
    harness.exec_output("parent", "echo two >changed; rm removed; echo new >mine; echo y >>d/e/f");
    // A one-shot run sees the same files, even while the worker runs.
    assert_eq!(
        harness.shell_output("parent", "cat kept changed mine d/e/f; ls; echo from-run >run"),
        "one\ntwo\nnew\nx\ny\nchanged\nd\nkept\nmine"
    );
    assert_eq!(
        harness.exec_output("parent", "cat run; stat -c %U%a kept d run . ~"),
        "from-run\nagent644\nagent700\nagent644\nagent755\nagent755"
    );
    // Before and after its worker starts.
    assert_eq!(
        harness.shell_output("child", "cat kept changed removed d/e/f ~/h; ls; rm -r d"),
        "one\none\none\nx\nh\nchanged\nd\nkept\nremoved"
    );
    harness.launcher.start_worker("child").unwrap();
    assert_eq!(
        harness.exec_output("child", "stat -c %U kept changed ~; test ! -e d; echo three >kept; echo c >own; ls"),
        "agent\nagent\nagent\nchanged\nkept\nown\nremoved"
    );
    assert_eq!(harness.exec_output("parent", "cat kept d/e/f; test ! -e own"), "one\nx\ny");
    // A fork of a fork, with and without a running worker.
    harness.fork("child", "grandchild");
    harness.launcher.kill_sandbox("child").unwrap();
    harness.shell_output("child", "echo later >own");
    harness.fork("child", "sibling");
    assert_eq!(harness.shell_output("grandchild", "cat own kept"), "c\nthree");
    assert_eq!(harness.shell_output("sibling", "cat own kept"), "later\nthree");
    assert_eq!(harness.shell_output("child", "cat own"), "later");
    assert!(ended.try_recv().is_ok_and(|ended| ended.name == "child"), "the parent's worker keeps running");
    assert!(harness.launcher.find_sandbox("parent").unwrap().unwrap().is_alive);
    // Destroying works in any order.
    harness.launcher.destroy_sandbox("parent").unwrap();
    assert_eq!(harness.shell_output("grandchild", "cat own kept d/e/f 2>/dev/null; true"), "c\nthree");
    for name in ["child", "sibling", "grandchild"] {
        harness.launcher.destroy_sandbox(name).unwrap();
    }
    assert_eq!(harness.list_layers(), Vec::<String>::new(), "no layer is left");
}

#[test]
fn forks_start_with_the_same_files_and_diverge() {
    let Some(harness) = Harness::new() else { return };
    check_forks_are_isolated(&harness);
}

#[test]
fn forks_are_isolated_for_a_user_with_sub_ids() {
    let Some(harness) = unprivileged::with_sub_ids(WORKER) else { return };
    check_forks_are_isolated(&harness);
    // Only root can mount overlays that record renames of directories: the report and the sandboxes say so.
    let missing = harness.launcher.probe_host().unwrap().missing;
    assert!(missing.iter().any(|missing| missing.description.contains("renamed in place (EXDEV)")), "{missing:#?}");
    harness.prepare_sandbox("a");
    harness.shell_output("a", "mkdir d");
    let fork = harness.fork("a", "b");
    let parent = harness.launcher.find_sandbox("a").unwrap().unwrap();
    assert!(fork.has_fixed_dirs && parent.has_fixed_dirs, "{fork:?} {parent:?}");
    let refused = harness.run_shell("b", RENAME_SCRIPT.replace("FROM", "d").replace("TO", "e").as_str());
    assert!(refused.stderr.contains("Invalid cross-device link"), "{refused:?}");
}

/// Renames without copying, unlike `mv`.
const RENAME_SCRIPT: &str = "perl -e 'rename \"FROM\", \"TO\" or die $!'";

impl Harness {
    fn rename(&self, name: &str, from: &str, to: &str) {
        self.exec_output(name, &RENAME_SCRIPT.replace("FROM", from).replace("TO", to));
    }
}

#[test]
fn directories_can_be_renamed_after_forks_and_snapshots() {
    if !require_root() {
        return;
    }
    let Some(harness) = Harness::new() else { return };
    if harness.options.disk_pool_bytes.is_some() {
        return skip_test("a disk pool has no overlays");
    }
    let missing = harness.launcher.probe_host().unwrap().missing;
    assert!(!missing.iter().any(|missing| missing.description.contains("EXDEV")), "{missing:#?}");
    harness.prepare_sandbox("parent");
    harness.launcher.start_worker("parent").unwrap();
    harness.exec_output("parent", "git init -q .; mkdir -p src/deep; echo one >src/deep/f; git add -A");
    let child = harness.fork("parent", "child");
    assert!(!child.has_fixed_dirs);
    harness.launcher.start_worker("child").unwrap();
    // In the parent as well: both have a new layer.
    harness.exec_output("parent", "git mv src moved-by-git; echo two >>moved-by-git/deep/f");
    harness.rename("child", "src", "renamed");
    harness.exec_output("child", "mkdir src; echo new >src/f");
    harness.rename("child", "renamed/deep", "src/deep");
    assert_eq!(
        harness.exec_output("parent", "find . -path ./.git -prune -o -type f -print; cat moved-by-git/deep/f"),
        "./moved-by-git/deep/f\none\ntwo"
    );
    // The renames are in a sealed layer now.
    harness.fork("child", "grandchild");
    harness.launcher.start_worker("grandchild").unwrap();
    harness.rename("grandchild", "src", "again");
    assert_eq!(
        harness.exec_output("grandchild", "find again renamed | sort; cat again/deep/f"),
        "again\nagain/deep\nagain/deep/f\nagain/f\nrenamed\none"
    );
    assert_eq!(harness.exec_output("child", "cat src/deep/f; ls"), "one\nrenamed\nsrc");
    harness.launcher.create_snapshot("grandchild", "renamed").unwrap();
    harness.launcher.prepare_sandbox(&from_snapshot("renamed", "copy")).unwrap();
    // A one-shot run mounts the same overlay, without a worker.
    assert_eq!(harness.shell_output("copy", "rm again/f; rmdir renamed; cat again/deep/f; ls"), "one\nagain");
    let overlaid = harness.shell_output("copy", "grep ' /workspace ' /proc/self/mountinfo");
    assert!(overlaid.contains("redirect_dir=on") && overlaid.contains("nosuid,nodev"), "{overlaid}");
    // The disk space that is reserved for root stays reserved: overlayfs does not work as the host's root.
    assert_eq!(harness.exec_output("child", "echo x >own; stat -c %U own src src/deep"), "agent\nagent\nagent");
}

/// Layers of versions that mounted all overlays inside user namespaces have no mark.
#[test]
fn layers_of_an_earlier_version_stay_readable() {
    if !require_root() {
        return;
    }
    let Some(harness) = Harness::new() else { return };
    if harness.options.disk_pool_bytes.is_some() {
        return skip_test("a disk pool has no overlays");
    }
    harness.prepare_sandbox("old");
    harness.shell_output("old", "mkdir -p d/e; echo x >d/e/f");
    harness.fork("old", "child");
    for layer in harness.list_layers() {
        let _ = fs::remove_file(harness.layers_dir().join(layer).join("trusted-xattrs"));
    }
    let harness = harness.restart_after_kill();
    // The new directory hides the one below, by an attribute of the old kind.
    harness.shell_output("child", "rm -r d; mkdir d; echo y >d/f");
    harness.fork("child", "grandchild");
    for name in ["child", "grandchild"] {
        assert!(harness.launcher.find_sandbox(name).unwrap().unwrap().has_fixed_dirs);
        assert_eq!(harness.shell_output(name, "find d | sort"), "d\nd/f");
    }
}

/// After a crash of the machine, the overlays' marks of unsynced data are still there.
#[test]
fn a_store_copied_while_sandboxes_run_opens_like_after_a_crash() {
    if !require_root() {
        return;
    }
    let Some(harness) = Harness::new() else { return };
    if harness.options.disk_pool_bytes.is_some() {
        return skip_test("a disk pool has no overlays");
    }
    harness.prepare_sandbox("a");
    harness.launcher.start_worker("a").unwrap();
    harness.exec_output("a", "mkdir d; echo one >d/f; echo one >kept");
    harness.fork("a", "b");
    harness.launcher.start_worker("b").unwrap();
    harness.exec_output("a", "echo two >>kept; rm -r d");
    harness.exec_output("b", "echo three >>d/f");
    harness.rename("b", "d", "e");
    let copy = tempfile::Builder::new().prefix("atoll-jail-").tempdir_in("/var/tmp").unwrap();
    let copied = std::process::Command::new("cp").arg("-a").arg(&harness.options.data_dir).arg(copy.path()).status();
    assert!(copied.unwrap().success());
    let marks =
        std::process::Command::new("find").arg(copy.path()).args(["-path", "*/incompat/volatile/dirty"]).output();
    assert_eq!(String::from_utf8(marks.unwrap().stdout).unwrap().lines().count(), 2, "both overlays are marked");
    for name in ["a", "b"] {
        harness.launcher.destroy_sandbox(name).unwrap();
    }
    let mut options = harness.options.clone();
    options.data_dir = copy.path().join("data");
    let launcher = atoll_jail::Launcher::start(options).unwrap();
    let output = |name: &str, script: &str| run_program(&launcher, name, &["/bin/sh", "-c", script]).stdout;
    assert_eq!(output("a", "cat kept; ls"), "one\ntwo\nkept\n");
    assert_eq!(output("b", "cat kept e/f; ls"), "one\none\nthree\ne\nkept\n");
    assert!(launcher.start_worker("b").unwrap().is_alive);
    for name in ["a", "b"] {
        launcher.destroy_sandbox(name).unwrap();
    }
}

#[test]
fn forks_are_isolated_for_a_user_with_one_id() {
    let Some(harness) = unprivileged::with_one_id(WORKER) else { return };
    check_forks_are_isolated(&harness);
}

#[test]
fn a_fork_kills_the_parents_processes_except_its_worker() {
    let Some(harness) = Harness::with_worker(
        "#!/bin/sh\nsetsid sh -c 'while :; do echo x >>/workspace/log; done' &\nexec sleep 100000\n",
    ) else {
        return;
    };
    let sandbox = harness.prepare_sandbox("a");
    harness.shell_output("a", "chmod 777 .");
    harness.launcher.start_worker("a").unwrap();
    wait_for_file(&sandbox.workspace.join("log"));
    harness.fork("a", "b");
    let sizes: BTreeSet<String> = (0..20).map(|_| harness.shell_output("b", "stat -c %s log")).collect();
    assert_eq!(sizes.len(), 1, "a process still writes to the file: {sizes:?}");
    assert_eq!(harness.exec_output("a", "stat -c %s log"), sizes.into_iter().next().unwrap());
    assert!(harness.launcher.find_sandbox("a").unwrap().unwrap().is_alive);
}

#[test]
fn a_fork_fails_unchanged_while_a_file_is_open_for_writing() {
    let script = "#!/bin/sh\nexec 9>/workspace/held\necho begun >&9\nexec sleep 100000\n";
    let Some(harness) = Harness::with_worker(script) else { return };
    let sandbox = harness.prepare_sandbox("a");
    harness.shell_output("a", "chmod 777 .");
    harness.launcher.start_worker("a").unwrap();
    wait_for_file(&sandbox.workspace.join("held"));
    let error = harness.launcher.fork_sandbox("a", &spec("b")).unwrap_err();
    assert!(matches!(error, Error::StepFailed { step: LaunchStep::SwapLayers, .. }), "{error}");
    assert!(error.to_string().contains("open for writing"), "{error}");
    assert_eq!(harness.launcher.find_sandbox("b").unwrap(), None);
    assert_eq!(harness.exec_output("a", "cat held; echo y >more; cat more; touch ~/z"), "begun\ny");
    assert_eq!(harness.list_layers().len(), 1);
    assert_eq!(harness.shell_output("a", "cat more"), "y", "the sandbox is unchanged");
}

#[test]
fn forks_can_be_chained_deeply() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("s0");
    harness.shell_output("s0", "echo 0 >file0");
    harness.launcher.start_worker("s0").unwrap();
    for number in 1..=60 {
        let (parent, name) = (format!("s{}", number - 1), format!("s{number}"));
        harness.fork(&parent, &name);
        harness.shell_output(&name, &format!("echo {number} >file{number}; echo {number} >last"));
        if number > 1 {
            harness.launcher.destroy_sandbox(&parent).unwrap();
        }
    }
    assert_eq!(harness.shell_output("s60", "ls file* | wc -l; cat last file0 file30"), "61\n60\n0\n30");
    harness.launcher.start_worker("s60").unwrap();
    assert_eq!(harness.exec_output("s60", "cat file59 last"), "59\n60");
    // Repeated forks without changes add no lower layers.
    let before = harness.list_layers().len();
    for number in 0..20 {
        harness.fork("s0", &format!("again{number}"));
    }
    assert_eq!(harness.list_layers().len(), before + 20, "one top layer each");
    for sandbox in harness.launcher.list_sandboxes().unwrap() {
        harness.launcher.destroy_sandbox(&sandbox.name).unwrap();
    }
    assert_eq!(harness.list_layers(), Vec::<String>::new());
}

#[test]
fn snapshots_are_created_used_and_deleted() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    harness.launcher.start_worker("a").unwrap();
    harness.exec_output("a", "head -c 3000000 /dev/urandom >data; echo one >file");
    let made = harness.launcher.create_snapshot("a", "v1").unwrap();
    assert_eq!((made.name.as_str(), made.depth, &made.image), ("v1", 1, &None));
    harness.exec_output("a", "echo two >file");
    harness.launcher.create_snapshot("a", "v2").unwrap();
    let expected = Error::AlreadyExists { kind: CatalogKind::Snapshot, name: "v1".into() };
    assert_eq!(harness.launcher.create_snapshot("a", "v1"), Err(expected));
    for bad in ["", "..", "A", "a/b", ".x"] {
        assert!(matches!(harness.launcher.create_snapshot("a", bad), Err(Error::InvalidLabel { .. })), "{bad}");
    }
    harness.launcher.destroy_sandbox("a").unwrap();
    // Another launcher finds them too.
    let harness = harness.restart_after_kill();
    let listed = wait_for("the snapshots' sizes", || {
        let snapshots = harness.launcher.list_snapshots().unwrap();
        snapshots.iter().all(|snapshot| snapshot.bytes.is_some()).then_some(snapshots)
    });
    let depths: Vec<_> = listed.iter().map(|snapshot| (snapshot.name.as_str(), snapshot.depth)).collect();
    assert_eq!(depths, [("v1", 1), ("v2", 2)]);
    assert!(listed[0].bytes.is_some_and(|bytes| (3_000_000..4_000_000).contains(&bytes)), "{listed:?}");
    harness.launcher.prepare_sandbox(&from_snapshot("v1", "b")).unwrap();
    harness.launcher.prepare_sandbox(&from_snapshot("v2", "c")).unwrap();
    assert_eq!(harness.shell_output("b", "cat file; echo three >file; stat -c %U file"), "one\nagent");
    assert_eq!(harness.shell_output("c", "cat file"), "two");
    let missing = Error::NotFound { kind: CatalogKind::Snapshot, name: "v9".into() };
    assert_eq!(harness.launcher.prepare_sandbox(&from_snapshot("v9", "d")), Err(missing.clone()));
    assert!(matches!(harness.launcher.forget_snapshot("v9"), Err(Error::NotFound { .. })));
    harness.launcher.forget_snapshot("v1").unwrap();
    harness.launcher.forget_snapshot("v2").unwrap();
    assert_eq!(harness.launcher.list_snapshots().unwrap(), []);
    assert_eq!(harness.shell_output("b", "cat file"), "three", "a sandbox keeps the files that it started with");
    harness.launcher.destroy_sandbox("b").unwrap();
    assert_eq!(harness.shell_output("c", "cat file"), "two");
    harness.launcher.destroy_sandbox("c").unwrap();
    assert_eq!(harness.list_layers(), Vec::<String>::new());
}

#[test]
fn several_one_shot_runs_share_the_files_of_a_fork() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    harness.shell_output("a", "echo 0 >file");
    let fork = harness.fork("a", "b");
    std::thread::scope(|scope| {
        for number in 0..6 {
            let launcher = &harness.launcher;
            scope.spawn(move || {
                let script = format!("echo {number} >own{number}; until test -e go; do sleep 0.01; done");
                assert_eq!(run_program(launcher, "b", &["/bin/sh", "-c", &script]).exit, Exit::Exited(0));
            });
        }
        wait_until("all runs", || (0..6).all(|number| fork.workspace.join(format!("own{number}")).exists()));
        harness.launcher.start_worker("b").unwrap();
        let busy = harness.launcher.fork_sandbox("b", &spec("c"));
        assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
        harness.shell_output("b", "touch go");
    });
    assert_eq!(harness.shell_output("b", "cat own* | sort | tr -d '\\n'"), "012345");
    assert_eq!(harness.exec_output("b", "cat own* | wc -l"), "6");
}

#[test]
fn repairs_a_record_ahead_of_the_mounts_and_removes_unused_layers() {
    if !require_root() {
        return;
    }
    let Some(harness) = Harness::new() else { return };
    let sandbox = harness.prepare_sandbox("a");
    harness.launcher.start_worker("a").unwrap();
    harness.exec_output("a", "echo one >file");
    let pid = launcher_pid(&harness.options);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    // The state after a launcher that ended right after writing the record of a fork.
    let layers = harness.options.data_dir.join("layers");
    let record = sandbox.dir.join("record.json");
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    let top = value["stack"]["top"].as_str().unwrap().to_owned();
    value["stack"] = serde_json::json!({ "top": "fresh", "below": [top], "image": null });
    fs::write(&record, value.to_string()).unwrap();
    for directory in ["fresh/files", "fresh/files-work", "left/files/workspace", ".gone-old/files/x"] {
        fs::create_dir_all(layers.join(directory)).unwrap();
    }
    let Harness { launcher, options, data } = harness;
    drop(launcher);
    let harness = Harness { launcher: atoll_jail::Launcher::start(options.clone()).unwrap(), options, data };
    assert_eq!(harness.launcher.find_sandbox("a").unwrap().unwrap().workspace, sandbox.workspace);
    assert_eq!(harness.list_layers(), [top]);
    harness.exec_output("a", "echo two >file");
    harness.fork("a", "b");
    harness.exec_output("a", "echo three >file");
    assert_eq!(harness.shell_output("b", "cat file"), "two");
}

#[test]
fn a_launcher_may_be_killed_at_any_step() {
    if !require_root() {
        return;
    }
    let Some(mut harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    harness.launcher.start_worker("a").unwrap();
    for round in 0..10_u64 {
        harness.exec_output("a", &format!("echo {round} >file"));
        let pid = rustix::process::Pid::from_raw(launcher_pid(&harness.options).cast_signed()).unwrap();
        let name = format!("f{round}");
        std::thread::scope(|scope| {
            let launcher = &harness.launcher;
            let forking = scope.spawn(move || launcher.fork_sandbox("a", &spec(&name)));
            // A different delay each round, to hit different steps.
            std::thread::sleep(Duration::from_micros(round * 600));
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            assert!(matches!(forking.join().unwrap(), Ok(_) | Err(Error::LauncherGone)));
        });
        let Harness { launcher, options, data } = harness;
        drop(launcher);
        harness = Harness { launcher: atoll_jail::Launcher::start(options.clone()).unwrap(), options, data };
        assert!(harness.launcher.find_sandbox("a").unwrap().unwrap().is_alive, "round {round}");
        assert_eq!(harness.exec_output("a", "cat file; echo x >file"), round.to_string());
        assert_eq!(harness.shell_output("a", "cat file"), "x", "round {round}");
        if harness.launcher.find_sandbox(&format!("f{round}")).unwrap().is_some() {
            assert_eq!(harness.shell_output(&format!("f{round}"), "cat file"), round.to_string());
        }
    }
    for sandbox in harness.launcher.list_sandboxes().unwrap() {
        harness.launcher.destroy_sandbox(&sandbox.name).unwrap();
    }
    assert_eq!(harness.list_layers(), Vec::<String>::new());
}

#[test]
fn reports_missing_idmapped_mounts_and_overlays() {
    if !require_root() {
        return;
    }
    // overlayfs supports neither idmapped mounts nor being an upper layer.
    let harness = Harness::with(WORKER, |options| {
        let data = options.data_dir.display().to_string();
        let command = format!("{} {}", options.exe.display(), options.args.join(" "));
        let script = format!(
            "set -e; mkdir -p {data}/low {data}/up {data}/work {data}/all; mount -t overlay overlay -o lowerdir={data}/low,upperdir={data}/up,workdir={data}/work {data}/all; exec {command}"
        );
        options.exe = "/usr/bin/unshare".into();
        options.args = ["-m", "/bin/sh", "-c", &script].map(str::to_owned).to_vec();
        options.data_dir.push("all");
    });
    let [one, other] = ["a", "b"].map(|name| harness.prepare_sandbox(name));
    assert_eq!((one.enforced.ids, other.enforced.ids), (IdMapKind::CommonRange, IdMapKind::CommonRange));
    let report = harness.launcher.probe_host().unwrap();
    assert_eq!(report.enforced.map(|enforced| enforced.ids), Some(IdMapKind::CommonRange));
    assert!(report.missing.iter().any(|missing| missing.description.contains("same range")), "{report:#?}");
    assert_eq!(harness.shell_output("a", "id -u; touch f; stat -c %U f . ~ /tmp"), "1000\nagent\nagent\nagent\nroot");
    for name in ["a", "b"] {
        let error = harness.launcher.fork_sandbox(name, &spec("c")).unwrap_err();
        assert!(matches!(error, Error::StepFailed { step: LaunchStep::MountOverlay, .. }), "{error}");
        assert!(error.to_string().contains("ext4"), "{error}");
        harness.launcher.start_worker(name).unwrap();
    }
    assert_eq!(harness.exec_output("a", "ls"), "f", "the sandbox is unchanged");
    for name in ["a", "b"] {
        harness.launcher.destroy_sandbox(name).unwrap();
    }
}

#[test]
fn a_paused_sandbox_cannot_be_forked() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    harness.launcher.start_worker("a").unwrap();
    harness.launcher.pause_sandbox("a").unwrap();
    let refused = harness.launcher.fork_sandbox("a", &spec("b"));
    assert!(matches!(&refused, Err(Error::Busy { reason, .. }) if reason.contains("paused")), "{refused:?}");
    harness.launcher.resume_sandbox("a").unwrap();
    harness.fork("a", "b");
}

#[test]
fn a_failed_preparation_leaves_no_layer() {
    if !require_root() {
        return;
    }
    // Room for the id ranges of the store and a few sandboxes.
    let harness = Harness::with(WORKER, |options| options.id_base = u32::MAX - 5 * 65_536);
    let mut made = 0;
    let error = loop {
        match harness.launcher.prepare_sandbox(&spec(&format!("a{made}"))) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 10);
    };
    assert!(matches!(error, Error::NoFreeIdRange { .. }), "{error}");
    assert_eq!(harness.list_layers().len(), made);
    assert!(harness.launcher.fork_sandbox("a0", &spec("b")).is_err());
    assert_eq!(harness.list_layers().len(), made + 1, "the parent has a sealed layer and a new top layer");
}

#[test]
fn destroying_an_incomplete_sandbox_releases_unused_layers() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    let half = harness.options.data_dir.join("sandboxes/half");
    fs::create_dir(&half).unwrap();
    // The state after a power failure.
    fs::write(half.join("record.json"), "").unwrap();
    let Harness { launcher, options, data } = harness;
    drop(launcher);
    let harness = Harness { launcher: atoll_jail::Launcher::start(options.clone()).unwrap(), options, data };
    harness.launcher.destroy_sandbox("a").unwrap();
    assert_eq!(harness.list_layers().len(), 1, "the unreadable record might refer to it");
    harness.launcher.destroy_sandbox("half").unwrap();
    wait_until("unused layers to be removed", || harness.list_layers().is_empty());
}
