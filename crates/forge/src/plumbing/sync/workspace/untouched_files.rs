//! The fast way to update a workspace: few files changed in the worktree, and the agent left these alone. Then no other
//! file needs to be read.

use super::{RECEIVING, RECEIVING_REF, WorkspaceCopy, WorkspaceGit};
use crate::plumbing::sync::markers::is_marker;
use crate::plumbing::sync::run_git::split_records;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;

/// Paths become arguments of git.
const MAX_PATHS: usize = 500;
const MAX_PATH_BYTES: usize = 64 << 10;

impl<G: WorkspaceGit> WorkspaceCopy<'_, G> {
    /// Writes what changed between two sync commits, if these files are in the workspace as in `base`. Returns the number
    /// of files, or `None` if nothing was written.
    pub(super) fn update_untouched_files(&self, base: &str, commit: &str) -> Result<Option<u64>, G::Error> {
        let comparison = ["diff-tree", "-r", "-z", "--no-renames", "--name-status", base, commit];
        let listed = self.git.run_git(RECEIVING, &comparison, None)?.require_success()?;
        let records: Vec<&[u8]> = split_records(&listed.stdout).collect();
        let (mut known, mut count) = (Vec::new(), 0);
        for pair in records.chunks(2) {
            let [status, path] = pair else { return Ok(None) };
            count += 1;
            if *status == b"A" {
                if is_marker(path) || !self.is_absent(path) {
                    return Ok(None);
                }
            } else {
                match std::str::from_utf8(path) {
                    Ok(path) if !is_marker(path.as_bytes()) => known.push(path),
                    _ => return Ok(None),
                }
            }
        }
        let bytes: usize = known.iter().map(|path| path.len()).sum();
        if count > MAX_PATHS || bytes > MAX_PATH_BYTES {
            return Ok(None);
        }
        if !known.is_empty() {
            let arguments = [
                &["-c", "core.preloadIndex=false", "--literal-pathspecs", "diff-files", "--quiet", "--"],
                known.as_slice(),
            ]
            .concat();
            if !self.git.run_git(RECEIVING, &arguments, None)?.is_success() {
                return Ok(None);
            }
        }
        self.begin_receiving(base, commit, &format!("{commit}^{{tree}}"))?;
        // Git compares its index with `base`, and writes nothing if one of the files differs.
        if self.read_tree(base, commit)?.is_success() {
            return Ok(Some(count as u64));
        }
        self.update_refs(&[(RECEIVING_REF, None)])?;
        Ok(None)
    }

    fn is_absent(&self, path: &[u8]) -> bool {
        let found = fs::symlink_metadata(self.root.join(OsStr::from_bytes(path)));
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }
}
