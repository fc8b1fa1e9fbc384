//! Protected paths, for any user of the launcher: they stay, their neighbours can change.

use atoll_jail::{Error, LaunchStep, SandboxSpec};

use crate::harness::{Harness, spec};
use crate::unprivileged::{with_one_id, with_sub_ids};

/// Tries forbidden changes, then lists the result.
const WORKER: &str = "#!/bin/sh
{ cd /workspace; echo x >>a/b/file; rm -f a/b/file; mv a c; mv a/b a/c; touch a/b/more; echo y >a/free
cat a/b/file a/free; ls a/b; ls /workspace; } >/tmp/seen.new 2>/dev/null
mv /tmp/seen.new /tmp/seen
exec sleep 100000
";

fn spec_with_protected(path: &str, name: &str) -> SandboxSpec {
    SandboxSpec { protected: vec![path.to_owned(), "none/there".to_owned()], ..spec(name) }
}

fn check_protection(harness: &Harness) {
    let sandbox = harness.launcher.prepare_sandbox(&spec_with_protected("a/b", "a")).unwrap();
    harness.shell_output("a", "mkdir -p a/b; echo kept >a/b/file; chmod -R a+rwX a; ln -s a link");
    let started = harness.launcher.start_worker("a").unwrap();
    assert_eq!(started.unprotected, ["none/there"]);
    let seen = crate::harness::wait_for_file(&sandbox.dir.join("tmp/seen"));
    assert_eq!(seen, "kept\ny\nfile\na\nlink\n");
    harness.launcher.destroy_sandbox("a").unwrap();

    for path in ["link", "link/b"] {
        harness.launcher.prepare_sandbox(&spec_with_protected(path, "b")).unwrap();
        harness.shell_output("b", "mkdir -p a/b; ln -s a link");
        match harness.launcher.start_worker("b").unwrap_err() {
            Error::StepFailed { step: LaunchStep::Protect, remedy: Some(remedy), .. } => {
                assert!(remedy.contains("symbolic link"))
            }
            other => panic!("{path}: {other}"),
        }
        harness.launcher.destroy_sandbox("b").unwrap();
    }
}

#[test]
fn protects_paths_as_root() {
    if let Some(harness) = Harness::with_worker(WORKER) {
        check_protection(&harness);
    }
}

#[test]
fn protects_paths_for_a_user_with_one_id() {
    if let Some(harness) = with_one_id(WORKER) {
        check_protection(&harness);
    }
}

#[test]
fn protects_paths_for_a_user_with_sub_ids() {
    if let Some(harness) = with_sub_ids(WORKER) {
        check_protection(&harness);
    }
}
