//! Worktrees with every kind of file, conflicts, undo and hostile results.

use super::{Files, SyncFixture, read_files, run_git};
use crate::error::Error;
use crate::worktree::{ApplyOutcome, ChangeCounts, Resolution, Worktree};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Commits, then stages, edits, deletes, renames and adds files of every kind.
fn mixed_worktree() -> SyncFixture {
    let fixture = SyncFixture::new(|root| {
        for name in ["kept.txt", "staged.txt", "edited.txt", "deleted.txt", "renamed.txt", "dir/both.txt"] {
            super::write_file(root, name, &format!("1 {name}\n2\n3\n4\n5\n6\n7\n"));
        }
        super::write_file(root, ".gitignore", "ignored/\n*.o\n");
    });
    fixture.write("staged.txt", "staged\n");
    run_git(fixture.root(), &["add", "staged.txt"]);
    run_git(fixture.root(), &["mv", "renamed.txt", "new name.txt"]);
    fixture.write("edited.txt", "edited\n");
    fs::remove_file(fixture.root().join("deleted.txt")).unwrap();
    fixture.write("-n", "dash\n");
    fixture.write("ä ö/ü\n.txt", "untracked\n");
    fixture.write("ignored/cache", "secret\n");
    fixture.write("a.o", "object\n");
    let root = fixture.root();
    fs::write(root.join(OsStr::from_bytes(b"bytes-\xff")), b"\x00\xff\x01").unwrap();
    fixture.write("run.sh", "#!/bin/sh\n");
    fs::set_permissions(root.join("run.sh"), Permissions::from_mode(0o755)).unwrap();
    symlink("../outside", root.join("link")).unwrap();
    fs::create_dir_all(root.join("empty/inner")).unwrap();
    fs::create_dir_all(root.join("ignored/empty")).unwrap();
    fixture
}

fn without_ignored(mut files: Files) -> Files {
    files.retain(|path, _| !path.starts_with("ignored") && path != Path::new("a.o"));
    files
}

#[test]
fn the_workspace_gets_the_worktree_as_it_is() {
    let fixture = mixed_worktree();
    let index = fs::read(fixture.root().join(".git/index")).unwrap();
    let refs = run_git(fixture.root(), &["for-each-ref"]);
    assert!(fixture.sync_in());
    let expected = without_ignored(read_files(fixture.root()));
    assert_eq!(read_files(&fixture.workspace.root), expected);
    assert_eq!(fs::read(fixture.root().join(".git/index")).unwrap(), index, "the user's index must not change");
    assert_eq!(run_git(fixture.root(), &["for-each-ref"]), refs);
    let [here, inside] =
        [fixture.root(), &fixture.workspace.root].map(|root| run_git(root, &["status", "--porcelain"]));
    assert_eq!(inside, here, "the agent sees the same staged and unstaged files");
    assert!(!fixture.sync_in(), "a second sync sends only changes");
    fixture.write("-n", "changed\n");
    fs::remove_dir(fixture.root().join("empty/inner")).unwrap();
    fs::remove_file(fixture.root().join("link")).unwrap();
    fixture.write("link/file", "now a directory\n");
    assert!(!fixture.sync_in());
    assert_eq!(read_files(&fixture.workspace.root), without_ignored(read_files(fixture.root())));
}

