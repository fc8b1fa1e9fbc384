//! The labels that connect a sandbox with a worktree, and the check whether the worktree was removed.

use super::state;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// The identity of the worktree.
pub const WORKTREE_LABEL: &str = "worktree";
/// The machine and the file that tell whether the worktree still exists.
pub const MACHINE_LABEL: &str = "worktree.machine";
const PATH_LABEL: &str = "worktree.path";
const MAX_LABEL_BYTES: usize = 255;

/// The labels of a worktree's sandbox. `path` is the file with the worktree's identity.
pub fn worktree_labels(identity: &str, path: &Path, data_dir: &Path) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([(WORKTREE_LABEL.to_owned(), identity.to_owned())]);
    // Without both, the sandbox does not end with its worktree.
    let path = path.to_str().filter(|path| path.len() <= MAX_LABEL_BYTES);
    if let (Some(path), Some(machine)) = (path, read_or_create_machine_id(data_dir)) {
        labels.extend([(PATH_LABEL.to_owned(), path.to_owned()), (MACHINE_LABEL.to_owned(), machine)]);
    }
    labels
}

/// True if the worktree's file is gone, or belongs to another worktree by now. A file that cannot be read proves nothing.
pub fn is_worktree_removed(labels: &BTreeMap<String, String>) -> bool {
    let (Some(identity), Some(path)) = (labels.get(WORKTREE_LABEL), labels.get(PATH_LABEL)) else { return false };
    // Clients choose labels: no other file is looked at.
    if !Path::new(path).is_absolute() || !path.ends_with(state::PATH_END) {
        return false;
    }
    match state::read_identity(Path::new(path)) {
        Ok(found) => found != *identity,
        Err(error) => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

/// The random id of a data directory, which its worktrees' sandboxes have as a label. Host names are not unique enough to
/// end sandboxes by.
pub fn read_machine_id(data_dir: &Path) -> Option<String> {
    let text = fs::read_to_string(data_dir.join("machine-id")).ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

fn read_or_create_machine_id(data_dir: &Path) -> Option<String> {
    if let Some(known) = read_machine_id(data_dir) {
        return Some(known);
    }
    let id = uuid::Uuid::now_v7().simple().to_string();
    fs::create_dir_all(data_dir).ok()?;
    fs::write(data_dir.join("machine-id"), format!("{id}\n")).ok()?;
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_or_foreign_file_ends_a_worktree() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("atoll")).unwrap();
        let file = dir.path().join("atoll/state.json");
        let labels = worktree_labels("one", &file, dir.path());
        assert_eq!(labels.len(), 3);
        assert!(is_worktree_removed(&labels));
        for (text, is_removed) in [(r#"{"identity":"one"}"#, false), (r#"{"identity":"two"}"#, true), ("{", false)] {
            fs::write(&file, text).unwrap();
            assert_eq!(is_worktree_removed(&labels), is_removed, "{text}");
        }
        assert!(!is_worktree_removed(&BTreeMap::new()));
        assert_eq!(worktree_labels("one", &file, dir.path()), labels, "the machine's id stays");
        let foreign = worktree_labels("one", &dir.path().join("other.json"), dir.path());
        assert!(!is_worktree_removed(&foreign), "no other file is looked at");
    }
}
