//! Forks and snapshots: what each sandbox sees of its own and of the others' files, and what is left of them.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use atoll_jail::{Error, Exit, Ids, Kept, Place, Spec, Step};

use crate::harness::{Harness, as_root, enter, launcher_of, run, spec};
use crate::{isolation::wait_for, ordinary};

const WORKER: &str = "#!/bin/sh\nexec sleep 1000000\n";

fn of(snapshot: &str, name: &str) -> Spec {
    Spec { snapshot: Some(snapshot.to_owned()), ..spec(name) }
}

impl Harness {
    fn fork(&self, parent: &str, name: &str) -> Place {
        self.launcher.fork(parent, &spec(name)).unwrap()
    }

    /// What a script says in the living sandbox itself.
    fn entered(&self, name: &str, script: &str) -> String {
        let output = enter(&self.launcher, name, false, script).unwrap();
        assert_eq!(output.exit, Exit::Exited(0), "{script}: {output:?}");
        output.stdout.trim().to_owned()
    }
}

/// The whole story, for whoever runs the launcher.
fn forks_are_isolated(harness: &Harness) {
    let ended = harness.launcher.ended();
    harness.prepared("parent");
    harness.launcher.start_worker("parent").unwrap();
    harness.entered(
        "parent",
        "echo one >kept; echo one >changed; echo one >removed; mkdir -p d/e; echo x >d/e/f; echo h >~/h; chmod 700 d",
    );
    let child = harness.fork("parent", "child");
    assert!(!child.alive && !child.started);
    harness.entered("parent", "echo two >changed; rm removed; echo new >mine; echo y >>d/e/f");
    // A one-shot works on the same files, also while the worker lives.
    assert_eq!(
        harness.said("parent", "cat kept changed mine d/e/f; ls; echo from-run >run"),
        "one\ntwo\nnew\nx\ny\nchanged\nd\nkept\nmine"
    );
    assert_eq!(
        harness.entered("parent", "cat run; stat -c %U%a kept d run . ~"),
        "from-run\nagent644\nagent700\nagent644\nagent755\nagent755"
    );
    // Before its worker lives, and after.
    assert_eq!(
        harness.said("child", "cat kept changed removed d/e/f ~/h; ls; rm -r d"),
        "one\none\none\nx\nh\nchanged\nd\nkept\nremoved"
    );
    harness.launcher.start_worker("child").unwrap();
    assert_eq!(
        harness.entered("child", "stat -c %U kept changed ~; test ! -e d; echo three >kept; echo c >own; ls"),
        "agent\nagent\nagent\nchanged\nkept\nown\nremoved"
    );
    assert_eq!(harness.entered("parent", "cat kept d/e/f; test ! -e own"), "one\nx\ny");
    // A fork of a fork, of one that lives and of one that doesn't.
    harness.fork("child", "grandchild");
    harness.launcher.kill("child").unwrap();
    harness.said("child", "echo later >own");
    harness.fork("child", "sibling");
    assert_eq!(harness.said("grandchild", "cat own kept"), "c\nthree");
    assert_eq!(harness.said("sibling", "cat own kept"), "later\nthree");
    assert_eq!(harness.said("child", "cat own"), "later");
    assert!(ended.try_recv().is_ok_and(|ended| ended.name == "child"), "the parent's worker lives on");
    assert!(harness.launcher.find("parent").unwrap().unwrap().alive);
    // In any order.
    harness.launcher.destroy("parent").unwrap();
    assert_eq!(harness.said("grandchild", "cat own kept d/e/f 2>/dev/null; true"), "c\nthree");
    for name in ["child", "sibling", "grandchild"] {
        harness.launcher.destroy(name).unwrap();
    }
    assert_eq!(harness.layers(), Vec::<String>::new(), "no layer stays");
}

#[test]
fn forks_have_the_same_files_and_then_their_own() {
    let Some(harness) = Harness::new() else { return };
    forks_are_isolated(&harness);
}

#[test]
fn forks_of_a_user_with_sub_ids() {
    let Some(harness) = ordinary::with_sub_ids(WORKER) else { return };
    forks_are_isolated(&harness);
}

#[test]
fn forks_of_a_user_with_one_id() {
    let Some(harness) = ordinary::with_one_id(WORKER) else { return };
    forks_are_isolated(&harness);
}

