//! `git-sync-in` and `git-sync-out`: copy a user's worktree into the workspace, and its changes out again.
//!
//! The repository of the sync is in the home directory, so that the agent's own one in the workspace need not survive.

use super::command::{Git, GitCommand, GitWorkspace};
use super::error::Error;
use atoll_forge::plumbing::GitOutput;
use atoll_forge::plumbing::bundle::ObjectFormat;
use atoll_forge::plumbing::sync::{RunGit, SentSync, WorkspaceCopy, WorkspaceGit, split_records, sync_commit_env};
use clap::Args;
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};

const INDEXING: &str = "unpacking the worktree's changes";
const PACKING: &str = "packing the workspace";
const CREATING: &str = "creating a repository";
/// The sync repository in the home directory.
const SYNC_DIR: &str = ".atoll-worktree";

#[derive(Debug, Args)]
pub(super) struct OutRequest {
    /// The newest state that the worktree has.
    #[arg(long, allow_hyphen_values = true)]
    base: String,
}

struct SyncGit {
    git: Git,
    sync_dir: PathBuf,
}

impl SyncGit {
    fn find(workspace: &GitWorkspace) -> Result<Self, Error> {
        let mut git = Git::find(workspace)?;
        for (name, value) in sync_commit_env() {
            git.set_variable(name, value);
        }
        Ok(Self { git, sync_dir: workspace.home.join(SYNC_DIR) })
    }

    fn copy(&self) -> WorkspaceCopy<'_, Self> {
        WorkspaceCopy { git: self, root: self.git.workspace.root.clone(), sync_dir: self.sync_dir.clone() }
    }

    /// A command on the sync repository and the workspace's files.
    fn command(&self, what: &'static str) -> GitCommand {
        let command = self.git.command_without_repository(what);
        let command = command.env("GIT_DIR", &self.sync_dir).env("GIT_WORK_TREE", &self.git.workspace.root);
        // `git check-ignore` does not accept it, and no command has paths as arguments.
        let command = command.env("GIT_LITERAL_PATHSPECS", "0");
        command.args(["-c", "core.checkStat=minimal", "-c", "core.trustCtime=false", "-c", "core.fsync=none"])
    }
}

fn add_input(command: GitCommand, input: Option<&[u8]>) -> Result<GitCommand, Error> {
    match input {
        Some(input) => command.input(input),
        None => Ok(command),
    }
}

impl RunGit for SyncGit {
    type Error = Error;

    fn run_git(&self, what: &'static str, arguments: &[&str], input: Option<&[u8]>) -> Result<GitOutput, Error> {
        add_input(self.command(what).args(arguments), input)?.run_slow()
    }

    fn run_nested(&self, directory: &Path, what: &'static str, arguments: &[&str]) -> Result<GitOutput, Error> {
        self.git.command_in(directory, what).args(arguments).run_slow()
    }

    fn list_submodules(&self) -> Result<Vec<Vec<u8>>, Error> {
        let listed = self.command(PACKING).args(["ls-tree", "-r", "-z", "refs/atoll/base"]).run_slow()?;
        let links = split_records(&listed.stdout).filter(|record| record.starts_with(b"160000 "));
        Ok(links.filter_map(|record| Some(record.splitn(2, |byte| *byte == b'\t').nth(1)?.to_vec())).collect())
    }
}

impl WorkspaceGit for SyncGit {
    fn run_agent_git(&self, what: &'static str, arguments: &[&str], input: Option<&[u8]>) -> Result<GitOutput, Error> {
        add_input(self.git.command(what).args(arguments), input)?.run_slow()
    }

    fn run_with_index(
        &self,
        index: &Path,
        what: &'static str,
        arguments: &[&str],
        input: Option<&[u8]>,
    ) -> Result<GitOutput, Error> {
        add_input(self.command(what).env("GIT_INDEX_FILE", index).args(arguments), input)?.run_slow()
    }

    fn init_repository(&self, directory: &Path, arguments: &[&str]) -> Result<GitOutput, Error> {
        let command = self.git.command_without_repository(CREATING).args(["init", "--quiet", "--template="]);
        command.args(arguments).args([directory]).run_quick()
    }

    fn index_pack(&self, pack: File) -> Result<GitOutput, Error> {
        self.command(INDEXING).args(["index-pack", "--stdin", "--fix-thin"]).input_file(pack).run_slow()
    }

    fn write_pack(&self, revisions: &str, output: File) -> Result<GitOutput, Error> {
        let packing = ["pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "--quiet"];
        let command = self.command(PACKING).args(packing).input(revisions.as_bytes())?;
        command.write_into(output, self.git.workspace.output_bytes)
    }
}

pub(super) fn receive_worktree(workspace: &GitWorkspace, input: File) -> Result<Value, Error> {
    let git = SyncGit::find(workspace)?;
    let received = git.copy().receive(input)?;
    Ok(json!({
        "commit": received.commit,
        "changed_files": received.changed_files,
        "warnings": received.warnings,
    }))
}

pub(super) fn send_worktree(request: &OutRequest, workspace: &GitWorkspace, output: File) -> Result<Value, Error> {
    let formats = [ObjectFormat::Sha1, ObjectFormat::Sha256];
    let format = formats.into_iter().find(|format| format.is_object_id(&request.base));
    let format = format.ok_or_else(|| Error::Arguments { detail: "--base must be a full commit id".to_owned() })?;
    let git = SyncGit::find(workspace)?;
    let SentSync { commit, warnings } = git.copy().send(&request.base, format, output)?;
    Ok(json!({ "commit": commit, "warnings": warnings }))
}
