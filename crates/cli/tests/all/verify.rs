//! `atoll verify` with fake sandboxes.

use crate::program::{atoll, objects, text};

#[test]
fn checks_what_fake_sandboxes_support() {
    let dir = tempfile::tempdir().unwrap();
    let done =
        atoll(dir.path()).args(["verify", "--provider", "fake", "--json"]).env("TMPDIR", dir.path()).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}{}", text(&done.stdout), text(&done.stderr));
    let lines = objects(&done);
    let is_held = |name: &str| lines.iter().find(|line| line["promise"] == name).unwrap()["held"].as_bool();
    for name in ["works", "steered", "logged", "edits", "clean"] {
        assert_eq!(is_held(name), Some(true), "{name}");
    }
    for name in ["isolated", "hidden", "branch", "crash"] {
        assert_eq!(is_held(name), None, "a fake sandbox cannot prove {name}");
    }
    assert_eq!(lines.last().unwrap()["exit"], 0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no files remain");
}
