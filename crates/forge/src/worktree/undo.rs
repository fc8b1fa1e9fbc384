//! Undoes the last sync-out: the changes go out again by the same merge, so that later edits stay.

use super::state::{AppliedWork, WorktreeState};
use super::{ChangeCounts, Conflict, MergeOutcome, Resolution, Worktree};
use crate::error::Error;

/// Names the worktree's files before the last sync-out.
const BEFORE_REF: &str = "refs/atoll/before";
const AFTER_REF: &str = "refs/atoll/after";
const BASE_REF: &str = "refs/atoll/base";

/// Tries again after an edit during the apply.
const MAX_ATTEMPTS: usize = 3;

/// The result of bringing changes into the worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApplyOutcome {
    Applied(ChangeCounts),
    Conflicts(Vec<Conflict>),
}

impl Worktree {
    /// Merges a sync commit of the sandbox into the worktree, and makes it the new base.
    pub fn apply_work(
        &self,
        state: &WorktreeState,
        theirs: &str,
        resolution: Resolution,
    ) -> Result<ApplyOutcome, Error> {
        let base = state.base.as_deref().ok_or(Error::NothingToUndo)?;
        self.retry_apply(|| {
            let ours = self.take_snapshot()?.tree;
            let merged = match self.merge(base, &ours, theirs, resolution)? {
                MergeOutcome::Clean { tree } => tree,
                MergeOutcome::Conflicts(conflicts) => return Ok(ApplyOutcome::Conflicts(conflicts)),
            };
            let before = self.commit_tree(&ours, None)?;
            let after = self.commit_tree(&merged, None)?;
            self.update_private_refs([(BEFORE_REF, &*before), (AFTER_REF, &*after), (BASE_REF, theirs)])?;
            let applied = (ours != merged).then(|| AppliedWork {
                before,
                after,
                work: theirs.to_owned(),
                base: state.base.clone(),
            });
            let applied = applied.or_else(|| state.applied.clone());
            let next = WorktreeState { base: Some(theirs.to_owned()), applied, ..state.clone() };
            self.apply_or_report(&ours, &merged, &next)
        })
    }

    /// Restores the files from before the last sync-out. Later edits stay, or are reported as conflicts.
    pub fn undo(&self, resolution: Resolution) -> Result<ApplyOutcome, Error> {
        let state = self.read_state()?;
        let applied = state.applied.clone().ok_or(Error::NothingToUndo)?;
        let before = self.tree_of(&applied.before)?;
        let theirs = self.commit_tree(&before, Some(&applied.after))?;
        self.retry_apply(|| {
            let ours = self.take_snapshot()?.tree;
            let merged = match self.merge(&applied.after, &ours, &theirs, resolution)? {
                MergeOutcome::Clean { tree } => tree,
                MergeOutcome::Conflicts(conflicts) => return Ok(ApplyOutcome::Conflicts(conflicts)),
            };
            // After a later sync, the sandbox builds on the files that are undone now.
            let is_last = state.base.as_deref() == Some(&*applied.work);
            let base = if is_last { applied.base.clone() } else { state.base.clone() };
            let next = WorktreeState { base, applied: None, ..state.clone() };
            self.apply_or_report(&ours, &merged, &next)
        })
    }

    /// Applies a tree. A file at a new path, which the sandbox never had, is a conflict.
    fn apply_or_report(&self, ours: &str, merged: &str, next: &WorktreeState) -> Result<ApplyOutcome, Error> {
        match self.apply(ours, merged, next) {
            Ok(counts) => Ok(ApplyOutcome::Applied(counts)),
            Err(Error::PathOccupied { path }) => {
                Ok(ApplyOutcome::Conflicts(vec![Conflict { path, kind: "not sent".to_owned() }]))
            }
            Err(error) => Err(error),
        }
    }

    /// The changes that `apply_work` would make, as a patch.
    pub fn preview_patch(&self, state: &WorktreeState, theirs: &str) -> Result<Vec<u8>, Error> {
        let base = state.base.as_deref().ok_or(Error::NothingToUndo)?;
        let without_markers = ":(exclude,glob)**/.atoll-empty-directory";
        let comparison =
            ["diff-tree", "-r", "-p", "-M", "--no-ext-diff", "--no-textconv", base, theirs, "--", without_markers];
        Ok(self.run_private("comparing trees", &comparison)?.require_success()?.stdout)
    }

    fn retry_apply(&self, attempt: impl Fn() -> Result<ApplyOutcome, Error>) -> Result<ApplyOutcome, Error> {
        for _ in 1..MAX_ATTEMPTS {
            match attempt() {
                Err(Error::WorktreeChanged { .. }) => {}
                done => return done,
            }
        }
        attempt()
    }
}