#[test]
fn what_runs_in_the_parent_is_ended_and_its_worker_is_not() {
    let Some(harness) = Harness::with_worker(
        "#!/bin/sh\nsetsid sh -c 'while :; do echo x >>/workspace/log; done' &\nexec sleep 100000\n",
    ) else {
        return;
    };
    let place = harness.prepared("a");
    harness.said("a", "chmod 777 .");
    harness.launcher.start_worker("a").unwrap();
    wait_for(&place.workspace.join("log"));
    harness.fork("a", "b");
    let sizes: BTreeSet<String> = (0..20).map(|_| harness.said("b", "stat -c %s log")).collect();
    assert_eq!(sizes.len(), 1, "nobody writes to it any more: {sizes:?}");
    assert_eq!(harness.entered("a", "stat -c %s log"), sizes.into_iter().next().unwrap());
    assert!(harness.launcher.find("a").unwrap().unwrap().alive);
}

#[test]
fn a_file_that_is_open_for_writing_is_a_refusal_and_changes_nothing() {
    let script = "#!/bin/sh\nexec 9>/workspace/held\necho begun >&9\nexec sleep 100000\n";
    let Some(harness) = Harness::with_worker(script) else { return };
    let place = harness.prepared("a");
    harness.said("a", "chmod 777 .");
    harness.launcher.start_worker("a").unwrap();
    wait_for(&place.workspace.join("held"));
    let error = harness.launcher.fork("a", &spec("b")).unwrap_err();
    assert!(matches!(error, Error::Step { step: Step::Exchange, .. }), "{error}");
    assert!(error.to_string().contains("open for writing"), "{error}");
    assert_eq!(harness.launcher.find("b").unwrap(), None);
    assert_eq!(harness.entered("a", "cat held; echo y >more; cat more; touch ~/z"), "begun\ny");
    assert_eq!(harness.layers().len(), 1);
    assert_eq!(harness.said("a", "cat more"), "y", "it goes on as it was");
}

#[test]
fn chains_may_be_deep() {
    let Some(harness) = Harness::new() else { return };
    harness.prepared("s0");
    harness.said("s0", "echo 0 >file0");
    harness.launcher.start_worker("s0").unwrap();
    for number in 1..=60 {
        let (parent, name) = (format!("s{}", number - 1), format!("s{number}"));
        harness.fork(&parent, &name);
        harness.said(&name, &format!("echo {number} >file{number}; echo {number} >last"));
        if number > 1 {
            harness.launcher.destroy(&parent).unwrap();
        }
    }
    assert_eq!(harness.said("s60", "ls file* | wc -l; cat last file0 file30"), "61\n60\n0\n30");
    harness.launcher.start_worker("s60").unwrap();
    assert_eq!(harness.entered("s60", "cat file59 last"), "59\n60");
    // One that is forked again and again without a change stands on no more than before.
    let before = harness.layers().len();
    for number in 0..20 {
        harness.fork("s0", &format!("again{number}"));
    }
    assert_eq!(harness.layers().len(), before + 20, "a top for each, and nothing else");
    for place in harness.launcher.list().unwrap() {
        harness.launcher.destroy(&place.name).unwrap();
    }
    assert_eq!(harness.layers(), Vec::<String>::new());
}

