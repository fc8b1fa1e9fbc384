//! An agent's program, mounted from wherever it is installed, for any user of the launcher.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use atoll_jail::{Error, HostProgram, LaunchStep, SandboxSpec, ServerUser};

use crate::harness::{Harness, spec};
use crate::unprivileged::{with_one_id, with_sub_ids};

/// Runs the mounted program, tries to change it, and lists the directory.
const WORKER: &str = "#!/bin/sh
{ cd /opt/atoll/agents; x/bin/tool one; cat x/share/words; echo more >>x/share/words; touch x/new x/bin/new
ls -R x; ls; } >/tmp/seen.new 2>/dev/null
mv /tmp/seen.new /tmp/seen
exec sleep 100000
";

const SEEN: &str = "tool one\nwords\nx:\nbin\nshare\n\nx/bin:\ntool\n\nx/share:\nwords\nx\n";

/// A program in a private home directory, with a secret beside it.
fn spec_with_programs(harness: &Harness, name: &str) -> SandboxSpec {
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
    let program = |from: &str, at: &str| HostProgram { from: home.join(from), at: at.into() };
    SandboxSpec { programs: vec![program("tool", "x/bin/tool"), program("share", "x/share")], ..spec(name) }
}

fn check_programs(harness: &Harness) {
    let with_programs = spec_with_programs(harness, "a");
    let sandbox = harness.launcher.prepare_sandbox(&with_programs).unwrap();
    harness.launcher.start_worker("a").unwrap();
    assert_eq!(crate::harness::wait_for_file(&sandbox.dir.join("tmp/seen")), SEEN);
    harness.launcher.destroy_sandbox("a").unwrap();

    // A missing file, a link, and the server's data are rejected, and no worker starts.
    let home = with_programs.programs[0].from.parent().unwrap().to_path_buf();
    symlink(home.join("tool"), home.join("link")).unwrap();
    for from in [home.join("none"), home.join("link"), harness.options.data_dir.join("sandboxes")] {
        let programs = vec![HostProgram { from: from.clone(), at: "x/bin/tool".into() }];
        harness.launcher.prepare_sandbox(&SandboxSpec { programs, ..spec("b") }).unwrap();
        match harness.launcher.start_worker("b").unwrap_err() {
            Error::StepFailed { step: LaunchStep::CloneMounts, .. } | Error::InvalidSpec { .. } => {}
            other => panic!("{}: {other}", from.display()),
        }
        harness.launcher.destroy_sandbox("b").unwrap();
    }
    for at in ["../x", "/x", "x/../../worker", ""] {
        let programs = vec![HostProgram { from: home.join("tool"), at: at.into() }];
        assert!(
            matches!(
                harness.launcher.prepare_sandbox(&SandboxSpec { programs, ..spec("c") }),
                Err(Error::InvalidSpec { .. })
            ),
            "{at}"
        );
    }
}

#[test]
fn mounts_a_host_program_as_root() {
    if let Some(harness) = Harness::with_worker(WORKER) {
        check_programs(&harness);
    }
}

#[test]
fn mounts_a_host_program_for_a_user_with_one_id() {
    if let Some(harness) = with_one_id(WORKER) {
        check_programs(&harness);
    }
}

#[test]
fn mounts_a_host_program_for_a_user_with_sub_ids() {
    if let Some(harness) = with_sub_ids(WORKER) {
        check_programs(&harness);
    }
}

#[test]
fn an_unprivileged_server_mounts_only_what_it_can_reach() {
    if !crate::unprivileged::can_switch_user() {
        return;
    }
    let owner = ServerUser { uid: 54_322, gid: 54_322 };
    let harness = Harness::with(WORKER, |options| {
        let parent = options.data_dir.parent().unwrap();
        fs::set_permissions(parent, Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(&options.data_dir).unwrap();
        options.server_user = Some(owner);
    });
    let with_programs = spec_with_programs(&harness, "a");
    harness.launcher.prepare_sandbox(&with_programs).unwrap();
    match harness.launcher.start_worker("a").unwrap_err() {
        Error::StepFailed { step: LaunchStep::CloneMounts, source, .. } => assert_eq!(source.0, 13, "EACCES"),
        other => panic!("{other}"),
    }
    harness.launcher.destroy_sandbox("a").unwrap();
    let home = with_programs.programs[0].from.parent().unwrap();
    chown(home, Some(owner.uid), Some(owner.gid)).unwrap();
    let sandbox = harness.launcher.prepare_sandbox(&with_programs).unwrap();
    harness.launcher.start_worker("a").unwrap();
    assert_eq!(crate::harness::wait_for_file(&sandbox.dir.join("tmp/seen")), SEEN);
}
