//! The changes of one turn, from its `agent.file_edited` events. They outlive the sandbox's files.

use crate::problem::Result;
use crate::state::App;
use atoll_api::DiffFile;
use atoll_api::events::{EventData, FileChangeType, FileEdited};
use atoll_core::event::{Event, EventTypePattern, kind};
use atoll_store::events;
use atoll_store::sandboxes::SandboxRow;
use std::collections::BTreeMap;

const EVENTS_PER_PAGE: usize = 500;

/// The edits of one turn in the order of the log.
pub async fn read_turn_edits(app: &App, row: &SandboxRow, turn: i64, path: Option<&str>) -> Result<Vec<FileEdited>> {
    let log = (row.id, row.session_id);
    let mut edits = Vec::new();
    let mut after = 0;
    loop {
        let page = app.read(async move |tx| {
            let types = [kind::AGENT_FILE_EDITED, kind::AGENT_STARTED];
            let types = types.map(|name| EventTypePattern::Exact(name.into())).into();
            let filter = events::EventLogFilter { types, ..events::EventLogFilter::default() };
            let order = events::EventLogOrder::OldestFirst;
            Ok(events::read_event_page(tx, log, &filter, order, after, EVENTS_PER_PAGE).await?)
        });
        let page = page.await?;
        for event in page.events {
            if is_after_turn(&event, turn) {
                return Ok(edits);
            }
            match EventData::from_event(&event) {
                EventData::AgentFileEdited(edit) if event.turn == Some(turn) && concerns_path(&edit, path) => {
                    edits.push(edit);
                }
                _ => {}
            }
        }
        match page.next_cursor {
            Some(next) => after = next,
            None => return Ok(edits),
        }
    }
}

/// True at the start of the second turn after `turn`: the watcher can report an edit shortly after its turn.
fn is_after_turn(event: &Event, turn: i64) -> bool {
    event.event_type.as_str() == kind::AGENT_STARTED && event.turn.is_some_and(|started| started > turn + 1)
}

/// True if the edit changed this file, or a file in this directory.
fn concerns_path(edit: &FileEdited, path: Option<&str>) -> bool {
    let Some(path) = path.map(|path| path.trim_end_matches('/')) else { return true };
    let is_in = |file: &str| file.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    is_in(&edit.file_path) || edit.old_path.as_deref().is_some_and(is_in)
}

/// Combines the edits of each file, sorted by path. The line counts are the sums of the edits.
pub fn combine_edits(edits: &[FileEdited]) -> Vec<DiffFile> {
    let mut files: BTreeMap<String, DiffFile> = BTreeMap::new();
    for edit in edits {
        let path = edit.file_path.clone();
        // A renamed file continues under its new path.
        let source = edit.old_path.as_ref().filter(|_| edit.change_type == FileChangeType::Renamed);
        let earlier = files.remove(source.unwrap_or(&path));
        let (added, removed) = earlier.as_ref().map_or((0, 0), |file| (file.added, file.removed));
        let binary = edit.binary || earlier.as_ref().is_some_and(|file| file.binary);
        let Some((change, old_path)) = combine_change(earlier.as_ref(), edit) else { continue };
        let (added, removed) = (added + edit.lines_added, removed + edit.lines_removed);
        let change = change.to_owned();
        let file = DiffFile { path: path.clone(), old_path, change, added, removed, binary, ..DiffFile::default() };
        files.insert(path, file);
    }
    files.into_values().collect()
}

/// The change of a file after one more edit, and its path before the turn. `None` if the file is as before the turn.
fn combine_change(earlier: Option<&DiffFile>, edit: &FileEdited) -> Option<(&'static str, Option<String>)> {
    let was = earlier.map(|file| file.change.as_str());
    let first_path = earlier.and_then(|file| file.old_path.clone());
    match (edit.change_type, was) {
        (FileChangeType::Deleted, Some("added")) => None,
        (FileChangeType::Deleted, _) => Some(("deleted", None)),
        (FileChangeType::Created, Some("deleted")) => Some(("modified", None)),
        (FileChangeType::Created, _) | (FileChangeType::Modified | FileChangeType::Renamed, Some("added")) => {
            Some(("added", None))
        }
        (FileChangeType::Renamed, _) => {
            let old_path = first_path.or_else(|| edit.old_path.clone());
            // Renamed back.
            let is_back = old_path.as_ref() == Some(&edit.file_path);
            Some(if is_back { ("modified", None) } else { ("renamed", old_path) })
        }
        (FileChangeType::Modified, Some("renamed")) => Some(("renamed", first_path)),
        (FileChangeType::Modified, _) => Some(("modified", None)),
    }
}

