//! The user's own worktree: what goes into its sandbox, and how the sandbox's changes come back.
//!
//! Everything of Atoll is in the directory `atoll` of the worktree's git directory: `git worktree remove` removes it too.
//! The user's index, refs and objects never change. Changes go into the files only, all or nothing (`apply`).
//!
//! `base` is the newest state that both sides have: sync-in makes it the worktree's, sync-out the sandbox's. Both
//! directions merge with it as the common ancestor (`merge`).

mod apply;
mod branch_export;
mod confined_path;
mod exchange;
mod incoming;
mod journal;
mod lock;
mod merge;
mod outgoing;
mod own_index;
mod plan;
mod private_git;
mod removal;
mod settings;
mod state;
#[cfg(test)]
mod tests;
mod undo;

pub use exchange::ExchangeError;
pub use incoming::FetchedWork;
pub use lock::WorktreeLock;
pub use merge::{Conflict, MergeOutcome, Resolution};
pub use outgoing::PreparedSync;
pub use plan::ChangeCounts;
pub use removal::{MACHINE_LABEL, WORKTREE_LABEL, is_worktree_removed, read_machine_id, worktree_labels};
pub use state::WorktreeState;
pub use undo::ApplyOutcome;

use crate::error::Error;
use crate::git_command::{HostGitCommand, RepositoryDirs};
use crate::plumbing::sync::Snapshot;
use crate::repository::HostRepository;
use settings::UserSettings;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A worktree with Atoll's private repository.
#[derive(Debug)]
pub struct Worktree {
    repository: HostRepository,
    /// A bare repository without configuration that borrows the user's objects.
    private: HostRepository,
    /// The top directory.
    root: PathBuf,
    /// The git directory of this worktree.
    git_dir: PathBuf,
    /// Atoll's directory in it.
    dir: PathBuf,
    settings: UserSettings,
}

/// The files of a worktree at one moment.
#[derive(Debug, Clone)]
pub struct WorktreeFiles {
    pub tree: String,
    /// Files that the tree lacks.
    pub warnings: Vec<String>,
}

impl Worktree {
    /// Opens the worktree of a directory, and completes or reverts an interrupted sync-out.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let repository = HostRepository::open_without_commits(path)?;
        let root = repository.work_tree().ok_or_else(|| Error::NoWorktree { path: path.to_owned() })?.to_owned();
        let answer = repository.run_lookup(["rev-parse", "--absolute-git-dir"])?.require_success()?;
        let mut bytes = answer.stdout;
        bytes.pop();
        let git_dir = PathBuf::from(OsString::from_vec(bytes));
        let dir = git_dir.join("atoll");
        let private = private_git::open_private_repository(&repository, &dir)?;
        let settings = UserSettings::read(&repository)?;
        Ok(Self { repository, private, root, git_dir, dir, settings })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file with the worktree's identity, which ends with the worktree.
    pub fn identity_path(&self) -> PathBuf {
        state::state_path(&self.dir)
    }

    /// Locks the worktree and repairs what an interrupted command left.
    pub fn lock(&self, holder: &str, wait: bool) -> Result<WorktreeLock, Error> {
        let lock = WorktreeLock::acquire(&self.dir, holder, wait)?;
        self.recover()?;
        Ok(lock)
    }

    pub fn read_state(&self) -> Result<WorktreeState, Error> {
        state::read_or_create(&self.dir, self.repository.owner)
    }

    pub fn write_state(&self, state: &WorktreeState) -> Result<(), Error> {
        state::write(&self.dir, state, self.repository.owner)
    }

    /// Reads the current files as a tree.
    pub fn take_snapshot(&self) -> Result<WorktreeFiles, Error> {
        let Snapshot { tree, warnings } = self.update_own_index()?;
        Ok(WorktreeFiles { tree, warnings })
    }

    /// A command over the worktree's files, with the user's repository and Atoll's index and objects.
    fn files_command(&self, what: &'static str) -> Result<HostGitCommand, Error> {
        let dirs = RepositoryDirs { git_dir: self.git_dir.clone(), work_tree: Some(self.root.clone()) };
        let limits = &self.repository.limits;
        let mut command = HostGitCommand::new(self.repository.owner, Some(&dirs), what, limits.bulk_timeout)?
            .env("GIT_INDEX_FILE", self.own_index_path());
        for (name, value) in private_git::object_env(&self.repository, &self.private) {
            command = command.env(name, value);
        }
        for (name, value) in &self.settings.filter_env {
            command = command.env(name, value);
        }
        let command = command.args(private_git::LAZY_SETTINGS);
        Ok(command.args(self.settings.command_arguments(&self.excludes_path())))
    }
}
