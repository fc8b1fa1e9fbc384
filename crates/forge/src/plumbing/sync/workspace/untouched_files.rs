//! The fast way to update a workspace: few files changed in the worktree, and the agent left these alone. Then git needs to
//! read neither the other files nor the index, which the next snapshot brings up to date.

use super::{RECEIVING, WorkspaceCopy, WorkspaceError, WorkspaceGit};
use crate::plumbing::sync::markers::is_marker;
use crate::plumbing::sync::run_git::split_records;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const MAX_PATHS: usize = 500;
const FILE_MODE: &str = "100644";
const PROGRAM_MODE: &str = "100755";
const ATTRIBUTES_NAME: &[u8] = b".gitattributes";

/// A regular file at a path; `None` if there is none.
type TreeFile<'a> = Option<(&'a str, &'a str)>;

/// A file that differs between two trees, with its modes and ids.
struct ChangedFile<'a> {
    path: &'a [u8],
    old: TreeFile<'a>,
    new: TreeFile<'a>,
}

impl<G: WorkspaceGit> WorkspaceCopy<'_, G> {
    /// Writes what changed between two sync commits, if these files are in the workspace as in `base`. Returns the number
    /// of files, or `None` if nothing was written.
    pub(super) fn update_untouched_files(&self, base: &str, commit: &str) -> Result<Option<u64>, G::Error> {
        let comparison = ["diff-tree", "-r", "-z", "--no-renames", "--raw", base, commit];
        let listed = self.git.run_git(RECEIVING, &comparison, None)?.require_success()?;
        let Some(changed) = parse_changes(&listed.stdout).filter(|changed| changed.len() <= MAX_PATHS) else {
            return Ok(None);
        };
        if !changed.iter().all(|file| self.has_place(file)) || !self.has_old_contents(&changed)? {
            return Ok(None);
        }
        self.begin_receiving(base, commit, &format!("{commit}^{{tree}}"))?;
        for file in changed.iter().filter(|file| file.new.is_none()) {
            self.remove_file(file.path).map_err(|source| WorkspaceError::Io { what: RECEIVING, source })?;
        }
        self.write_files(&changed)?;
        Ok(Some(changed.len() as u64))
    }

    /// True if the path has a regular file with the old mode, or nothing, and no parent is a file or a link.
    fn has_place(&self, file: &ChangedFile<'_>) -> bool {
        let is_absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let path = self.path_of(file.path);
        let mut parents = path.ancestors().skip(1).take_while(|parent| *parent != self.root);
        let has_parents = parents.all(|parent| match fs::symlink_metadata(parent) {
            Ok(found) => found.is_dir(),
            Err(error) => file.old.is_none() && is_absent(&error),
        });
        has_parents
            && match (fs::symlink_metadata(path), file.old) {
                (Ok(found), Some((mode, _))) => found.is_file() && mode_of(&found) == mode,
                (Err(error), None) => is_absent(&error),
                (Ok(_), None) | (Err(_), Some(_)) => false,
            }
    }

    /// True if the files in the workspace have their old contents.
    fn has_old_contents(&self, changed: &[ChangedFile<'_>]) -> Result<bool, G::Error> {
        let old: Vec<_> = changed.iter().filter_map(|file| Some((file.path, file.old?.1))).collect();
        if old.is_empty() {
            return Ok(true);
        }
        let names: Vec<u8> = old.iter().flat_map(|(path, _)| [path, b"\n".as_slice()].concat()).collect();
        let hashed = self.git.run_git(RECEIVING, &["hash-object", "--stdin-paths"], Some(&names))?;
        Ok(hashed.is_success() && hashed.text().lines().eq(old.iter().map(|(_, id)| *id)))
    }

    /// Deletes a file, and the parents that it leaves empty, as git does.
    fn remove_file(&self, path: &[u8]) -> io::Result<()> {
        let path = self.path_of(path);
        fs::remove_file(&path)?;
        for parent in path.ancestors().skip(1).take_while(|parent| *parent != self.root) {
            if fs::remove_dir(parent).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Writes the new files, through an index that has only these.
    fn write_files(&self, changed: &[ChangedFile<'_>]) -> Result<(), G::Error> {
        let lines = changed.iter().filter_map(|file| {
            let (mode, id) = file.new?;
            Some([format!("{mode} {id}\t").as_bytes(), file.path, b"\0"].concat())
        });
        let lines: Vec<u8> = lines.flatten().collect();
        if lines.is_empty() {
            return Ok(());
        }
        let index = self.sync_dir.join("changed-files-index");
        drop(fs::remove_file(&index));
        let run =
            |arguments: &[&str], input: Option<&[u8]>| self.git.run_with_index(&index, RECEIVING, arguments, input);
        run(&["update-index", "-z", "--index-info"], Some(&lines))?.require_success()?;
        run(&["checkout-index", "--all", "--force", "--quiet"], None)?.require_success()?;
        drop(fs::remove_file(&index));
        Ok(())
    }

    fn path_of(&self, path: &[u8]) -> PathBuf {
        self.root.join(OsStr::from_bytes(path))
    }
}

fn mode_of(found: &Metadata) -> &'static str {
    if found.permissions().mode() & 0o100 == 0 { FILE_MODE } else { PROGRAM_MODE }
}

/// Parses `git diff-tree -r -z --raw`. Returns `None` for changes of anything but regular files, and for changes that decide
/// how other files are written.
fn parse_changes(listing: &[u8]) -> Option<Vec<ChangedFile<'_>>> {
    let mut records = split_records(listing);
    let mut changed = Vec::new();
    while let Some(record) = records.next() {
        let (fields, path) = (std::str::from_utf8(record.strip_prefix(b":")?).ok()?, records.next()?);
        let [old_mode, new_mode, old_id, new_id, _] = fields.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let is_attributes = path.rsplit(|byte| *byte == b'/').next() == Some(ATTRIBUTES_NAME);
        if is_marker(path) || is_attributes || !is_plain_line(path) {
            return None;
        }
        let old = regular_file(old_mode, old_id)?;
        changed.push(ChangedFile { path, old, new: regular_file(new_mode, new_id)? });
    }
    Some(changed)
}

/// True if git reads the path unchanged from a line of its input.
fn is_plain_line(path: &[u8]) -> bool {
    !path.starts_with(b"\"") && !path.iter().any(|byte| matches!(byte, b'\n' | b'\r'))
}

/// `Some(None)` for the mode of a missing file; `None` for links.
fn regular_file<'a>(mode: &'a str, id: &'a str) -> Option<TreeFile<'a>> {
    match mode {
        "000000" => Some(None),
        FILE_MODE | PROGRAM_MODE => Some(Some((mode, id))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_files_take_the_fast_way() {
        let listing = b":000000 100755 0 1 A\0new\0:100644 000000 2 0 D\0-gone\0:100644 100755 3 3 M\0mode\0";
        let parsed = parse_changes(listing).unwrap();
        let shown: Vec<_> = parsed.iter().map(|file| (file.path, file.old, file.new)).collect();
        assert_eq!(shown[0], (b"new".as_slice(), None, Some((PROGRAM_MODE, "1"))));
        assert_eq!(shown[1], (b"-gone".as_slice(), Some((FILE_MODE, "2")), None));
        assert_eq!(shown[2], (b"mode".as_slice(), Some((FILE_MODE, "3")), Some((PROGRAM_MODE, "3"))));
        for slow in [
            ":100644 120000 1 2 T\0link\0",
            ":160000 160000 1 2 M\0module\0",
            ":100644 100644 1 2 M\0d/.gitattributes\0",
            ":100644 100644 1 2 M\0line\nbreak\0",
            ":100644 100644 1 2 M\0return\r\0",
            ":100644 100644 1 2 M\0\"quoted\"\0",
            ":000000 100644 0 1 A\0d/.atoll-empty-directory\0",
            "nonsense\0",
        ] {
            assert!(parse_changes(slow.as_bytes()).is_none(), "{slow}");
        }
    }
}
