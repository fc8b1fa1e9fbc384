//! The sandbox's side of a sync: a repository of its own beside the agent's, so that the agent can change or remove
//! `.git` without harm.
//!
//! The agent's repository borrows the objects of this one. `refs/atoll/base` is the newest state that both sides have,
//! `refs/atoll/sent` the last one that was sent out. A request that builds on the sent one confirms it.

mod agent_repository;
mod first_sync;

use super::markers::is_marker;
use super::run_git::{RunGit, split_records};
use super::snapshot::{Snapshot, take_snapshot};
use super::stream::{SectionReader, StreamError, SyncHeader};
use crate::plumbing::bundle::{self, BundleHeader, ObjectFormat};
use crate::plumbing::{GitFailure, GitOutput};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufReader, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const RECEIVING: &str = "updating the workspace";
const SENDING: &str = "packing the workspace";
const BASE_REF: &str = "refs/atoll/base";
const SENT_REF: &str = "refs/atoll/sent";
/// The worktree's HEAD and staged tree at the last sync.
const HEAD_REF: &str = "refs/atoll/head";
const STAGED_REF: &str = "refs/atoll/staged";
const MAX_NAMED_CONFLICTS: usize = 20;

/// Git in the sandbox, over the sync repository with the workspace as its files.
pub trait WorkspaceGit: RunGit<Error: From<WorkspaceError>> {
    /// Runs git in the agent's repository.
    fn run_agent_git(
        &self,
        what: &'static str,
        arguments: &[&str],
        input: Option<&[u8]>,
    ) -> Result<GitOutput, Self::Error>;
    /// Creates a repository.
    fn init_repository(&self, directory: &Path, arguments: &[&str]) -> Result<GitOutput, Self::Error>;
    fn index_pack(&self, pack: File) -> Result<GitOutput, Self::Error>;
    fn write_pack(&self, revisions: &str, output: File) -> Result<GitOutput, Self::Error>;
}

#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error("the workspace is not empty; a worktree needs a new sandbox")]
    NotEmpty,
    #[error("the sandbox does not have the state that the worktree builds on; run `atoll code --new`")]
    BaseMismatch,
    #[error("changes in the sandbox conflict with the worktree: {}", paths.join(", "))]
    Conflict { paths: Vec<String> },
    #[error("{0}")]
    Stream(#[from] StreamError),
    #[error("{what} failed: {source}")]
    Io { what: &'static str, source: io::Error },
}

/// The workspace after sync-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedSync {
    pub commit: String,
    pub changed_files: u64,
    pub warnings: Vec<String>,
}

/// The workspace as sync-out sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentSync {
    /// `None` if nothing changed since the base.
    pub commit: Option<String>,
    pub warnings: Vec<String>,
}

#[derive(Debug)]
pub struct WorkspaceCopy<'a, G> {
    pub git: &'a G,
    /// The workspace.
    pub root: PathBuf,
    /// The sync repository.
    pub sync_dir: PathBuf,
}

