//! Atoll's own index of a worktree. It begins as a copy of the user's with its modification time: git reads a file again
//! if it is not older than its index.

use super::Worktree;
use crate::error::Error;
use crate::plumbing::sync::{RunGit, Snapshot, split_records, take_snapshot, write_if_changed};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const READING: &str = "reading the worktree's index";
/// Ignores the staging directory of sync-out where it must be in the worktree.
const STAGE_PATTERN: &[u8] = b"\n/.atoll-stage/\n";

impl Worktree {
    pub(super) fn own_index_path(&self) -> PathBuf {
        self.dir.join("index")
    }

    pub(super) fn user_index_path(&self) -> PathBuf {
        self.git_dir.join("index")
    }

    pub(super) fn excludes_path(&self) -> PathBuf {
        self.dir.join("excludes")
    }

    /// Brings the own index up to date. After a failure the next snapshot starts with a new index.
    pub(super) fn update_own_index(&self) -> Result<Snapshot, Error> {
        let failed = |source| Error::Io { what: READING, source };
        write_if_changed(&self.excludes_path(), &[&self.settings.excludes, STAGE_PATTERN].concat()).map_err(failed)?;
        // A lock is left by a killed command: this one holds the worktree's lock.
        drop(fs::remove_file(self.dir.join("index.lock")));
        let done = self.try_update_own_index();
        if done.is_err() {
            drop(fs::remove_file(self.own_index_path()));
        }
        done
    }

    fn try_update_own_index(&self) -> Result<Snapshot, Error> {
        // The user may change the patterns of a sparse checkout, which the copy must follow.
        if self.settings.is_sparse || !self.own_index_path().exists() {
            self.seed_own_index()?;
        }
        take_snapshot(self, &self.root)
    }

    fn seed_own_index(&self) -> Result<(), Error> {
        let copied = copy_with_time(&self.user_index_path(), &self.own_index_path());
        match copied {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(Error::Io { what: READING, source }),
        }
        super::private_git::give_to_owner(&self.own_index_path(), self.repository.owner)
            .map_err(|source| Error::Io { what: READING, source })?;
        self.clear_hiding_flags()?;
        self.forget_filtered_files()
    }

    /// Clears the flags that make git trust an entry without looking at its file. A file outside of a sparse checkout
    /// keeps its flag while it is absent: it is not deleted.
    fn clear_hiding_flags(&self) -> Result<(), Error> {
        let listed = self.run_git(READING, &["ls-files", "-v", "-z"], None)?.require_success()?;
        let (mut assumed, mut skipped) = (Vec::new(), Vec::new());
        for record in split_records(&listed.stdout) {
            let [tag, b' ', name @ ..] = record else { continue };
            if tag.is_ascii_lowercase() {
                assumed.extend([name, b"\0"].concat());
            }
            let is_present = || fs::symlink_metadata(self.root.join(OsStr::from_bytes(name))).is_ok();
            if tag.eq_ignore_ascii_case(&b'S') && (!self.settings.is_sparse || is_present()) {
                skipped.extend([name, b"\0"].concat());
            }
        }
        for (option, names) in [("--no-assume-unchanged", assumed), ("--no-skip-worktree", skipped)] {
            if !names.is_empty() {
                self.run_git(READING, &["update-index", option, "-z", "--stdin"], Some(&names))?.require_success()?;
            }
        }
        Ok(())
    }

    /// Makes git read files with a filter again: the user's index has what the filter made of them.
    fn forget_filtered_files(&self) -> Result<(), Error> {
        for filter in &self.settings.filters {
            let pathspec = format!(":(attr:filter={filter})");
            let listing = self.files_command(READING)?;
            let listed = listing.args(["ls-files", "-z", "--", &pathspec]);
            let listed = listed.capture_output(self.repository.limits.listing_bytes)?;
            // A name that git does not accept in a pathspec cannot be an attribute's value either.
            if listed.is_success() && !listed.stdout.is_empty() {
                let remove = ["update-index", "--force-remove", "-z", "--stdin"];
                self.run_git(READING, &remove, Some(&listed.stdout))?.require_success()?;
            }
        }
        Ok(())
    }
}

/// Copies a file together with its modification time.
pub(super) fn copy_with_time(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    let modified = source.metadata()?.modified()?;
    let mut copy = File::create(to)?;
    io::copy(&mut source, &mut copy)?;
    copy.flush()?;
    copy.set_modified(modified)
}
