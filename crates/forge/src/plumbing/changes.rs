//! Changed files between two trees, from git's machine-readable listing.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
    Renamed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_path: Option<String>,
    pub change: ChangeKind,
    /// Line counts; none for a binary file.
    pub added: u64,
    pub removed: u64,
    pub binary: bool,
    /// The modes before and after, such as `100644` and `100755`, if the mode of a file changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modes: Option<[String; 2]>,
    /// True if it is a submodule: its content is a commit of another repository.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub submodule: bool,
}

/// The mode of a submodule in a tree.
const SUBMODULE_MODE: &str = "160000";
/// The mode of a file that does not exist on one side.
const NO_MODE: &str = "000000";

/// Parses the output of `git diff-… -z --raw --numstat`: one record per change, then the line counts.
pub fn parse(listing: &[u8]) -> Option<Vec<FileChange>> {
    let mut fields = listing.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let mut files: Vec<FileChange> = Vec::new();
    let mut places = HashMap::new();
    while let Some(record) = fields.next().filter(|record| !record.is_empty()) {
        if let Some(raw) = record.strip_prefix(':') {
            let mut columns = raw.split(' ');
            let modes = [columns.next()?, columns.next()?];
            let kind = columns.nth(2)?;
            let first = fields.next()?.into_owned();
            let (change, path, old_path) = match kind.as_bytes().first()? {
                b'A' => (ChangeKind::Added, first, None),
                b'D' => (ChangeKind::Deleted, first, None),
                b'R' => (ChangeKind::Renamed, fields.next()?.into_owned(), Some(first)),
                _ => (ChangeKind::Modified, first, None),
            };
            places.insert(path.clone(), files.len());
            let submodule = modes.contains(&SUBMODULE_MODE);
            let modes = Some(modes).filter(|[old, new]| old != new && ![*old, *new].contains(&NO_MODE));
            let modes = modes.map(|modes| modes.map(str::to_owned));
            files.push(FileChange { path, old_path, change, added: 0, removed: 0, binary: false, modes, submodule });
        } else {
            let mut columns = record.splitn(3, '\t');
            let (added, removed, path) = (columns.next()?, columns.next()?, columns.next()?);
            let path = if path.is_empty() {
                fields.next()?;
                fields.next()?.into_owned()
            } else {
                path.to_owned()
            };
            if let Some(file) = places.get(&path).and_then(|place| files.get_mut(*place)) {
                file.binary = added == "-";
                file.added = added.parse().unwrap_or(0);
                file.removed = removed.parse().unwrap_or(0);
            }
        }
    }
    Some(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_kind_of_record() {
        let listing = b":000000 100644 0 1 A\0new\nline\0:100644 000000 1 0 D\0-gone\0:100644 100644 1 2 R090\0old name\0n\xc3\xa9w\0\
            :100644 120000 1 2 T\0link\0:100644 100644 1 2 M\0picture\0\
            3\t0\tnew\nline\x000\t2\t-gone\x001\t1\t\0old name\0n\xc3\xa9w\x001\t1\tlink\0-\t-\tpicture\0";
        let files = parse(listing).unwrap();
        let records: Vec<_> =
            files.iter().map(|file| (file.path.as_str(), file.change, file.added, file.removed, file.binary)).collect();
        assert_eq!(
            records,
            [
                ("new\nline", ChangeKind::Added, 3, 0, false),
                ("-gone", ChangeKind::Deleted, 0, 2, false),
                ("néw", ChangeKind::Renamed, 1, 1, false),
                ("link", ChangeKind::Modified, 1, 1, false),
                ("picture", ChangeKind::Modified, 0, 0, true),
            ]
        );
        assert_eq!(files[2].old_path.as_deref(), Some("old name"));
        assert_eq!(files[3].modes, Some(["100644".to_owned(), "120000".to_owned()]));
        assert!(files.iter().all(|file| !file.submodule && (file.path == "link" || file.modes.is_none())));
        let submodule = parse(b":160000 160000 1 2 M\0lib\x001\t1\tlib\0").unwrap();
        assert!(submodule[0].submodule && submodule[0].modes.is_none());
        assert_eq!(parse(b"").unwrap(), []);
        assert_eq!(parse(b":100644"), None);
    }
}
