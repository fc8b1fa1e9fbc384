//! Atoll's record of a worktree: its identity, its sandbox and the state that both have.

use super::private_git::give_to_owner;
use crate::error::Error;
use crate::git_command::Owner;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const RECORDING: &str = "recording the worktree's state";
/// Interrupted sync-ins in a row that are remembered.
const MAX_UNCONFIRMED: usize = 8;

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
    /// Sync commits that the sandbox may have received, newest first: no response came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unconfirmed: Vec<String>,
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

impl WorktreeState {
    /// The states that a sandbox may have, newest first; `None` if it has none. Only one that it has is accepted.
    pub fn possible_bases(&self, sandbox: &str) -> Vec<Option<&str>> {
        if self.sandbox.as_deref() != Some(sandbox) {
            return vec![None];
        }
        let unconfirmed = self.unconfirmed.iter().map(|commit| Some(commit.as_str()));
        unconfirmed.chain([self.base.as_deref()]).collect()
    }

    /// The state while `commit` is sent to a sandbox.
    pub(super) fn with_unconfirmed(&self, sandbox: &str, commit: &str) -> Self {
        let mut next = self.clone();
        if self.sandbox.as_deref() != Some(sandbox) {
            (next.sandbox, next.base) = (Some(sandbox.to_owned()), None);
            next.unconfirmed.clear();
        }
        if next.base.as_deref() != Some(commit) && !next.unconfirmed.iter().any(|known| known == commit) {
            next.unconfirmed.insert(0, commit.to_owned());
            next.unconfirmed.truncate(MAX_UNCONFIRMED);
        }
        next
    }

    /// The state after a sandbox has confirmed `base`.
    pub(super) fn with_base(&self, sandbox: &str, base: &str) -> Self {
        let (sandbox, base) = (Some(sandbox.to_owned()), Some(base.to_owned()));
        Self { sandbox, base, unconfirmed: Vec::new(), ..self.clone() }
    }
}

/// The end of a record's path.
pub(super) const PATH_END: &str = "/atoll/state.json";
const MAX_RECORD_BYTES: u64 = 64 << 10;

pub(super) fn state_path(dir: &Path) -> PathBuf {
    dir.join("state.json")
}

pub(super) fn read_or_create(dir: &Path, owner: Owner) -> Result<WorktreeState, Error> {
    if let Ok(state) = read(&state_path(dir)) {
        return Ok(state);
    }
    let identity = uuid::Uuid::now_v7().simple().to_string();
    let state = WorktreeState { identity, sandbox: None, base: None, unconfirmed: Vec::new(), applied: None };
    write(dir, &state, owner)?;
    Ok(state)
}

/// Reads the identity in the file of a worktree.
pub(super) fn read_identity(path: &Path) -> io::Result<String> {
    read(path).map(|state| state.identity)
}

fn read(path: &Path) -> io::Result<WorktreeState> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(serde_json::from_reader(io::BufReader::new(file.take(MAX_RECORD_BYTES)))?)
}

/// Replaces the record in one step. It may be lost if the machine fails.
pub(super) fn write_lazily(dir: &Path, state: &WorktreeState, owner: Owner) -> Result<(), Error> {
    let path = state_path(dir);
    let draft = path.with_extension("draft");
    let written = serde_json::to_vec_pretty(state).map_err(io::Error::from).and_then(|bytes| {
        fs::write(&draft, bytes)?;
        give_to_owner(&draft, owner)?;
        fs::rename(&draft, &path)
    });
    written.map_err(|source| Error::Io { what: RECORDING, source })
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
