//! Tests of checkout layers: `git-in --over-checkout`.

use super::{GitFixture, code, commit, git, write};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A bundle of what a workspace at `known` lacks.
fn bundle_above(fixture: &GitFixture, own: &Path, known: &str) -> Vec<u8> {
    let head = git(own, ["rev-parse", "HEAD"]);
    if head == known {
        return format!("# v2 git bundle\n-{known}\n{head} refs/atoll/base\n\n").into_bytes();
    }
    git(own, ["update-ref", "refs/atoll/base", "HEAD"]);
    let bundle = fixture.path("thin.bundle");
    git(own, ["bundle", "create", "-q", bundle.to_str().unwrap(), "refs/atoll/base", &format!("^{known}")]);
    fs::read(bundle).unwrap()
}

fn switch(fixture: &GitFixture, bundle: &[u8], branch: &str, known: &str) -> Result<serde_json::Value, super::Error> {
    let arguments =
        ["git-in", "--branch", branch, "--name", "Bob", "--email", "bob@example.org", "--over-checkout", known];
    fixture.run_job(&arguments, bundle).0
}

fn identity(path: &Path) -> (u64, i64, i64) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.ino(), found.mtime(), found.mtime_nsec())
}

#[test]
fn a_checkout_becomes_another_commit_and_branch() {
    let fixture = GitFixture::new();
    let own = fixture.repository(&[]);
    write(&own, "gone/file", "old\n");
    let known = commit(&own, "second");
    fixture.fill(&own, &["--for-layer"]).0.unwrap();
    let root = fixture.root().to_owned();
    assert_eq!(git(&root, ["config", "core.checkStat"]), "minimal");
    let untouched = identity(&root.join("src/code.rs"));

    // The same commit brings no pack and writes no file.
    switch(&fixture, &bundle_above(&fixture, &own, &known), "atoll/task/deeper", &known).unwrap();
    assert_eq!(git(&root, ["for-each-ref", "--format=%(refname)"]), "refs/heads/atoll/task/deeper");

    git(&own, ["rm", "-q", "-r", "gone"]);
    write(&own, "README.md", "changed\n");
    write(&own, "new/file", "new\n");
    let base = commit(&own, "third");
    let report = switch(&fixture, &bundle_above(&fixture, &own, &known), "next", &known).unwrap();
    assert_eq!((&report["commit"], &report["changed"]), (&base.clone().into(), &3.into()));
    assert_eq!(git(&root, ["rev-parse", "HEAD", "next"]), format!("{base}\n{base}"));
    assert_eq!(git(&root, ["for-each-ref", "--format=%(refname)"]), "refs/heads/next");
    assert_eq!(git(&root, ["reflog", "--format=%gs"]), "atoll: start");
    assert_eq!(git(&root, ["status", "--porcelain", "-uall"]), "");
    assert_eq!(git(&root, ["config", "--local", "user.name"]), "Bob");
    assert_eq!(fs::read_to_string(root.join("README.md")).unwrap(), "changed\n");
    assert!(!root.join("gone").exists());
    assert_eq!(identity(&root.join("src/code.rs")), untouched);
    git(&root, ["fsck", "--strict"]);
    write(&root, "work", "new\n");
    fixture.export_and_fetch(&base);
    assert_eq!(git(&own, ["diff", "--name-status", &base, "result"]), "A\twork");
}

#[test]
fn a_layer_at_another_commit_is_refused() {
    let (fixture, known) = GitFixture::with_repository();
    let own = fixture.path("own");
    write(&own, "more", "more\n");
    let base = commit(&own, "more");
    let bundle = bundle_above(&fixture, &own, &known);
    assert_eq!(code(switch(&fixture, &bundle, "next", &base)), "broken_repository");
    let full = fs::read({
        let path = fixture.path("full.bundle");
        git(&own, ["bundle", "create", "-q", path.to_str().unwrap(), "refs/atoll/base"]);
        path
    });
    assert_eq!(code(switch(&fixture, &full.unwrap(), "next", &known)), "broken_repository");
    assert_eq!(git(fixture.root(), ["rev-parse", "HEAD"]), known);
}