/// The lines of git's format before a file's diff, which describe renamed and empty files. Empty for names that git quotes.
fn git_header(edit: &FileEdited) -> String {
    let (path, old) = (&edit.file_path, edit.old_path.as_ref().unwrap_or(&edit.file_path));
    let is_plain = |name: &str| !name.chars().any(|letter| letter.is_control() || matches!(letter, '"' | '\\'));
    if !is_plain(path) || !is_plain(old) {
        return String::new();
    }
    match edit.change_type {
        FileChangeType::Created => format!("diff --git a/{path} b/{path}\nnew file mode 100644\n"),
        FileChangeType::Deleted => format!("diff --git a/{path} b/{path}\ndeleted file mode 100644\n"),
        FileChangeType::Renamed => format!("diff --git a/{old} b/{path}\nrename from {old}\nrename to {path}\n"),
        FileChangeType::Modified => format!("diff --git a/{path} b/{path}\n"),
    }
}

/// The edits as one patch, in their order. A line in place of a diff names each file whose event has only a part of it.
pub fn join_patches(edits: &[FileEdited]) -> String {
    let mut patch = String::new();
    for edit in edits {
        let path = edit.file_path.escape_debug();
        match (edit.full_diff.as_ref().filter(|_| !edit.full_diff_truncated), &edit.full_diff_blob) {
            (Some(diff), _) => {
                patch.push_str(&git_header(edit));
                patch.push_str(diff);
            }
            (None, Some(blob)) => patch.push_str(&format!("The diff of {path} is in the blob {blob}.")),
            (None, None) => patch.push_str(&format!("The diff of {path} is not stored.")),
        }
        if !patch.ends_with('\n') {
            patch.push('\n');
        }
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn edit(change: &str, path: &str, old_path: Option<&str>) -> FileEdited {
        let data = json!({
            "file_path": path, "change_type": change, "old_path": old_path, "lines_added": 2, "lines_removed": 1,
            "diff_preview": "", "full_diff": format!("--- a/{path}\n+++ b/{path}"),
        });
        serde_json::from_value(data).unwrap()
    }

    #[test]
    fn the_edits_of_a_file_become_one_change() {
        let combined = |edits: &[FileEdited]| {
            let files = combine_edits(edits);
            files.into_iter().map(|file| (file.change, file.path, file.old_path, file.added)).collect::<Vec<_>>()
        };
        let one = |change: &str, path: &str, old: Option<&str>, added| {
            vec![(change.to_owned(), path.to_owned(), old.map(str::to_owned), added)]
        };
        let (created, modified, deleted) =
            (edit("created", "a", None), edit("modified", "a", None), edit("deleted", "a", None));
        let (renamed, back) = (edit("renamed", "b", Some("a")), edit("renamed", "a", Some("b")));
        assert_eq!(combined(&[created.clone(), modified.clone()]), one("added", "a", None, 4));
        assert_eq!(combined(&[created.clone(), deleted.clone()]), []);
        assert_eq!(combined(&[modified.clone(), deleted.clone()]), one("deleted", "a", None, 4));
        assert_eq!(combined(&[deleted, created.clone()]), one("modified", "a", None, 4));
        assert_eq!(combined(&[created, renamed.clone()]), one("added", "b", None, 4));
        assert_eq!(combined(&[modified, renamed.clone()]), one("renamed", "b", Some("a"), 4));
        assert_eq!(
            combined(&[renamed.clone(), edit("modified", "b", None), edit("renamed", "c", Some("b"))]),
            one("renamed", "c", Some("a"), 6)
        );
        assert_eq!(combined(&[renamed, back]), one("modified", "a", None, 4));
    }

    #[test]
    fn a_path_selects_a_file_or_a_directory() {
        let edit = edit("renamed", "src/b.rs", Some("lib/a.rs"));
        for (path, concerns) in
            [("src", true), ("src/", true), ("src/b.rs", true), ("lib", true), ("sr", false), ("src/b", false)]
        {
            assert_eq!(concerns_path(&edit, Some(path)), concerns, "{path}");
        }
        assert!(concerns_path(&edit, None));
    }

    #[test]
    fn a_patch_names_files_without_a_diff() {
        let mut cut = edit("modified", "b", None);
        cut.full_diff_truncated = true;
        let mut long = cut.clone();
        (long.file_path, long.full_diff_blob) = ("l".to_owned(), Some("5f".to_owned()));
        let mut renamed = edit("renamed", "c", Some("d"));
        renamed.full_diff = Some(String::new());
        let patch = join_patches(&[edit("created", "a", None), cut, long, renamed, edit("modified", "e\n", None)]);
        let expected = "diff --git a/a b/a\nnew file mode 100644\n--- a/a\n+++ b/a\nThe diff of b is not stored.\n\
                        The diff of l is in the blob 5f.\n\
                        diff --git a/d b/c\nrename from d\nrename to c\n--- a/e\n\n+++ b/e\n";
        assert_eq!(patch, expected);
    }
}
