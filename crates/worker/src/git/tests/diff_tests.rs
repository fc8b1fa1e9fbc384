//! Tests of `git-diff`.

use super::{GitFixture, code, commit, git, try_git, write};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

fn listed(fixture: &GitFixture, base: &str, more: &[&str]) -> Vec<Value> {
    let (report, output) = fixture.diff(base, more);
    assert_eq!(report.unwrap(), Value::Null);
    let listed: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&listed["base"], listed.get("warnings")), (&json!(base), None));
    listed["files"].as_array().unwrap().clone()
}

/// Times and sizes of every file in the workspace, including its repository.
fn file_stats(directory: &Path) -> BTreeMap<PathBuf, (i64, i64, u64)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        if metadata.is_dir() {
            found.extend(file_stats(&path));
        }
        found.insert(path, (metadata.mtime(), metadata.mtime_nsec(), metadata.len()));
    }
    found
}

#[test]
fn lists_all_changes_and_writes_nothing() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    assert_eq!(listed(&fixture, &base, &[]), [] as [Value; 0]);
    write(&root, "committed", "x\n");
    commit(&root, "by the agent");
    write(&root, "README.md", "one\n2\nthree\nfour\n");
    fs::rename(root.join("src/code.rs"), root.join("src/moved.rs")).unwrap();
    write(&root, "new\nline", "a\nb\n");
    write(&root, "picture", [0, 1, 2, 0]);
    write(&root, "empty", "");
    write(&root, "ignored", "x");
    symlink("/nowhere", root.join("link")).unwrap();
    fs::set_permissions(root.join(".gitignore"), fs::Permissions::from_mode(0o755)).unwrap();
    git(&root, ["init", "-q", "nested"]);
    write(&root, "nested/file", "x\n");
    write(&root, "staged", "x\n");
    git(&root, ["add", "staged"]);

    let before = file_stats(&root);
    let files = listed(&fixture, &base, &[]);
    let patch = fixture.diff(&base, &["--patch"]).1;
    assert_eq!(file_stats(&root), before);

    let file = |path: &str, change: &str, added: u64, removed: u64, binary: bool| json!({ "path": path, "change": change, "added": added, "removed": removed, "binary": binary });
    let mut moved = file("src/moved.rs", "renamed", 0, 0, false);
    moved["old_path"] = json!("src/code.rs");
    let mut executable = file(".gitignore", "modified", 0, 0, false);
    executable["modes"] = json!(["100644", "100755"]);
    assert_eq!(
        files,
        [
            executable,
            file("README.md", "modified", 2, 1, false),
            file("committed", "added", 1, 0, false),
            file("empty", "added", 0, 0, false),
            file("link", "added", 1, 0, false),
            file("nested/file", "added", 1, 0, false),
            file("new\nline", "added", 2, 0, false),
            file("picture", "added", 0, 0, true),
            moved,
            file("staged", "added", 1, 0, false),
        ]
    );
    for expected in
        ["-two\n+2\n three\n+four", "rename from src/code.rs", "Binary files", "new mode 100755", "+++ b/nested/file"]
    {
        assert!(patch.contains(expected), "{expected} is not in {patch}");
    }
    assert!(!patch.contains("ignored\n@@"));

    // Git accepts the patch.
    let own = fixture.path("own");
    git(&root, ["add", "README.md", "src"]);
    fs::write(fixture.path("patch"), fixture.diff(&base, &["--patch", "--path", "README.md", "--path", "src"]).1)
        .unwrap();
    git(&own, ["apply", "--check", "../patch"]);
}

#[test]
fn paths_limit_the_diff_and_are_literal() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    for name in ["a/x", "a/y", "b", "*", "-dash", ":(top)b"] {
        write(&root, name, "x\n");
    }
    let names = |paths: &[&str]| {
        let more: Vec<&str> = paths.iter().flat_map(|path| ["--path", path]).collect();
        let files = listed(&fixture, &base, &more);
        files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&["a"]), ["a/x", "a/y"]);
    assert_eq!(names(&["*"]), ["*"]);
    assert_eq!(names(&["-dash", "b"]), ["-dash", "b"]);
    assert_eq!(names(&[":(top)b"]), [":(top)b"]);
    assert_eq!(names(&["nothing"]), [] as [&str; 0]);
    assert_eq!(code(fixture.diff(&base, &["--path", "../own/README.md"]).0), "git_failed");
}

#[test]
fn conflicts_appear_with_their_markers() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    git(&root, ["checkout", "-q", "-b", "side"]);
    write(&root, "README.md", "one\nside\nthree\n");
    fs::remove_file(root.join("src/code.rs")).unwrap();
    commit(&root, "side");
    git(&root, ["checkout", "-q", "atoll/task"]);
    write(&root, "README.md", "one\ntask\nthree\n");
    write(&root, "src/code.rs", "changed\n");
    commit(&root, "task");
    assert!(!try_git(&root, ["merge", "side"]).status.success());
    fs::remove_file(root.join("src/code.rs")).unwrap();
    let files = listed(&fixture, &base, &[]);
    let changes: Vec<_> =
        files.iter().map(|file| (file["path"].as_str().unwrap(), file["change"].as_str().unwrap())).collect();
    assert_eq!(changes, [("README.md", "modified"), ("src/code.rs", "deleted")]);
    assert!(fixture.diff(&base, &["--patch"]).1.contains("+<<<<<<<"));
}

#[test]
fn reports_a_missing_base_or_repository() {
    let (fixture, base) = GitFixture::with_repository();
    let absent = "0123456789abcdef0123456789abcdef01234567";
    assert_eq!(code(fixture.diff(absent, &[]).0), "base_missing");
    assert_eq!(code(fixture.diff("main", &[]).0), "arguments");
    fs::remove_file(fixture.root().join(".git/index")).unwrap();
    assert_eq!(listed(&fixture, &base, &[]), [] as [Value; 0]);
    fs::remove_dir_all(fixture.root().join(".git")).unwrap();
    assert_eq!(code(fixture.diff(&base, &[]).0), "no_repository");
}
