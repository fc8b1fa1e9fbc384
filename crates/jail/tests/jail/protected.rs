//! Protected paths, whoever the launcher is: what lies there stays, what lies beside can be changed.

use atoll_jail::{Error, Spec, Step};

use crate::harness::{Harness, spec};
use crate::ordinary::{with_one_id, with_sub_ids};

/// Tries what must not go, then shows what is there.
const WORKER: &str = "#!/bin/sh
{ cd /workspace; echo x >>a/b/file; rm -f a/b/file; mv a c; mv a/b a/c; touch a/b/more; echo y >a/free
cat a/b/file a/free; ls a/b; ls /workspace; } >/tmp/seen.new 2>/dev/null
mv /tmp/seen.new /tmp/seen
exec sleep 100000
";

fn protecting(path: &str, name: &str) -> Spec {
    Spec { protected: vec![path.to_owned(), "none/there".to_owned()], ..spec(name) }
}

fn holds(harness: &Harness) {
    let place = harness.launcher.prepare(&protecting("a/b", "a")).unwrap();
    harness.said("a", "mkdir -p a/b; echo kept >a/b/file; chmod -R a+rwX a; ln -s a link");
    let started = harness.launcher.start_worker("a").unwrap();
    assert_eq!(started.unprotected, ["none/there"]);
    let seen = crate::isolation::wait_for(&place.dir.join("tmp/seen"));
    assert_eq!(seen, "kept\ny\nfile\na\nlink\n");
    harness.launcher.destroy("a").unwrap();

    for path in ["link", "link/b"] {
        harness.launcher.prepare(&protecting(path, "b")).unwrap();
        harness.said("b", "mkdir -p a/b; ln -s a link");
        match harness.launcher.start_worker("b").unwrap_err() {
            Error::Step { step: Step::Protect, remedy: Some(remedy), .. } => assert!(remedy.contains("symbolic link")),
            other => panic!("{path}: {other}"),
        }
        harness.launcher.destroy("b").unwrap();
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
