//! Small changes of the worktree, while the agent has left the changed files alone or not.

use super::workspace_double::DoubleError;
use super::{SANDBOX, SyncFixture, read_files, write_file};
use crate::plumbing::sync::WorkspaceError;
use crate::worktree::Resolution;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

fn fixture() -> SyncFixture {
    SyncFixture::new(|root| {
        for name in ["a.txt", "-n", "ü x", "d/e/f.txt", "d/g.txt", "run.sh"] {
            write_file(root, name, "1\n");
        }
    })
}

#[test]
fn repeated_small_changes_need_no_look_at_other_files() {
    let fixture = fixture();
    fixture.sync_in();
    for round in 0..4_u32 {
        // The same size, within the same second.
        fixture.write("a.txt", &format!("{round}\n"));
        fixture.write(&format!("new {round}/sub/x.txt"), "x\n");
        if round > 0 {
            fs::remove_dir_all(fixture.root().join(format!("new {}", round - 1))).unwrap();
        }
        let mode = if round % 2 == 0 { 0o755 } else { 0o644 };
        fs::set_permissions(fixture.root().join("run.sh"), Permissions::from_mode(mode)).unwrap();
        fixture.write("-n", &format!("{round}\n"));
        fixture.write("ü x", &format!("{round}\n"));
        assert!(!fixture.sync_in());
        assert_eq!(read_files(&fixture.workspace.root), read_files(fixture.root()), "round {round}");
    }
    assert_eq!(fixture.workspace.count_snapshots(), 0, "git did not look at all files");
    assert_eq!(fixture.fetch(), None, "the workspace has no changes of its own");
    fixture.write_inside("a.txt", "agent\n");
    fixture.sync_out(Resolution::Report);
    assert_eq!(read_files(&fixture.workspace.root), read_files(fixture.root()));
}

#[test]
fn the_agents_changes_of_the_same_files_are_merged_or_conflict() {
    for change in ["edit", "mode", "remove", "link", "occupy"] {
        let fixture = fixture();
        fixture.sync_in();
        let (inside, outside) = (fixture.workspace.root.clone(), fixture.dir.path().join("outside"));
        fs::create_dir(&outside).unwrap();
        write_file(&outside, "g.txt", "1\n");
        fixture.write("d/g.txt", "user\n");
        let mut is_conflict = true;
        match change {
            "edit" => fixture.write_inside("d/g.txt", "agent\n"),
            "mode" => {
                // Git merges the mode of one side with the content of the other.
                is_conflict = false;
                fs::set_permissions(inside.join("d/g.txt"), Permissions::from_mode(0o755)).unwrap();
            }
            "remove" => fs::remove_file(inside.join("d/g.txt")).unwrap(),
            "link" => {
                fs::remove_dir_all(inside.join("d")).unwrap();
                symlink(&outside, inside.join("d")).unwrap();
            }
            _ => {
                fixture.write("new/file.txt", "user\n");
                symlink(&outside, inside.join("new")).unwrap();
            }
        }
        let before = read_files(&inside);
        let state = fixture.worktree.read_state().unwrap();
        let sent = fixture.worktree.sync_in(&state, SANDBOX, |sync| fixture.receive(sync));
        if is_conflict {
            let refused = matches!(sent, Err(DoubleError::Workspace(WorkspaceError::Conflict { .. })));
            assert!(refused, "{change}");
            assert_eq!(read_files(&inside), before, "{change}");
        } else {
            sent.unwrap();
            assert_eq!(read_files(&inside)[Path::new("d/g.txt")], "x:user\n", "{change}");
        }
        assert!(fixture.workspace.count_snapshots() > 0, "{change}");
        assert_eq!(read_files(&outside).len(), 1, "{change}: nothing is written through a link");
        assert_eq!(fs::read_to_string(outside.join("g.txt")).unwrap(), "1\n", "{change}");
    }
}
