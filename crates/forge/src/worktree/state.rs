//! Atoll's record of a worktree: its identity, its sandbox and the state that both have.

use super::private_git::give_to_owner;
use crate::error::Error;
use crate::git_command::Owner;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const RECORDING: &str = "recording the worktree's state";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorktreeState {
    /// Names the worktree in the label of its sandbox.
    pub identity: String,
    /// The sandbox that `base` belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The newest sync commit that both sides have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The last sync-out, which can be undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<AppliedWork>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedWork {
    /// Sync commits of the worktree before and after.
    pub before: String,
    pub after: String,
    /// The sync commit of the sandbox that was applied.
    pub work: String,
    /// `base` before.
    pub base: Option<String>,
}

pub(super) fn state_path(dir: &Path) -> PathBuf {
    dir.join("state.json")
}

pub(super) fn read_or_create(dir: &Path, owner: Owner) -> Result<WorktreeState, Error> {
    if let Some(state) = read(&state_path(dir)) {
        return Ok(state);
    }
    let identity = uuid::Uuid::now_v7().simple().to_string();
    let state = WorktreeState { identity, sandbox: None, base: None, applied: None };
    write(dir, &state, owner)?;
    Ok(state)
}

/// The identity in the file of a worktree; `None` if the worktree is gone.
pub fn read_identity(path: &Path) -> Option<String> {
    read(path).map(|state| state.identity)
}

fn read(path: &Path) -> Option<WorktreeState> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Replaces the record in one step, durably.
pub(super) fn write(dir: &Path, state: &WorktreeState, owner: Owner) -> Result<(), Error> {
    let bytes = serde_json::to_vec_pretty(state).map_err(io::Error::from);
    bytes
        .and_then(|bytes| replace_file(&state_path(dir), &bytes, owner))
        .map_err(|source| Error::Io { what: RECORDING, source })
}

/// Writes a file durably under its name, or not at all.
pub(super) fn replace_file(path: &Path, bytes: &[u8], owner: Owner) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let mut file = File::create(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    give_to_owner(&draft, owner)?;
    fs::rename(&draft, path)?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}
