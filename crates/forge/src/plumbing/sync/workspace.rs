//! The sandbox's side of a sync: a repository of its own beside the agent's, so that the agent can change or remove
//! `.git` without harm.
//!
//! The agent's repository borrows the objects of this one. `refs/atoll/base` is the newest state that both sides have,
//! `refs/atoll/sent` the last one that was sent out. A request that builds on the sent one confirms it.

mod agent_repository;
mod first_sync;
mod untouched_files;

use super::markers::is_marker;
use super::run_git::{RunGit, split_records};
use super::snapshot::{Snapshot, take_snapshot};
use super::stream::{SectionReader, StreamError, SyncHeader};
use crate::plumbing::bundle::{self, BundleHeader, ObjectFormat};
use crate::plumbing::{GitFailure, GitOutput};
use std::collections::BTreeMap;
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
/// The files that a request is writing. Its parents are the files before and the worktree's sync commit.
const RECEIVING_REF: &str = "refs/atoll/receiving";
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
    /// Runs git in the sync repository with another index.
    fn run_with_index(
        &self,
        index: &Path,
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

/// The refs of the sync repository.
type SyncRefs = BTreeMap<String, String>;

enum Merged {
    Clean(String),
    Conflict { paths: Vec<Vec<u8>> },
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
        let commit = self.commit_tree(&tree, &[base])?;
        self.update_refs(&[(SENT_REF, Some(&commit))])?;
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
        let refs = self.confirm_base(base)?;
        let failed = |source| WorkspaceError::Io { what: RECEIVING, source };
        let mut pack = tempfile::tempfile_in(&self.sync_dir).map_err(failed)?;
        let length = io::copy(&mut SectionReader::new(&mut input), &mut pack).map_err(failed)?;
        if length > 0 {
            pack.rewind().map_err(failed)?;
            self.git.index_pack(pack)?.require_success()?;
        }
        write_if_changed(&self.sync_dir.join("info/exclude"), header.excludes.as_bytes()).map_err(failed)?;
        let mut warnings = Vec::new();
        let changed_files = if header.commit == base {
            0
        } else {
            match self.update_untouched_files(base, &header.commit)? {
                Some(count) => count,
                None => self.merge_files(base, &header.commit, &mut warnings)?,
            }
        };
        self.update_agent_repository(header, &refs)?;
        let mut updates = vec![(BASE_REF, Some(header.commit.as_str())), (RECEIVING_REF, None)];
        updates.extend(agent_state(header));
        self.update_refs(&updates)?;
        Ok(ReceivedSync { commit: header.commit.clone(), changed_files, warnings })
    }

    /// Merges a state of the worktree into the workspace. Returns the number of changed files.
    fn merge_files(&self, base: &str, commit: &str, warnings: &mut Vec<String>) -> Result<u64, G::Error> {
        let here = take_snapshot(self.git, &self.root)?;
        warnings.extend(here.warnings);
        if here.tree == self.tree_of(base)? {
            let wanted = self.tree_of(commit)?;
            self.begin_receiving(base, commit, &wanted)?;
            return self.write_tree(&here.tree, &wanted);
        }
        let before = self.commit_tree(&here.tree, &[base])?;
        match self.merge(&before, commit)? {
            Merged::Clean(merged) => {
                self.begin_receiving(&before, commit, &merged)?;
                self.write_tree(&here.tree, &merged)
            }
            Merged::Conflict { mut paths } => {
                paths.truncate(MAX_NAMED_CONFLICTS);
                let paths = paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
                Err(WorkspaceError::Conflict { paths }.into())
            }
        }
    }

    /// Records the files that are about to be written, for the case that git is killed meanwhile.
    fn begin_receiving(&self, before: &str, commit: &str, wanted_tree: &str) -> Result<(), G::Error> {
        let receiving = self.commit_tree(wanted_tree, &[before, commit])?;
        self.update_refs(&[(RECEIVING_REF, Some(&receiving))])
    }

    /// Completes a request that was killed while it wrote files.
    fn complete_interrupted(&self, receiving: &str) -> Result<(), G::Error> {
        let before = format!("{receiving}^1");
        let mut is_second = false;
        loop {
            let here = take_snapshot(self.git, &self.root)?.tree;
            match self.merge(&self.commit_tree(&here, &[&before])?, receiving)? {
                Merged::Clean(merged) => {
                    self.write_tree(&here, &merged)?;
                    let received = self.git.run_git(RECEIVING, &["rev-parse", &format!("{receiving}^2")], None)?;
                    let received = received.require_success()?.text();
                    return self.update_refs(&[(BASE_REF, Some(&received)), (RECEIVING_REF, None)]);
                }
                // A file that git had begun to write.
                Merged::Conflict { paths } if !is_second => self.restore_files(receiving, &paths)?,
                Merged::Conflict { paths } => {
                    let paths = paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
                    return Err(WorkspaceError::Conflict { paths }.into());
                }
            }
            is_second = true;
        }
    }

    /// Replaces files of the workspace by those of a commit.
    fn restore_files(&self, commit: &str, paths: &[Vec<u8>]) -> Result<(), G::Error> {
        for path in paths {
            let name = OsStr::from_bytes(path);
            drop(fs::remove_file(self.root.join(name)));
            if let Some(name) = name.to_str() {
                // Fails if the commit deletes the file.
                self.git.run_git(RECEIVING, &["--literal-pathspecs", "checkout", "-f", commit, "--", name], None)?;
            }
        }
        Ok(())
    }

    /// Accepts the state that a request builds on. Returns the refs.
    fn confirm_base(&self, base: &str) -> Result<SyncRefs, G::Error> {
        let mut refs = self.read_refs()?;
        if let Some(receiving) = refs.get(RECEIVING_REF) {
            self.complete_interrupted(receiving)?;
            refs = self.read_refs()?;
        }
        if refs.get(BASE_REF).is_some_and(|known| known == base) {
            return Ok(refs);
        }
        // The last one that was sent, or an earlier one after an undo.
        for name in [SENT_REF, BASE_REF] {
            let ancestor = ["merge-base", "--is-ancestor", base, name];
            if refs.contains_key(name) && self.git.run_git(RECEIVING, &ancestor, None)?.is_success() {
                self.update_refs(&[(BASE_REF, Some(base))])?;
                return Ok(refs);
            }
        }
        Err(WorkspaceError::BaseMismatch.into())
    }

    /// Merges two sync commits.
    fn merge(&self, ours: &str, theirs: &str) -> Result<Merged, G::Error> {
        let merge = ["-c", "merge.directoryRenames=false", "merge-tree", "--write-tree", "-z", ours, theirs];
        let merged = self.git.run_git(RECEIVING, &merge, None)?;
        let mut records = merged.stdout.split(|byte| *byte == 0);
        let tree = String::from_utf8_lossy(records.next().unwrap_or_default()).into_owned();
        match merged.exit_code() {
            Some(0) => Ok(Merged::Clean(tree)),
            Some(1) => {
                let conflicted = records.take_while(|record| !record.is_empty());
                let path = |record: &[u8]| Some(record[record.iter().position(|byte| *byte == b'\t')? + 1..].to_vec());
                let mut paths: Vec<Vec<u8>> = conflicted.filter_map(path).collect();
                paths.dedup();
                Ok(Merged::Conflict { paths })
            }
            _ => Err(GitFailure { what: RECEIVING, detail: merged.failure_detail() }.into()),
        }
    }

    /// Writes the files that differ between the current tree and the wanted one. Returns their number.
    fn write_tree(&self, here: &str, wanted: &str) -> Result<u64, G::Error> {
        if here == wanted {
            return Ok(0);
        }
        let comparison = ["diff-tree", "-r", "-z", "--no-renames", "--name-only", here, wanted];
        let listed = self.git.run_git(RECEIVING, &comparison, None)?.require_success()?;
        self.read_tree(here, wanted)?.require_success()?;
        // Git has written the markers of empty directories as files.
        let names: Vec<&[u8]> = split_records(&listed.stdout).collect();
        for marker in names.iter().filter(|name| is_marker(name)) {
            drop(fs::remove_file(self.root.join(OsStr::from_bytes(marker))));
        }
        Ok(names.len() as u64)
    }

    /// Moves the index and the files from one tree to another; fails if a file that differs was changed.
    fn read_tree(&self, from: &str, to: &str) -> Result<GitOutput, G::Error> {
        let settings = ["-c", "core.splitIndex=false", "-c", "index.version=4", "-c", "index.skipHash=true"];
        let update = [settings.as_slice(), &["read-tree", "-m", "-u", from, to]].concat();
        self.git.run_git(RECEIVING, &update, None)
    }

    fn commit_tree(&self, tree: &str, parents: &[&str]) -> Result<String, G::Error> {
        let mut arguments = vec!["commit-tree", "-m", "atoll sync"];
        parents.iter().for_each(|parent| arguments.extend(["-p", parent]));
        arguments.push(tree);
        Ok(self.git.run_git(SENDING, &arguments, None)?.require_success()?.text())
    }

    fn tree_of(&self, commit: &str) -> Result<String, G::Error> {
        let tree = format!("{commit}^{{tree}}");
        let found = self.git.run_git(RECEIVING, &["rev-parse", "--verify", "--quiet", &tree], None)?;
        if found.is_success() { Ok(found.text()) } else { Err(WorkspaceError::BaseMismatch.into()) }
    }

    /// Reads all refs; none if there is no sync repository.
    fn read_refs(&self) -> Result<SyncRefs, G::Error> {
        let listing = ["for-each-ref", "--format=%(refname) %(objectname)", "refs/atoll/"];
        let listed = self.git.run_git(RECEIVING, &listing, None)?;
        let refs = listed.text();
        let pairs = refs.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs.map(|(name, id)| (name.to_owned(), id.to_owned())).collect())
    }

    /// Sets or removes refs, all or none of them.
    fn update_refs(&self, updates: &[(&str, Option<&str>)]) -> Result<(), G::Error> {
        let lines: String = updates
            .iter()
            .map(|(name, object)| match object {
                Some(object) => format!("update {name} {object}\n"),
                None => format!("delete {name}\n"),
            })
            .collect();
        self.git.run_git(RECEIVING, &["update-ref", "--stdin"], Some(lines.as_bytes()))?.require_success()?;
        Ok(())
    }
}

/// The refs that record the agent's repository.
fn agent_state(header: &SyncHeader) -> impl Iterator<Item = (&'static str, Option<&str>)> {
    let states = [(HEAD_REF, header.head.as_deref()), (STAGED_REF, header.staged.as_deref())];
    states.into_iter().filter(|(_, id)| id.is_some())
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

/// Leaves an equal file alone: git's cache of untracked files depends on its modification time.
pub(crate) fn write_if_changed(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|found| found == bytes) { Ok(()) } else { fs::write(path, bytes) }
}