#[test]
fn the_worktree_gets_what_the_sandbox_changed_and_nothing_else() {
    let fixture = mixed_worktree();
    fixture.sync_in();
    let status = run_git(fixture.root(), &["diff", "--cached", "--name-status"]);
    let inside = fixture.workspace.root.clone();
    fixture.write_inside("new/file.txt", "by the agent\n");
    fixture.write_inside("dir/both.txt", "1 dir/both.txt\n2\n3\n4\n5\n6\nagent\n");
    fixture.write_inside("ignored/agent", "not taken\n");
    fs::remove_file(inside.join("kept.txt")).unwrap();
    fs::remove_file(inside.join("link")).unwrap();
    symlink("elsewhere", inside.join("link")).unwrap();
    fs::set_permissions(inside.join("edited.txt"), Permissions::from_mode(0o755)).unwrap();
    fs::rename(inside.join("empty/inner"), inside.join("empty/other")).unwrap();
    fs::rename(inside.join("-n"), inside.join("-m")).unwrap();
    // The user edits the same file in another place meanwhile.
    fixture.write("dir/both.txt", "user\n2\n3\n4\n5\n6\n7\n");
    fixture.write("mine.txt", "mine\n");
    fs::set_permissions(fixture.root().join("dir/both.txt"), Permissions::from_mode(0o600)).unwrap();
    let before = read_files(fixture.root());
    assert_eq!(fixture.sync_out(Resolution::Report), ApplyOutcome::Applied(ChangeCounts { changed: 5, deleted: 2 }));
    let mut expected = before.clone();
    for gone in ["kept.txt", "-n", "empty/inner"] {
        expected.remove(Path::new(gone)).unwrap();
    }
    for (name, text) in [
        ("new/file.txt", "f:by the agent\n"),
        ("dir/both.txt", "f:user\n2\n3\n4\n5\n6\nagent\n"),
        ("link", "-> elsewhere"),
        ("edited.txt", "x:edited\n"),
        ("empty/other", "/"),
        ("-m", "f:dash\n"),
    ] {
        expected.insert(PathBuf::from(name), text.to_owned());
    }
    assert_eq!(read_files(fixture.root()), expected);
    assert_eq!(run_git(fixture.root(), &["diff", "--cached", "--name-status"]), status, "staged stays staged");
    let mode = fs::metadata(fixture.root().join("dir/both.txt")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a private file stays private");
    assert_eq!(fixture.sync_out(Resolution::Report), ApplyOutcome::Applied(ChangeCounts::default()));

    // Undo keeps later edits.
    fixture.write("later.txt", "later\n");
    let lock = fixture.worktree.lock("test", false).unwrap();
    assert!(matches!(fixture.worktree.undo(Resolution::Report).unwrap(), ApplyOutcome::Applied(_)));
    drop(lock);
    let mut restored = before;
    restored.insert(PathBuf::from("later.txt"), "f:later\n".to_owned());
    assert_eq!(read_files(fixture.root()), restored);
    assert!(matches!(fixture.worktree.undo(Resolution::Report), Err(Error::NothingToUndo)));
    // The work is still in the sandbox.
    fixture.sync_out(Resolution::Report);
    expected.insert(PathBuf::from("later.txt"), "f:later\n".to_owned());
    assert_eq!(read_files(fixture.root()), expected);
}

fn conflicted() -> SyncFixture {
    let fixture = SyncFixture::new(|root| {
        super::write_file(root, "a.txt", "1\n2\n3\n");
        super::write_file(root, "b.txt", "b\n");
        super::write_file(root, "c.txt", "c\n");
    });
    fixture.sync_in();
    fixture.write("a.txt", "1\nuser\n3\n");
    fs::remove_file(fixture.root().join("b.txt")).unwrap();
    fixture.write_inside("a.txt", "1\nagent\n3\n");
    fixture.write_inside("b.txt", "b\nagent\n");
    fixture.write_inside("c.txt", "c\nagent\n");
    fixture
}

#[test]
fn a_conflict_changes_nothing_until_it_is_resolved() {
    let fixture = conflicted();
    let before = read_files(fixture.root());
    let ApplyOutcome::Conflicts(conflicts) = fixture.sync_out(Resolution::Report) else { panic!("no conflict") };
    let paths: Vec<_> = conflicts.iter().map(|conflict| (conflict.path.as_str(), conflict.kind.as_str())).collect();
    assert_eq!(paths, [("a.txt", "contents"), ("b.txt", "modify/delete")]);
    assert_eq!(read_files(fixture.root()), before);
    fixture.sync_out(Resolution::Ours);
    let files = read_files(fixture.root());
    assert_eq!(files[Path::new("a.txt")], "f:1\nuser\n3\n");
    assert!(!files.contains_key(Path::new("b.txt")));
    assert_eq!(files[Path::new("c.txt")], "f:c\nagent\n");

    let fixture = conflicted();
    fixture.sync_out(Resolution::Theirs);
    let files = read_files(fixture.root());
    assert_eq!(files[Path::new("a.txt")], "f:1\nagent\n3\n");
    assert_eq!(files[Path::new("b.txt")], "f:b\nagent\n");
}

#[test]
fn a_branch_has_the_work_and_the_worktree_does_not_change() {
    let fixture = conflicted();
    fs::create_dir(fixture.workspace.root.join("empty")).unwrap();
    let (before, work) = (read_files(fixture.root()), fixture.fetch().unwrap());
    let preview = fixture.worktree.preview_patch(&fixture.worktree.read_state().unwrap(), &work).unwrap();
    let preview = String::from_utf8(preview).unwrap();
    assert!(preview.contains("+agent") && !preview.contains(".atoll-empty"), "{preview}");
    let head = run_git(fixture.root(), &["rev-parse", "HEAD"]);
    let name = fixture.worktree.export_branch(&work, "agent/work", "Work\n").unwrap();
    assert_eq!(name, "agent/work");
    assert_eq!(read_files(fixture.root()), before);
    assert_eq!(run_git(fixture.root(), &["show", "agent/work:a.txt"]), "1\nagent\n3\n");
    assert_eq!(run_git(fixture.root(), &["ls-tree", "-r", "--name-only", "agent/work"]), "a.txt\nb.txt\nc.txt\n");
    assert_eq!(run_git(fixture.root(), &["rev-parse", "agent/work^"]), head);
}

#[test]
fn a_newly_ignored_file_is_not_deleted() {
    let fixture = SyncFixture::new(|_| {});
    fixture.write("notes.txt", "untracked\n");
    fixture.sync_in();
    fixture.write_inside(".gitignore", "notes.txt\n");
    fixture.sync_out(Resolution::Report);
    assert!(fixture.root().join("notes.txt").exists());
}

#[test]
fn changes_of_both_sides_meet_in_the_sandbox() {
    let fixture = conflicted();
    // Not applied: the user resolves it here and continues.
    fixture.write("a.txt", "1\nagent\n3\n");
    fixture.write("b.txt", "b\nagent\n");
    fixture.write("d.txt", "user\n");
    assert!(!fixture.sync_in());
    let inside = read_files(&fixture.workspace.root);
    assert_eq!(inside[Path::new("c.txt")], "f:c\nagent\n", "the agent's work stays");
    assert_eq!(inside[Path::new("d.txt")], "f:user\n");
    fixture.sync_out(Resolution::Report);
    assert_eq!(read_files(fixture.root()), inside);
}

#[test]
fn an_agent_can_remove_its_repository() {
    let fixture = mixed_worktree();
    fixture.sync_in();
    fs::remove_dir_all(fixture.workspace.root.join(".git")).unwrap();
    fixture.write_inside("kept.txt", "agent\n");
    fixture.sync_out(Resolution::Report);
    assert_eq!(fs::read_to_string(fixture.root().join("kept.txt")).unwrap(), "agent\n");
    fixture.write("kept.txt", "user\n");
    fixture.sync_in();
    assert_eq!(fs::read_to_string(fixture.workspace.root.join("kept.txt")).unwrap(), "user\n");
}

#[test]
fn nested_repositories_and_hidden_files_are_sent() {
    let fixture = SyncFixture::new(|root| {
        super::write_file(root, "assumed.txt", "old\n");
        super::write_file(root, "skipped.txt", "old\n");
    });
    let root = fixture.root();
    run_git(root, &["update-index", "--assume-unchanged", "assumed.txt"]);
    run_git(root, &["update-index", "--skip-worktree", "skipped.txt"]);
    fixture.write("assumed.txt", "new\n");
    fixture.write("skipped.txt", "new\n");
    for name in ["nested", "unborn"] {
        fs::create_dir(root.join(name)).unwrap();
        run_git(&root.join(name), &["init", "-q"]);
        fixture.write(&format!("{name}/file"), "nested\n");
    }
    run_git(&root.join("nested"), &["add", "-A"]);
    run_git(&root.join("nested"), &["commit", "-q", "-m", "n"]);
    fixture.sync_in();
    let files = read_files(&fixture.workspace.root);
    assert_eq!(files, read_files(root));
    assert_eq!(files[Path::new("skipped.txt")], "f:new\n");
    assert_eq!(files[Path::new("unborn/file")], "f:nested\n");
    fixture.write("nested/file", "again\n");
    fixture.write("nested/more", "more\n");
    fixture.sync_in();
    assert_eq!(read_files(&fixture.workspace.root), read_files(root));
}

#[test]
fn line_ends_and_filters_give_the_files_that_the_user_sees() {
    let fixture = SyncFixture::new(|root| {
        super::write_file(root, ".gitattributes", "*.txt text eol=crlf\n*.bin filter=upper\n");
        super::write_file(root, "a.txt", "one\r\ntwo\r\n");
        super::write_file(root, "b.bin", "plain\n");
        run_git(root, &["config", "filter.upper.clean", "tr a-z A-Z"]);
        run_git(root, &["config", "filter.upper.smudge", "touch ran-a-filter"]);
    });
    let fixture = SyncFixture { worktree: Worktree::open(fixture.root()).unwrap(), ..fixture };
    fixture.sync_in();
    assert_eq!(read_files(&fixture.workspace.root), read_files(fixture.root()));
    fixture.write_inside("a.txt", "one\r\ntwo\r\nthree\r\n");
    fixture.write_inside("b.bin", "changed\n");
    fixture.sync_out(Resolution::Report);
    assert_eq!(read_files(&fixture.workspace.root), read_files(fixture.root()));
    assert_eq!(fs::read(fixture.root().join("a.txt")).unwrap(), b"one\r\ntwo\r\nthree\r\n");
    assert!(!fixture.root().join("ran-a-filter").exists());
}

#[test]
fn pointers_of_large_files_stay_pointers() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 7\n";
    let fixture = SyncFixture::new(|root| {
        super::write_file(root, ".gitattributes", "*.dat filter=lfs -text\n");
        super::write_file(root, "a.dat", pointer);
    });
    for (name, value) in [("clean", "false"), ("smudge", "false"), ("process", "false"), ("required", "true")] {
        run_git(fixture.root(), &["config", &format!("filter.lfs.{name}"), value]);
    }
    let fixture = SyncFixture { worktree: Worktree::open(fixture.root()).unwrap(), ..fixture };
    fixture.sync_in();
    assert_eq!(fs::read_to_string(fixture.workspace.root.join("a.dat")).unwrap(), pointer);
    fixture.write_inside("b.dat", "content\n");
    let ApplyOutcome::Applied(counts) = fixture.sync_out(Resolution::Report) else { panic!("a conflict") };
    assert_eq!(counts, ChangeCounts { changed: 1, deleted: 0 });
    assert_eq!(fs::read_to_string(fixture.root().join("a.dat")).unwrap(), pointer);
    assert_eq!(fs::read_to_string(fixture.root().join("b.dat")).unwrap(), "content\n");
}

