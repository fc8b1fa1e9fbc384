//! Sync-ins that were interrupted: before the worktree knows that the sandbox has its files, and within the sandbox.

use super::workspace_double::DoubleError;
use super::{SANDBOX, SyncFixture, read_files, write_file};
use crate::plumbing::sync::WorkspaceError;
use crate::worktree::{ApplyOutcome, Resolution};
use std::path::Path;
use std::sync::atomic::Ordering;

fn fixture() -> SyncFixture {
    SyncFixture::new(|root| {
        write_file(root, "a.txt", "1\n2\n3\n");
        write_file(root, "b.txt", "b\n");
    })
}

#[test]
fn an_unconfirmed_first_sync_is_continued() {
    let fixture = fixture();
    fixture.sync_in_unconfirmed();
    fixture.write("a.txt", "1\nagain\n3\n");
    assert!(!fixture.sync_in(), "the sandbox has the first state");
    assert_eq!(read_files(&fixture.workspace.root), read_files(fixture.root()));
}

#[test]
fn an_unconfirmed_sync_does_not_conflict_with_later_edits() {
    let fixture = fixture();
    fixture.sync_in();
    for text in ["1\nonce\n3\n", "1\ntwice\n3\n"] {
        fixture.write("a.txt", text);
        fixture.sync_in_unconfirmed();
    }
    fixture.write("a.txt", "1\nthird\n3\n");
    fixture.write_inside("b.txt", "agent\n");
    let outcome = fixture.sync_out(Resolution::Report);
    assert!(matches!(outcome, ApplyOutcome::Applied(counts) if counts.changed == 1), "{outcome:?}");
    assert_eq!(read_files(fixture.root())[Path::new("a.txt")], "f:1\nthird\n3\n");
    fixture.sync_in();
    assert_eq!(read_files(&fixture.workspace.root), read_files(fixture.root()));
}

#[test]
fn a_request_that_never_arrived_changes_nothing() {
    let fixture = fixture();
    fixture.lose_sync_in();
    assert!(fixture.sync_in(), "the sandbox has nothing yet");
    fixture.write("a.txt", "1\nlost\n3\n");
    fixture.lose_sync_in();
    fixture.write_inside("b.txt", "agent\n");
    fixture.sync_out(Resolution::Report);
    assert_eq!(read_files(fixture.root())[Path::new("b.txt")], "f:agent\n");
    fixture.sync_in();
    assert_eq!(read_files(&fixture.workspace.root), read_files(fixture.root()));
}

#[test]
fn a_conflict_in_the_sandbox_keeps_the_work_of_the_agent() {
    let fixture = fixture();
    fixture.sync_in();
    fixture.write("a.txt", "1\nuser\n3\n");
    fixture.write_inside("a.txt", "1\nagent\n3\n");
    assert!(matches!(fixture.sync_out(Resolution::Report), ApplyOutcome::Conflicts(_)));
    for _ in 0..2 {
        let state = fixture.worktree.read_state().unwrap();
        let sent = fixture.worktree.sync_in(&state, SANDBOX, |sync| fixture.receive(sync));
        assert!(matches!(sent, Err(DoubleError::Workspace(WorkspaceError::Conflict { .. }))));
        assert_eq!(read_files(&fixture.workspace.root)[Path::new("a.txt")], "f:1\nagent\n3\n");
    }
    fixture.sync_out(Resolution::Theirs);
    assert_eq!(read_files(fixture.root())[Path::new("a.txt")], "f:1\nagent\n3\n");
}

#[test]
fn a_killed_receive_is_completed_by_the_next_request() {
    for half_written in [false, true] {
        let fixture = fixture();
        fixture.sync_in();
        fixture.write_inside("c.txt", "agent\n");
        fixture.write("a.txt", "1\nuser\n3\n");
        fixture.write("b.txt", "b\nuser\n");
        fixture.workspace.kill_after_files.store(true, Ordering::Relaxed);
        fixture.lose_sync_in_at_workspace();
        fixture.workspace.kill_after_files.store(false, Ordering::Relaxed);
        if half_written {
            fixture.write_inside("a.txt", "1\nus");
            fixture.write_inside("b.txt", "b\n");
        }
        fixture.write("a.txt", "1\nuser again\n3\n");
        fixture.sync_in();
        let mut expected = read_files(fixture.root());
        expected.insert("c.txt".into(), "f:agent\n".to_owned());
        assert_eq!(read_files(&fixture.workspace.root), expected);
        fixture.sync_out(Resolution::Report);
        assert_eq!(read_files(fixture.root()), expected);
    }
}
