//! Atoll's private bare repository of a worktree: the objects of snapshots and results, and the refs that keep them.

use super::Worktree;
use crate::error::Error;
use crate::git_command::{HostGitCommand, Owner, RepositoryDirs};
use crate::plumbing::GitOutput;
use crate::plumbing::sync::{RunGit, split_records, sync_commit_env};
use crate::quarantine::quote_path;
use crate::repository::HostRepository;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, lchown};
use std::path::Path;

/// Sync-out makes the objects durable before it changes a file (`apply`). The objects of a sync-in need not be durable.
pub(super) const LAZY_SETTINGS: [&str; 2] = ["-c", "core.fsync=none"];
const CREATING: &str = "creating Atoll's directory in the repository";

/// Creates a private directory that belongs to the repository's owner.
pub(super) fn create_owned_dir(path: &Path, owner: Owner) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(error),
    }
    give_to_owner(path, owner)
}

pub(super) fn give_to_owner(path: &Path, owner: Owner) -> io::Result<()> {
    if owner.is_current_user() { Ok(()) } else { lchown(path, Some(owner.uid), Some(owner.gid)) }
}

pub(super) fn open_private_repository(repository: &HostRepository, dir: &Path) -> Result<HostRepository, Error> {
    let failed = |source| Error::Io { what: CREATING, source };
    create_owned_dir(dir, repository.owner).map_err(failed)?;
    let git_dir = dir.join("repository");
    let alternates = git_dir.join("objects/info/alternates");
    if !alternates.exists() {
        let format = format!("--object-format={}", repository.format.name());
        let init = HostGitCommand::new(repository.owner, None, CREATING, repository.limits.lookup_timeout)?;
        let init = init.args(["init", "--quiet", "--bare", "--template=", &format, "--"]).args([&git_dir]);
        init.capture_output(repository.limits.listing_bytes)?.require_success()?;
        let mut line = quote_path(repository.common_dir.join("objects").as_os_str());
        line.push("\n");
        fs::create_dir_all(git_dir.join("objects/info")).map_err(failed)?;
        fs::write(&alternates, line.as_bytes()).map_err(failed)?;
        fs::set_permissions(&alternates, Permissions::from_mode(0o600)).map_err(failed)?;
        give_to_owner(&alternates, repository.owner).map_err(failed)?;
    }
    Ok(HostRepository {
        is_mirror: false,
        path: dir.to_owned(),
        dirs: RepositoryDirs { git_dir: git_dir.clone(), work_tree: None },
        owner: repository.owner,
        format: repository.format,
        common_dir: git_dir,
        limits: repository.limits.clone(),
    })
}

/// Variables that make git write objects into the private repository.
pub(super) fn object_env(repository: &HostRepository, private: &HostRepository) -> [(&'static str, OsString); 2] {
    [
        ("GIT_OBJECT_DIRECTORY", private.common_dir.join("objects").into_os_string()),
        ("GIT_ALTERNATE_OBJECT_DIRECTORIES", quote_path(repository.common_dir.join("objects").as_os_str())),
    ]
}

impl Worktree {
    /// Runs git in the private repository, where no configuration or attribute of the user applies.
    pub(super) fn run_private(&self, what: &'static str, arguments: &[&str]) -> Result<GitOutput, Error> {
        self.private_command(what)?.args(arguments).capture_output(self.private.limits.listing_bytes)
    }

    pub(super) fn private_command(&self, what: &'static str) -> Result<HostGitCommand, Error> {
        let command = self.private.git_command(what, self.private.limits.bulk_timeout)?.args(LAZY_SETTINGS);
        Ok(sync_commit_env().fold(command, |command, (name, value)| command.env(name, value)))
    }

    /// Wraps a tree in a sync commit.
    pub(super) fn commit_tree(&self, tree: &str, parent: Option<&str>) -> Result<String, Error> {
        let mut arguments = vec!["commit-tree", "-m", "atoll sync"];
        arguments.extend(parent.iter().flat_map(|parent| ["-p", parent]));
        arguments.push(tree);
        Ok(self.run_private("recording the worktree", &arguments)?.require_success()?.text())
    }

    pub(super) fn tree_of(&self, commit: &str) -> Result<String, Error> {
        let tree = format!("{commit}^{{tree}}");
        let found = self.run_private("reading a synced state", &["rev-parse", "--verify", "--quiet", &tree])?;
        Ok(found.require_success()?.text())
    }

    pub(super) fn read_private_refs(&self) -> Result<BTreeMap<String, String>, Error> {
        let listing = ["for-each-ref", "--format=%(refname) %(objectname)", "refs/atoll/"];
        let listed = self.run_private("reading a synced state", &listing)?.require_success()?.text();
        let pairs = listed.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs.map(|(name, id)| (name.to_owned(), id.to_owned())).collect())
    }

    /// Sets refs, all or none of them.
    pub(super) fn update_private_refs<'a>(
        &self,
        refs: impl IntoIterator<Item = (&'static str, &'a str)>,
    ) -> Result<(), Error> {
        let lines: String = refs.into_iter().map(|(name, id)| format!("update {name} {id}\n")).collect();
        let update = self.private_command("recording a synced state")?.args(["update-ref", "--stdin"]);
        let update = update.input_bytes(lines.as_bytes())?;
        update.capture_output(self.private.limits.listing_bytes)?.require_success()?;
        Ok(())
    }
}

impl RunGit for Worktree {
    type Error = Error;

    fn run_git(&self, what: &'static str, arguments: &[&str], input: Option<&[u8]>) -> Result<GitOutput, Error> {
        let mut command = self.files_command(what)?.args(arguments);
        if let Some(input) = input {
            command = command.input_bytes(input)?;
        }
        command.capture_output(self.repository.limits.listing_bytes)
    }

    fn run_nested(&self, directory: &Path, what: &'static str, arguments: &[&str]) -> Result<GitOutput, Error> {
        let dirs = RepositoryDirs { git_dir: directory.join(".git"), work_tree: Some(directory.to_owned()) };
        let limits = &self.repository.limits;
        let command = HostGitCommand::new(self.repository.owner, Some(&dirs), what, limits.bulk_timeout)?;
        command.args(arguments).capture_output(limits.listing_bytes)
    }

    fn list_submodules(&self) -> Result<Vec<Vec<u8>>, Error> {
        let listed = self.repository.run_lookup(["ls-files", "--stage", "-z"])?.require_success()?;
        let links = split_records(&listed.stdout).filter(|record| record.starts_with(b"160000 "));
        Ok(links
            .filter_map(|record| Some(record[record.iter().position(|byte| *byte == b'\t')? + 1..].to_vec()))
            .collect())
    }
}