#[test]
fn a_linked_worktree_ends_with_its_directory() {
    let fixture = SyncFixture::new(|root| super::write_file(root, "a.txt", "a\n"));
    let linked = fixture.dir.path().join("linked");
    run_git(fixture.root(), &["worktree", "add", "-q", linked.to_str().unwrap()]);
    let worktree = Worktree::open(&linked).unwrap();
    let (identity, path) = (worktree.read_state().unwrap().identity, worktree.identity_path());
    assert_ne!(identity, fixture.worktree.read_state().unwrap().identity);
    let labels = crate::worktree::worktree_labels(&identity, &path, fixture.dir.path());
    assert!(!crate::worktree::is_worktree_removed(&labels));
    run_git(fixture.root(), &["worktree", "remove", linked.to_str().unwrap()]);
    assert!(crate::worktree::is_worktree_removed(&labels));
}

#[test]
fn hostile_results_write_nothing() {
    let fixture = SyncFixture::new(|root| super::write_file(root, "a.txt", "a\n"));
    fixture.sync_in();
    let before = read_files(fixture.root());
    let base = fixture.worktree.read_state().unwrap().base.unwrap();
    let bundle = fixture.dir.path().join("hostile");
    fs::write(&bundle, b"not a bundle").unwrap();
    assert!(fixture.worktree.import_work(&bundle, &base).is_err());
    // Configuration, hooks and attributes of the workspace have no effect here.
    let marker = fixture.dir.path().join("ran");
    let script = format!("#!/bin/sh\ntouch {}\n", marker.display());
    fixture.write_inside(".git/hooks/post-index-change", &script);
    fixture.write_inside(".git/config", &format!("[core]\n\tfsmonitor = touch {}\n", marker.display()));
    fixture.write_inside(".gitattributes", "* filter=evil diff=evil merge=evil\n");
    symlink("/etc", fixture.workspace.root.join("etc")).unwrap();
    fixture.sync_out(Resolution::Report);
    assert!(!marker.exists());
    assert!(fs::symlink_metadata(fixture.root().join("etc")).unwrap().is_symlink());
    // A directory of the worktree that became a link does not lead outside.
    fixture.write_inside("d/file", "agent\n");
    fixture.write("unrelated", "x\n");
    let outside = fixture.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, fixture.root().join("d")).unwrap();
    let work = fixture.fetch().unwrap();
    let state = fixture.worktree.read_state().unwrap();
    let applied = fixture.worktree.apply_work(&state, &work, Resolution::Report);
    assert!(!matches!(applied, Ok(ApplyOutcome::Applied(_))), "{applied:?}");
    assert!(fs::read_dir(&outside).unwrap().next().is_none());
    assert_eq!(read_files(fixture.root()).get(Path::new("a.txt")), before.get(Path::new("a.txt")));
}