#[test]
fn snapshots_are_kept_begun_with_and_forgotten() {
    let Some(harness) = Harness::new() else { return };
    harness.prepared("a");
    harness.launcher.start_worker("a").unwrap();
    harness.entered("a", "head -c 3000000 /dev/urandom >data; echo one >file");
    let made = harness.launcher.snapshot("a", "v1").unwrap();
    assert_eq!((made.name.as_str(), made.depth, &made.image), ("v1", 1, &None));
    harness.entered("a", "echo two >file");
    harness.launcher.snapshot("a", "v2").unwrap();
    let taken = Error::Taken { kind: Kept::Snapshot, name: "v1".into() };
    assert_eq!(harness.launcher.snapshot("a", "v1"), Err(taken));
    for bad in ["", "..", "A", "a/b", ".x"] {
        assert!(matches!(harness.launcher.snapshot("a", bad), Err(Error::Label { .. })), "{bad}");
    }
    harness.launcher.destroy("a").unwrap();
    // Another launcher knows them too.
    let harness = harness.killed();
    let start = Instant::now();
    let kept = loop {
        let kept = harness.launcher.snapshots().unwrap();
        if kept.iter().all(|snapshot| snapshot.bytes.is_some()) || start.elapsed() > Duration::from_secs(10) {
            break kept;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let shown: Vec<_> = kept.iter().map(|snapshot| (snapshot.name.as_str(), snapshot.depth)).collect();
    assert_eq!(shown, [("v1", 1), ("v2", 2)]);
    assert!(kept[0].bytes.is_some_and(|bytes| (3_000_000..4_000_000).contains(&bytes)), "{kept:?}");
    harness.launcher.prepare(&of("v1", "b")).unwrap();
    harness.launcher.prepare(&of("v2", "c")).unwrap();
    assert_eq!(harness.said("b", "cat file; echo three >file; stat -c %U file"), "one\nagent");
    assert_eq!(harness.said("c", "cat file"), "two");
    let missing = Error::NotKept { kind: Kept::Snapshot, name: "v9".into() };
    assert_eq!(harness.launcher.prepare(&of("v9", "d")), Err(missing.clone()));
    assert!(matches!(harness.launcher.forget_snapshot("v9"), Err(Error::NotKept { .. })));
    harness.launcher.forget_snapshot("v1").unwrap();
    harness.launcher.forget_snapshot("v2").unwrap();
    assert_eq!(harness.launcher.snapshots().unwrap(), []);
    assert_eq!(harness.said("b", "cat file"), "three", "who began with it keeps it");
    harness.launcher.destroy("b").unwrap();
    assert_eq!(harness.said("c", "cat file"), "two");
    harness.launcher.destroy("c").unwrap();
    assert_eq!(harness.layers(), Vec::<String>::new());
}

#[test]
fn several_one_shots_share_the_files_of_a_fork() {
    let Some(harness) = Harness::new() else { return };
    harness.prepared("a");
    harness.said("a", "echo 0 >file");
    harness.fork("a", "b");
    std::thread::scope(|scope| {
        for number in 0..6 {
            let launcher = &harness.launcher;
            scope.spawn(move || {
                let script = format!("echo {number} >own{number}; sleep 0.3; cat own* | wc -l");
                assert_eq!(run(launcher, "b", &["/bin/sh", "-c", &script]).exit, Exit::Exited(0));
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        harness.launcher.start_worker("b").unwrap();
        let busy = harness.launcher.fork("b", &spec("c"));
        assert!(matches!(busy, Err(Error::Busy { .. }) | Ok(_)), "{busy:?}");
    });
    assert_eq!(harness.said("b", "cat own* | sort | tr -d '\\n'"), "012345");
    assert_eq!(harness.entered("b", "cat own* | wc -l"), "6");
}

#[test]
fn a_record_ahead_of_the_mounts_is_mended_and_layers_without_a_reference_go() {
    if !as_root() {
        return;
    }
    let Some(harness) = Harness::new() else { return };
    let place = harness.prepared("a");
    harness.launcher.start_worker("a").unwrap();
    harness.entered("a", "echo one >file");
    let pid = launcher_of(&harness.options);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    // As one leaves it that ends after it has written the record of a fork, and before anything else.
    let layers = harness.options.data_dir.join("layers");
    let record = place.dir.join("record.json");
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
    assert_eq!(harness.launcher.find("a").unwrap().unwrap().workspace, place.workspace);
    assert_eq!(harness.layers(), [top]);
    harness.entered("a", "echo two >file");
    harness.fork("a", "b");
    harness.entered("a", "echo three >file");
    assert_eq!(harness.said("b", "cat file"), "two");
}

#[test]
fn a_launcher_may_be_killed_at_any_step() {
    if !as_root() {
        return;
    }
    let Some(mut harness) = Harness::new() else { return };
    harness.prepared("a");
    harness.launcher.start_worker("a").unwrap();
    for round in 0..10_u64 {
        harness.entered("a", &format!("echo {round} >file"));
        let pid = rustix::process::Pid::from_raw(launcher_of(&harness.options).cast_signed()).unwrap();
        let name = format!("f{round}");
        std::thread::scope(|scope| {
            let launcher = &harness.launcher;
            let forking = scope.spawn(move || launcher.fork("a", &spec(&name)));
            std::thread::sleep(Duration::from_micros(round * 600));
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            assert!(matches!(forking.join().unwrap(), Ok(_) | Err(Error::Gone)));
        });
        let Harness { launcher, options, data } = harness;
        drop(launcher);
        harness = Harness { launcher: atoll_jail::Launcher::start(options.clone()).unwrap(), options, data };
        assert!(harness.launcher.find("a").unwrap().unwrap().alive, "round {round}");
        assert_eq!(harness.entered("a", "cat file; echo x >file"), round.to_string());
        assert_eq!(harness.said("a", "cat file"), "x", "round {round}");
        if harness.launcher.find(&format!("f{round}")).unwrap().is_some() {
            assert_eq!(harness.said(&format!("f{round}"), "cat file"), round.to_string());
        }
    }
    for place in harness.launcher.list().unwrap() {
        harness.launcher.destroy(&place.name).unwrap();
    }
    assert_eq!(harness.layers(), Vec::<String>::new());
}

#[test]
fn where_ids_cannot_be_mapped_all_have_one_range_and_where_layers_cannot_be_stacked_it_is_said() {
    if !as_root() {
        return;
    }
    // An overlay can do neither.
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
    let [one, other] = ["a", "b"].map(|name| harness.prepared(name));
    assert_eq!((one.enforced.ids, other.enforced.ids), (Ids::Common, Ids::Common));
    let report = harness.launcher.probe().unwrap();
    assert_eq!(report.enforced.map(|enforced| enforced.ids), Some(Ids::Common));
    assert!(report.missing.iter().any(|missing| missing.what.contains("same range")), "{report:#?}");
    assert_eq!(harness.said("a", "id -u; touch f; stat -c %U f . ~ /tmp"), "1000\nagent\nagent\nagent\nroot");
    for name in ["a", "b"] {
        let error = harness.launcher.fork(name, &spec("c")).unwrap_err();
        assert!(matches!(error, Error::Step { step: Step::Layers, .. }), "{error}");
        assert!(error.to_string().contains("ext4"), "{error}");
        harness.launcher.start_worker(name).unwrap();
    }
    assert_eq!(harness.entered("a", "ls"), "f", "it goes on as it was");
    for name in ["a", "b"] {
        harness.launcher.destroy(name).unwrap();
    }
}

#[test]
fn one_that_is_paused_is_not_forked() {
    let Some(harness) = Harness::new() else { return };
    harness.prepared("a");
    harness.launcher.start_worker("a").unwrap();
    harness.launcher.pause("a").unwrap();
    let refused = harness.launcher.fork("a", &spec("b"));
    assert!(matches!(&refused, Err(Error::Busy { reason, .. }) if reason.contains("paused")), "{refused:?}");
    harness.launcher.resume("a").unwrap();
    harness.fork("a", "b");
}

#[test]
fn a_sandbox_that_could_not_be_made_leaves_no_layer() {
    if !as_root() {
        return;
    }
    // There is room for the ranges of the store and of a few sandboxes.
    let harness = Harness::with(WORKER, |options| options.id_base = u32::MAX - 5 * 65_536);
    let mut made = 0;
    let error = loop {
        match harness.launcher.prepare(&spec(&format!("a{made}"))) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 10);
    };
    assert!(matches!(error, Error::NoRange { .. }), "{error}");
    assert_eq!(harness.layers().len(), made);
    assert!(harness.launcher.fork("a0", &spec("b")).is_err());
    assert_eq!(harness.layers().len(), made + 1, "the parent's files are sealed, and it has another top");
}

#[test]
fn layers_that_were_kept_for_a_half_made_one_go_with_it() {
    let Some(harness) = Harness::new() else { return };
    harness.prepared("a");
    let half = harness.options.data_dir.join("sandboxes/half");
    fs::create_dir(&half).unwrap();
    // As a machine that lost its power leaves it.
    fs::write(half.join("record.json"), "").unwrap();
    let Harness { launcher, options, data } = harness;
    drop(launcher);
    let harness = Harness { launcher: atoll_jail::Launcher::start(options.clone()).unwrap(), options, data };
    harness.launcher.destroy("a").unwrap();
    assert_eq!(harness.layers().len(), 1, "it might be the other's");
    harness.launcher.destroy("half").unwrap();
    let start = Instant::now();
    while !harness.layers().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", harness.layers());
    }
}
