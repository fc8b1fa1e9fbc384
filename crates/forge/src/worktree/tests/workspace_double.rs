//! The sandbox's side of a sync in a directory of this machine.

use crate::error::Error;
use crate::plumbing::bundle::ObjectFormat;
use crate::plumbing::subprocess::ProcessExit;
use crate::plumbing::sync::{RunGit, WorkspaceCopy, WorkspaceError, WorkspaceGit, split_records, sync_commit_env};
use crate::plumbing::{GitFailure, GitOutput};
use crate::worktree::ExchangeError;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[derive(Debug, thiserror::Error)]
pub enum DoubleError {
    #[error("{}: {}", .0.what, .0.detail)]
    Git(GitFailure),
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    #[error("git was killed")]
    Killed,
    #[error(transparent)]
    Worktree(#[from] Error),
}

impl ExchangeError for DoubleError {
    fn is_base_mismatch(&self) -> bool {
        matches!(self, Self::Workspace(WorkspaceError::BaseMismatch))
    }
}

impl From<GitFailure> for DoubleError {
    fn from(failure: GitFailure) -> Self {
        Self::Git(failure)
    }
}

pub struct WorkspaceDouble {
    pub root: PathBuf,
    sync_dir: PathBuf,
    /// Fails after git has written files.
    pub kill_after_files: AtomicBool,
    snapshots: AtomicUsize,
}

impl WorkspaceDouble {
    pub fn new(dir: &Path) -> Self {
        std::fs::create_dir_all(dir.join("workspace")).unwrap();
        Self {
            root: dir.join("workspace"),
            sync_dir: dir.join("sync"),
            kill_after_files: AtomicBool::new(false),
            snapshots: AtomicUsize::new(0),
        }
    }

    /// The number of looks at all files so far.
    pub fn count_snapshots(&self) -> usize {
        self.snapshots.load(Ordering::Relaxed)
    }

    fn copy(&self) -> WorkspaceCopy<'_, Self> {
        WorkspaceCopy { git: self, root: self.root.clone(), sync_dir: self.sync_dir.clone() }
    }

    pub fn receive(&self, stream: &Path) -> Result<(), DoubleError> {
        self.copy().receive(File::open(stream).unwrap()).map(drop)
    }

    /// Writes a bundle; `None` if nothing changed.
    pub fn send(&self, base: &str, bundle: &Path) -> Result<Option<String>, DoubleError> {
        Ok(self.copy().send(base, ObjectFormat::Sha1, File::create(bundle).unwrap())?.commit)
    }

    fn command(&self, git_dir: &Path) -> Command {
        let mut command = Command::new("git");
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("LC_ALL", "C");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").env("HOME", "/nonexistent");
        command.envs(sync_commit_env()).env("GIT_DIR", git_dir).env("GIT_WORK_TREE", &self.root);
        command.args(["-c", "core.bare=false", "-c", "core.checkStat=minimal", "-c", "core.trustctime=false"]);
        command.current_dir(&self.root);
        command
    }
}

fn run(mut command: Command, what: &'static str, input: Option<&[u8]>) -> GitOutput {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.unwrap_or_default().to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    GitOutput::new(what, output.stdout, ProcessExit { status: output.status, stderr })
}

impl RunGit for WorkspaceDouble {
    type Error = DoubleError;

    fn run_git(&self, what: &'static str, arguments: &[&str], input: Option<&[u8]>) -> Result<GitOutput, DoubleError> {
        self.run_with_index(&self.sync_dir.join("index"), what, arguments, input)
    }

    fn run_nested(&self, directory: &Path, what: &'static str, arguments: &[&str]) -> Result<GitOutput, DoubleError> {
        let mut command = self.command(&directory.join(".git"));
        command.env("GIT_WORK_TREE", directory).args(arguments);
        Ok(run(command, what, None))
    }

    fn list_submodules(&self) -> Result<Vec<Vec<u8>>, DoubleError> {
        let listed = self.run_git("listing", &["ls-tree", "-r", "-z", "refs/atoll/base"], None)?;
        let links = split_records(&listed.stdout).filter(|record| record.starts_with(b"160000 "));
        Ok(links.filter_map(|record| Some(record.splitn(2, |byte| *byte == b'\t').nth(1)?.to_vec())).collect())
    }
}

impl WorkspaceGit for WorkspaceDouble {
    fn run_agent_git(
        &self,
        what: &'static str,
        arguments: &[&str],
        input: Option<&[u8]>,
    ) -> Result<GitOutput, DoubleError> {
        let mut command = self.command(&self.root.join(".git"));
        command.args(arguments);
        Ok(run(command, what, input))
    }

    fn run_with_index(
        &self,
        index: &Path,
        what: &'static str,
        arguments: &[&str],
        input: Option<&[u8]>,
    ) -> Result<GitOutput, DoubleError> {
        let mut command = self.command(&self.sync_dir);
        command.env("GIT_INDEX_FILE", index).args(arguments);
        let output = run(command, what, input);
        if arguments.contains(&"add") {
            self.snapshots.fetch_add(1, Ordering::Relaxed);
        }
        let writes_files = arguments.iter().any(|argument| ["-u", "checkout-index"].contains(argument));
        if writes_files && self.kill_after_files.load(Ordering::Relaxed) {
            return Err(DoubleError::Killed);
        }
        Ok(output)
    }

    fn init_repository(&self, directory: &Path, arguments: &[&str]) -> Result<GitOutput, DoubleError> {
        let mut command = Command::new("git");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        command.args(["init", "--quiet", "--template="]).args(arguments).arg(directory);
        Ok(run(command, "creating a repository", None))
    }

    fn index_pack(&self, pack: File) -> Result<GitOutput, DoubleError> {
        let mut command = self.command(&self.sync_dir);
        let output = command.args(["index-pack", "--stdin", "--fix-thin"]).stdin(pack).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok(GitOutput::new("indexing", output.stdout, ProcessExit { status: output.status, stderr }))
    }

    fn write_pack(&self, revisions: &str, mut output: File) -> Result<GitOutput, DoubleError> {
        let packing = ["pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "--quiet"];
        let packed = self.run_git("packing", &packing, Some(revisions.as_bytes()))?;
        output.write_all(&packed.stdout).unwrap();
        Ok(packed)
    }
}
