//! The journal of a sync-out: written before the first change, and enough to revert every step.
//!
//! `journal` means that the steps may have begun: recovery reverts them. `journal-committed` means that all are done:
//! recovery records the new state. A step needs no mark of its own: the stamp of the staged file shows whether it is done.
//! A file that the user wrote after an interrupt stays: the one from before is in the private repository.

use super::Worktree;
use super::confined_path::{ConfinedDir, FileStamp};
use super::state::{WorktreeState, replace_file};
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const RECOVERING: &str = "reverting an interrupted sync-out";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Journal {
    pub stage: PathBuf,
    pub steps: Vec<JournalStep>,
    /// Recorded when all steps are done.
    pub state: WorktreeState,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum JournalStep {
    /// Moved to `old/<number>` in the stage.
    Delete { path: Vec<u8>, number: usize },
    /// Swapped with the staged file.
    Replace { path: Vec<u8>, staged: FileStamp },
    /// The staged file is moved to the path.
    Create { path: Vec<u8>, staged: FileStamp },
    /// May be removed if it is empty.
    RemoveDirectory { path: Vec<u8> },
    /// Created if it is missing, with its parents.
    MakeDirectory { path: Vec<u8> },
}

/// The path of a staged file, relative to the stage.
pub(super) fn staged_path(path: &[u8]) -> Vec<u8> {
    [b"new/", path].concat()
}

/// The place of a deleted file, relative to the stage.
pub(super) fn deleted_path(number: usize) -> Vec<u8> {
    format!("old/{number}").into_bytes()
}

impl Worktree {
    /// True while the stage may have files of the user.
    pub(super) fn has_journal(&self) -> bool {
        self.journal_path().exists() || self.committed_path().exists()
    }

    fn journal_path(&self) -> PathBuf {
        self.dir.join("journal")
    }

    fn committed_path(&self) -> PathBuf {
        self.dir.join("journal-committed")
    }

    pub(super) fn write_journal(&self, journal: &Journal) -> Result<(), Error> {
        let bytes = serde_json::to_vec(journal).map_err(io::Error::from);
        bytes
            .and_then(|bytes| replace_file(&self.journal_path(), &bytes, self.repository.owner))
            .map_err(|source| Error::Io { what: "writing the journal", source })
    }

    /// Makes the changes final.
    pub(super) fn commit_journal(&self) -> Result<(), Error> {
        let renamed = fs::rename(self.journal_path(), self.committed_path());
        renamed
            .and_then(|()| fs::File::open(&self.dir)?.sync_all())
            .map_err(|source| Error::Io { what: "writing the journal", source })
    }

    /// Completes or reverts a sync-out that was interrupted.
    pub(super) fn recover(&self) -> Result<(), Error> {
        let failed = |source| Error::Io { what: RECOVERING, source };
        if let Some(journal) = read_journal(&self.committed_path()).map_err(failed)? {
            self.write_state(&journal.state)?;
            remove_stage(&journal.stage);
            fs::remove_file(self.committed_path()).map_err(failed)?;
        }
        if let Some(journal) = read_journal(&self.journal_path()).map_err(failed)? {
            self.revert(&journal)?;
        }
        Ok(())
    }

    /// Reverts all steps of a journal, the last one first, and removes the journal.
    pub(super) fn revert(&self, journal: &Journal) -> Result<(), Error> {
        let failed = |source| Error::Io { what: RECOVERING, source };
        let root = ConfinedDir::open(&self.root).map_err(failed)?;
        let stage = ConfinedDir::open(&journal.stage).map_err(failed)?;
        for step in journal.steps.iter().rev() {
            revert_step(&root, &stage, step).map_err(failed)?;
        }
        fs::remove_file(self.journal_path()).map_err(failed)?;
        remove_stage(&journal.stage);
        Ok(())
    }
}

fn revert_step(root: &ConfinedDir, stage: &ConfinedDir, step: &JournalStep) -> io::Result<()> {
    match step {
        JournalStep::Delete { path, number } => restore_file(root, stage, &deleted_path(*number), path),
        JournalStep::Replace { path, staged: new } => {
            let staged = staged_path(path);
            if stage.stamp(&staged)?.as_ref() == Some(new) {
                return Ok(());
            }
            if root.stamp(path)?.as_ref() == Some(new) {
                return root.exchange(path, stage, &staged);
            }
            restore_file(root, stage, &staged, path)
        }
        JournalStep::Create { path, staged: new } => {
            let staged = staged_path(path);
            if root.stamp(path)?.as_ref() == Some(new) && stage.stamp(&staged)?.is_none() {
                root.move_to(path, stage, &staged)?;
            }
            Ok(())
        }
        JournalStep::RemoveDirectory { path } => {
            if root.stamp(path)?.is_some() {
                return Ok(());
            }
            let made = root.make_parents(path, &mut Vec::new()).and_then(|()| root.make_directory(path));
            made.or_else(allow_occupied)
        }
        JournalStep::MakeDirectory { path } => root.remove_directory(path).map(drop),
    }
}

/// Moves a file of the stage back to its path, if nothing is there.
fn restore_file(root: &ConfinedDir, stage: &ConfinedDir, place: &[u8], path: &[u8]) -> io::Result<()> {
    if stage.stamp(place)?.is_none() {
        return Ok(());
    }
    let moved = root.make_parents(path, &mut Vec::new()).and_then(|()| stage.move_to(place, root, path));
    moved.or_else(allow_occupied)
}

/// Accepts that the user has put something else at the path.
fn allow_occupied(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => Ok(()),
        _ => Err(error),
    }
}

fn read_journal(path: &Path) -> io::Result<Option<Journal>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn remove_stage(stage: &Path) {
    if let Err(error) = fs::remove_dir_all(stage)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, "failed to remove the staging directory {}", stage.display());
    }
}
