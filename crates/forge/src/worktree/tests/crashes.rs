//! An interrupted sync-out leaves the worktree as it was, or completes.

use super::{SyncFixture, read_files, write_file};
use crate::error::Error;
use crate::worktree::state::WorktreeState;
use crate::worktree::{MergeOutcome, Resolution};
use std::fs;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn fixture_with_work() -> (SyncFixture, String, String) {
    let fixture = SyncFixture::new(|root| {
        for name in ["a", "b", "d/c", "d/e/f", "to-dir", "was/dir"] {
            write_file(root, name, &format!("{name}\n"));
        }
        fs::create_dir(root.join("empty")).unwrap();
    });
    fixture.sync_in();
    let inside = fixture.workspace.root.clone();
    fixture.write_inside("a", "agent\n");
    fs::remove_file(inside.join("b")).unwrap();
    fs::remove_dir_all(inside.join("d/e")).unwrap();
    fs::remove_file(inside.join("to-dir")).unwrap();
    fixture.write_inside("to-dir/inner", "x\n");
    fs::remove_dir_all(inside.join("was")).unwrap();
    fixture.write_inside("was", "a file now\n");
    fs::remove_dir(inside.join("empty")).unwrap();
    fs::create_dir_all(inside.join("other/empty")).unwrap();
    fixture.write_inside("n/new", "new\n");
    symlink("a", inside.join("link")).unwrap();
    let work = fixture.fetch().unwrap();
    let ours = fixture.worktree.take_snapshot().unwrap().tree;
    (fixture, ours, work)
}

#[test]
fn a_kill_after_any_step_leaves_all_or_nothing() {
    let (mut step, mut outcomes) = (0, [0, 0]);
    loop {
        let (fixture, ours, work) = fixture_with_work();
        let state = fixture.worktree.read_state().unwrap();
        let base = state.base.clone().unwrap();
        let merged = fixture.worktree.merge(&base, &ours, &work, Resolution::Report).unwrap();
        let MergeOutcome::Clean { tree } = merged else { panic!("{merged:?}") };
        let (before, after) = (read_files(fixture.root()), read_files(&fixture.workspace.root));
        let next = WorktreeState { base: Some(work), ..state.clone() };
        let mut reached = 0;
        let killed = catch_unwind(AssertUnwindSafe(|| {
            fixture.worktree.apply_observed(&ours, &tree, &next, &mut |_| {
                assert!(reached != step, "killed");
                reached += 1;
            })
        }));
        if let Ok(done) = killed {
            done.unwrap();
            assert_eq!(read_files(fixture.root()), after);
            break;
        }
        drop(fixture.worktree.lock("after the kill", false).unwrap());
        let state_now = fixture.worktree.read_state().unwrap();
        let is_done = state_now == next;
        assert_eq!(read_files(fixture.root()), if is_done { after } else { before }, "step {step}");
        assert!(is_done || state_now == state, "step {step}");
        assert!(!fixture.root().join(".git/atoll/stage").exists());
        outcomes[usize::from(is_done)] += 1;
        step += 1;
    }
    assert!(outcomes[0] > 10 && outcomes[1] == 1, "{outcomes:?}");
}

#[test]
fn a_late_edit_reverts_everything() {
    let (fixture, ours, work) = fixture_with_work();
    let state = fixture.worktree.read_state().unwrap();
    let base = state.base.clone().unwrap();
    let merged = fixture.worktree.merge(&base, &ours, &work, Resolution::Report).unwrap();
    let MergeOutcome::Clean { tree } = merged else { panic!("{merged:?}") };
    // An editor has the file open and writes after the swap.
    let mut open = fs::File::options().append(true).open(fixture.root().join("a")).unwrap();
    let mut before = read_files(fixture.root());
    let mut written = false;
    let error = fixture
        .worktree
        .apply_observed(&ours, &tree, &state, &mut |_| {
            if !written && fs::read_to_string(fixture.root().join("a")).unwrap() == "agent\n" {
                std::io::Write::write_all(&mut open, b"late\n").unwrap();
                written = true;
            }
        })
        .unwrap_err();
    assert!(matches!(&error, Error::WorktreeChanged { path } if path == "a"), "{error}");
    before.insert("a".into(), "f:a\nlate\n".to_owned());
    assert_eq!(read_files(fixture.root()), before);
}

#[test]
fn files_that_the_user_wrote_after_a_kill_stay() {
    let (fixture, ours, work) = fixture_with_work();
    let state = fixture.worktree.read_state().unwrap();
    let base = state.base.clone().unwrap();
    let merged = fixture.worktree.merge(&base, &ours, &work, Resolution::Report).unwrap();
    let MergeOutcome::Clean { tree } = merged else { panic!("{merged:?}") };
    let mut before = read_files(fixture.root());
    let killed = catch_unwind(AssertUnwindSafe(|| {
        let is_last = || fixture.root().join("n/new").exists() && fixture.root().join("was").is_file();
        fixture.worktree.apply_observed(&ours, &tree, &state, &mut |_| assert!(!is_last(), "killed"))
    }));
    assert!(killed.is_err());
    // The user sees a part of the changes, and edits, restores and replaces files before the next command.
    let root = fixture.root();
    write_file(root, "b", "restored\n");
    write_file(root, "n/new", "edited\n");
    fs::remove_file(root.join("a")).unwrap();
    write_file(root, "a", "replaced\n");
    write_file(root, "d/e", "a file\n");
    drop(fixture.worktree.lock("after the kill", false).unwrap());
    for (path, text) in [("b", "restored"), ("n/new", "edited"), ("a", "replaced"), ("d/e", "a file")] {
        before.insert(path.into(), format!("f:{text}\n"));
    }
    before.remove(std::path::Path::new("d/e/f"));
    assert_eq!(read_files(root), before);
    assert!(!root.join(".git/atoll/journal").exists());
}
