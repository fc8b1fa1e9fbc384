//! An agent's program, shown from wherever it is installed, whoever the launcher is.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use atoll_jail::{Error, Owner, Shown, Spec, Step};

use crate::harness::{Harness, spec};
use crate::ordinary::{with_one_id, with_sub_ids};

/// Starts what it is shown, tries to change it, and looks whether there is more.
const WORKER: &str = "#!/bin/sh
{ cd /opt/atoll/agents; x/bin/tool one; cat x/share/words; echo more >>x/share/words; touch x/new x/bin/new
ls -R x; ls; } >/tmp/seen.new 2>/dev/null
mv /tmp/seen.new /tmp/seen
exec sleep 100000
";

const SEEN: &str = "tool one\nwords\nx:\nbin\nshare\n\nx/bin:\ntool\n\nx/share:\nwords\nx\n";

/// A program in a home that nobody else may enter, with a secret beside it.
fn showing(harness: &Harness, name: &str) -> Spec {
    let base = harness.options.data_dir.parent().unwrap();
    let home = base.join("home");
    fs::create_dir_all(home.join("share")).unwrap();
    fs::write(home.join("share/words"), "words\n").unwrap();
    fs::write(home.join("tool"), "#!/bin/sh\necho tool $1\n").unwrap();
    fs::write(home.join("secret"), "secret\n").unwrap();
    fs::set_permissions(home.join("tool"), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&home, Permissions::from_mode(0o700)).unwrap();
    let owner = fs::metadata(base).unwrap();
    chown(&home, Some(owner.uid()), Some(owner.gid())).unwrap();
    let shown = |from: &str, at: &str| Shown { from: home.join(from), at: at.into() };
    Spec { programs: vec![shown("tool", "x/bin/tool"), shown("share", "x/share")], ..spec(name) }
}

fn holds(harness: &Harness) {
    let wanted = showing(harness, "a");
    let place = harness.launcher.prepare(&wanted).unwrap();
    harness.launcher.start_worker("a").unwrap();
    assert_eq!(crate::isolation::wait_for(&place.dir.join("tmp/seen")), SEEN);
    harness.launcher.destroy("a").unwrap();

    // What is not there, a link, and the server's own data are not shown, and no worker starts without them.
    let home = wanted.programs[0].from.parent().unwrap().to_path_buf();
    symlink(home.join("tool"), home.join("link")).unwrap();
    for from in [home.join("none"), home.join("link"), harness.options.data_dir.join("sandboxes")] {
        let programs = vec![Shown { from: from.clone(), at: "x/bin/tool".into() }];
        harness.launcher.prepare(&Spec { programs, ..spec("b") }).unwrap();
        match harness.launcher.start_worker("b").unwrap_err() {
            Error::Step { step: Step::Trees, .. } | Error::Spec { .. } => {}
            other => panic!("{}: {other}", from.display()),
        }
        harness.launcher.destroy("b").unwrap();
    }
    for at in ["../x", "/x", "x/../../worker", ""] {
        let programs = vec![Shown { from: home.join("tool"), at: at.into() }];
        assert!(matches!(harness.launcher.prepare(&Spec { programs, ..spec("c") }), Err(Error::Spec { .. })), "{at}");
    }
}

#[test]
fn for_root() {
    if let Some(harness) = Harness::with_worker(WORKER) {
        holds(&harness);
    }
}

#[test]
fn for_a_user_with_one_id() {
    if let Some(harness) = with_one_id(WORKER) {
        holds(&harness);
    }
}

#[test]
fn for_a_user_with_sub_ids() {
    if let Some(harness) = with_sub_ids(WORKER) {
        holds(&harness);
    }
}

#[test]
fn a_server_of_another_user_shows_nothing_that_it_could_not_reach_itself() {
    if !crate::ordinary::possible() {
        return;
    }
    let owner = Owner { user: 54_322, group: 54_322 };
    let harness = Harness::with(WORKER, |options| {
        let parent = options.data_dir.parent().unwrap();
        fs::set_permissions(parent, Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(&options.data_dir).unwrap();
        options.owner = Some(owner);
    });
    let wanted = showing(&harness, "a");
    harness.launcher.prepare(&wanted).unwrap();
    match harness.launcher.start_worker("a").unwrap_err() {
        Error::Step { step: Step::Trees, source, .. } => assert_eq!(source.0, 13, "EACCES"),
        other => panic!("{other}"),
    }
    harness.launcher.destroy("a").unwrap();
    let home = wanted.programs[0].from.parent().unwrap();
    chown(home, Some(owner.user), Some(owner.group)).unwrap();
    let place = harness.launcher.prepare(&wanted).unwrap();
    harness.launcher.start_worker("a").unwrap();
    assert_eq!(crate::isolation::wait_for(&place.dir.join("tmp/seen")), SEEN);
}