impl<G: WorkspaceGit> WorkspaceCopy<'_, G> {
    /// Brings the workspace to the state of a worktree; keeps changes that were not sent out yet.
    pub fn receive(&self, input: File) -> Result<ReceivedSync, G::Error> {
        let mut input = BufReader::with_capacity(1 << 18, input);
        let header = SyncHeader::read(&mut input).map_err(WorkspaceError::Stream)?;
        let format = check_header(&header)?;
        match header.base.clone() {
            None => self.receive_first(&header, format, input),
            Some(base) => self.receive_changes(&header, &base, input),
        }
    }

    /// Writes a bundle of everything that changed since `base`.
    pub fn send(&self, base: &str, format: ObjectFormat, mut output: File) -> Result<SentSync, G::Error> {
        self.confirm_base(base)?;
        let Snapshot { tree, warnings } = take_snapshot(self.git, &self.root)?;
        if tree == self.tree_of(base)? {
            return Ok(SentSync { commit: None, warnings });
        }
        let commit = self.commit_tree(&tree, base)?;
        self.update_ref(SENT_REF, &commit)?;
        let refs = vec![(bundle::RESULT_REF.to_owned(), commit.clone())];
        let head = BundleHeader { format, prerequisites: vec![base.to_owned()], refs };
        head.write(&mut output).map_err(|source| WorkspaceError::Io { what: SENDING, source })?;
        self.git.write_pack(&format!("{commit}\n^{base}\n"), output)?.require_success()?;
        Ok(SentSync { commit: Some(commit), warnings })
    }

    fn receive_changes(
        &self,
        header: &SyncHeader,
        base: &str,
        mut input: BufReader<File>,
    ) -> Result<ReceivedSync, G::Error> {
        self.confirm_base(base)?;
        let failed = |source| WorkspaceError::Io { what: RECEIVING, source };
        let mut pack = tempfile::tempfile_in(&self.sync_dir).map_err(failed)?;
        let length = io::copy(&mut SectionReader::new(&mut input), &mut pack).map_err(failed)?;
        if length > 0 {
            pack.rewind().map_err(failed)?;
            self.git.index_pack(pack)?.require_success()?;
        }
        let Snapshot { tree: here, warnings } = take_snapshot(self.git, &self.root)?;
        let wanted = self.tree_of(&header.commit)?;
        let merged =
            if here == self.tree_of(base)? { wanted } else { self.merge_changes(&here, base, &header.commit)? };
        let changed_files = self.write_tree(&here, &merged)?;
        self.update_agent_repository(header)?;
        self.update_ref(BASE_REF, &header.commit)?;
        Ok(ReceivedSync { commit: header.commit.clone(), changed_files, warnings })
    }

    /// Accepts the state that a request builds on.
    fn confirm_base(&self, base: &str) -> Result<(), G::Error> {
        if self.read_ref(BASE_REF)?.as_deref() == Some(base) {
            return Ok(());
        }
        // The last one that was sent, or an earlier one after an undo.
        for name in [SENT_REF, BASE_REF] {
            let ancestor = ["merge-base", "--is-ancestor", base, name];
            if self.read_ref(name)?.is_some() && self.git.run_git(RECEIVING, &ancestor, None)?.is_success() {
                return self.update_ref(BASE_REF, base);
            }
        }
        Err(WorkspaceError::BaseMismatch.into())
    }

    /// Merges changes of the sandbox that the worktree does not have.
    fn merge_changes(&self, here: &str, base: &str, theirs: &str) -> Result<String, G::Error> {
        let ours = self.commit_tree(here, base)?;
        let merge = ["-c", "merge.directoryRenames=false", "merge-tree", "--write-tree", "-z", &ours, theirs];
        let merged = self.git.run_git(RECEIVING, &merge, None)?;
        let mut records = merged.stdout.split(|byte| *byte == 0);
        let tree = String::from_utf8_lossy(records.next().unwrap_or_default()).into_owned();
        match merged.exit_code() {
            Some(0) => Ok(tree),
            Some(1) => {
                let conflicted = records.take_while(|record| !record.is_empty());
                let mut paths: Vec<String> = conflicted
                    .filter_map(|record| Some(&record[record.iter().position(|byte| *byte == b'\t')? + 1..]))
                    .map(|path| String::from_utf8_lossy(path).into_owned())
                    .collect();
                paths.dedup();
                paths.truncate(MAX_NAMED_CONFLICTS);
                Err(WorkspaceError::Conflict { paths }.into())
            }
            _ => Err(GitFailure { what: RECEIVING, detail: merged.failure_detail() }.into()),
        }
    }

    /// Writes the files that differ between the current tree and the wanted one. Returns their number.
    fn write_tree(&self, here: &str, wanted: &str) -> Result<u64, G::Error> {
        if here == wanted {
            return Ok(0);
        }
        let listed = self.git.run_git(
            RECEIVING,
            &["diff-tree", "-r", "-z", "--no-renames", "--name-only", here, wanted],
            None,
        )?;
        let listed = listed.require_success()?;
        let settings = ["-c", "core.splitIndex=false", "-c", "index.version=4"];
        let update = [settings.as_slice(), &["read-tree", "-m", "-u", here, wanted]].concat();
        self.git.run_git(RECEIVING, &update, None)?.require_success()?;
        // Git has written the markers of empty directories as files.
        let names: Vec<&[u8]> = split_records(&listed.stdout).collect();
        for marker in names.iter().filter(|name| is_marker(name)) {
            drop(fs::remove_file(self.root.join(OsStr::from_bytes(marker))));
        }
        Ok(names.len() as u64)
    }

    fn commit_tree(&self, tree: &str, parent: &str) -> Result<String, G::Error> {
        let arguments = ["commit-tree", "-m", "atoll sync", "-p", parent, tree];
        Ok(self.git.run_git(SENDING, &arguments, None)?.require_success()?.text())
    }

    fn tree_of(&self, commit: &str) -> Result<String, G::Error> {
        let tree = format!("{commit}^{{tree}}");
        let found = self.git.run_git(RECEIVING, &["rev-parse", "--verify", "--quiet", &tree], None)?;
        if found.is_success() { Ok(found.text()) } else { Err(WorkspaceError::BaseMismatch.into()) }
    }

    fn read_ref(&self, name: &str) -> Result<Option<String>, G::Error> {
        let found = self.git.run_git(RECEIVING, &["rev-parse", "--verify", "--quiet", name], None)?;
        Ok(found.is_success().then(|| found.text()))
    }

    fn update_ref(&self, name: &str, object: &str) -> Result<(), G::Error> {
        self.git.run_git(RECEIVING, &["update-ref", name, object], None)?.require_success()?;
        Ok(())
    }
}

/// Checks the ids of a header, which become arguments of git.
fn check_header(header: &SyncHeader) -> Result<ObjectFormat, WorkspaceError> {
    let malformed = || WorkspaceError::Stream(StreamError::Malformed("its header is not valid"));
    let format = ObjectFormat::from_name(&header.format).ok_or_else(malformed)?;
    let named = [Some(&header.commit), header.base.as_ref(), header.head.as_ref(), header.staged.as_ref()];
    let mut ids = named.into_iter().flatten().chain(&header.shallow);
    if ids.all(|id| format.is_object_id(id)) { Ok(format) } else { Err(malformed()) }
}

/// Writes a file with a modification time.
fn write_with_time(path: &Path, from: &mut impl io::Read, nanoseconds: i64) -> io::Result<u64> {
    let mut file = File::create(path)?;
    let length = io::copy(from, &mut file)?;
    file.flush()?;
    let time = std::time::Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0));
    file.set_modified(std::time::UNIX_EPOCH + time)?;
    Ok(length)
}
