//! Kinds of repositories: without commits or files, with a detached HEAD, with submodules, with settings.

use super::{SyncFixture, read_files, run_git, write_file};
use crate::error::Error;
use crate::worktree::{ApplyOutcome, Resolution, Worktree};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[test]
fn a_repository_without_commits_or_files_is_sent() {
    let fixture = SyncFixture::without_commits();
    fixture.sync_in();
    assert_eq!(read_files(&fixture.workspace.root).len(), 0);
    fixture.write_inside("first.txt", "agent\n");
    fixture.sync_out(Resolution::Report);
    assert_eq!(fs::read_to_string(fixture.root().join("first.txt")).unwrap(), "agent\n");
    run_git(fixture.root(), &["add", "first.txt"]);
    run_git(fixture.root(), &["commit", "-q", "-m", "first"]);
    assert!(!fixture.sync_in());
    assert_eq!(run_git(&fixture.workspace.root, &["status", "--porcelain"]), "");
    assert_eq!(run_git(&fixture.workspace.root, &["log", "--format=%s"]), "first\n");
}

#[test]
fn a_detached_head_stays_detached() {
    let fixture = SyncFixture::new(|root| write_file(root, "a.txt", "a\n"));
    run_git(fixture.root(), &["checkout", "-q", "--detach"]);
    fixture.sync_in();
    fixture.write_inside("a.txt", "agent\n");
    fixture.sync_out(Resolution::Report);
    assert_eq!(fs::read_to_string(fixture.root().join("a.txt")).unwrap(), "agent\n");
    assert_eq!(run_git(fixture.root(), &["rev-parse", "--abbrev-ref", "HEAD"]), "HEAD\n");
}

#[test]
fn other_directories_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let bare = dir.path().join("bare");
    fs::create_dir(&bare).unwrap();
    run_git(&bare, &["init", "-q", "--bare"]);
    assert!(matches!(Worktree::open(&bare).unwrap_err(), Error::NoWorktree { .. }));
    assert!(matches!(Worktree::open(dir.path()).unwrap_err(), Error::NotARepository { .. }));
}

#[test]
fn submodules_stay_as_they_are() {
    let fixture = SyncFixture::new(|root| write_file(root, "a.txt", "a\n"));
    let root = fixture.root();
    let commit = run_git(root, &["rev-parse", "HEAD"]);
    for name in ["empty", "checked-out"] {
        fs::create_dir(root.join(name)).unwrap();
        run_git(root, &["update-index", "--add", "--cacheinfo", &format!("160000,{},{name}", commit.trim())]);
    }
    let inner = root.join("checked-out");
    run_git(&inner, &["init", "-q"]);
    run_git(&inner, &["fetch", "-q", root.to_str().unwrap()]);
    run_git(&inner, &["reset", "-q", "--hard", "FETCH_HEAD"]);
    run_git(root, &["commit", "-q", "-m", "submodules"]);
    fixture.sync_in();
    assert_eq!(run_git(&fixture.workspace.root, &["status", "--porcelain"]), "");
    assert!(fixture.fetch().is_none(), "nothing changed");
    fixture.write_inside("b.txt", "agent\n");
    let before = read_files(root);
    let work = fixture.fetch().unwrap();
    fixture.worktree.export_branch(&work, "agent/work", "Work\n").unwrap();
    let changed = run_git(root, &["diff", "--name-status", "main", "agent/work"]);
    assert_eq!(changed, "A\tb.txt\n", "the branch keeps both submodules");
    fixture.sync_out(Resolution::Report);
    let mut expected = before;
    expected.insert("b.txt".into(), "f:agent\n".to_owned());
    assert_eq!(read_files(root), expected);
}

#[test]
fn a_file_system_without_modes_changes_none() {
    let fixture = SyncFixture::new(|root| {
        write_file(root, "a.txt", "a\n");
        run_git(root, &["config", "core.fileMode", "false"]);
    });
    let path = fixture.root().join("a.txt");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let fixture = SyncFixture { worktree: Worktree::open(fixture.root()).unwrap(), ..fixture };
    fixture.sync_in();
    assert_eq!(run_git(&fixture.workspace.root, &["status", "--porcelain"]), "");
    assert!(fixture.fetch().is_none(), "nothing changed");
}

#[test]
fn new_patterns_of_ignored_files_reach_the_workspace() {
    let fixture = SyncFixture::new(|root| write_file(root, "a.txt", "a\n"));
    fixture.sync_in();
    fs::create_dir_all(fixture.root().join(".git/info")).unwrap();
    write_file(fixture.root(), ".git/info/exclude", "*.log\n");
    fixture.write("x.log", "mine\n");
    fixture.sync_in();
    fixture.write_inside("x.log", "agent\n");
    assert!(fixture.fetch().is_none(), "the agent's file is ignored too");
}

#[test]
fn a_file_that_occupies_a_path_is_a_conflict() {
    let fixture = SyncFixture::new(|root| write_file(root, ".gitignore", "*.o\n"));
    fixture.write("a.o", "mine\n");
    fixture.sync_in();
    fixture.write_inside(".gitignore", "nothing\n");
    fixture.write_inside("a.o", "agent\n");
    let before = read_files(fixture.root());
    for resolution in [Resolution::Report, Resolution::Theirs] {
        let ApplyOutcome::Conflicts(conflicts) = fixture.sync_out(resolution) else { panic!("no conflict") };
        assert_eq!((conflicts[0].path.as_str(), conflicts[0].kind.as_str()), ("a.o", "not sent"));
        assert_eq!(read_files(fixture.root()), before);
    }
    fs::remove_file(fixture.root().join("a.o")).unwrap();
    fixture.sync_out(Resolution::Report);
    assert_eq!(read_files(fixture.root())[Path::new("a.o")], "f:agent\n");
}
