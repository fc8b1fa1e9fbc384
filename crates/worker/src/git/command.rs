//! Runs git in a sandbox, with settings that keep it from starting programs of the workspace's configuration.
//!
//! The workspace is hostile, and the jail around this process protects the host. The settings only keep a job from
//! hanging and its result predictable.

use super::error::Error;
use super::index::split_records;
use super::large_file_filters::{self, PointerUse};
use atoll_forge::plumbing::subprocess::{self, ProcessExit, RunFailure, RunLimits};
use atoll_forge::plumbing::{GitOutput, filters, git_program};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The worker in every sandbox.
const WORKER_PATH: &str = "/opt/atoll/worker";

const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Larger than any list of files.
pub(super) const MAX_LISTING_BYTES: u64 = 256 << 20;

const SETTINGS: &[&str] = &[
    "advice.graftFileDeprecated=false",
    "core.bare=false",
    "core.bigFileThreshold=32m",
    "core.checkStat=default",
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.ignoreStat=false",
    // The server rejects names that some systems take for `.git`.
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "core.sparseCheckout=false",
    "core.splitIndex=false",
    "core.trustCtime=true",
    "commit.gpgSign=false",
    "gc.auto=0",
    "i18n.commitEncoding=UTF-8",
    "index.sparse=false",
    "init.defaultBranch=main",
    "maintenance.auto=false",
    "protocol.allow=never",
    "safe.directory=*",
    "submodule.recurse=false",
];

const LARGE_FILE_FILTER: &[u8] = b"filter.lfs.";
const PROCESS_KEY: &[u8] = b"filter.lfs.process";

const SPARSE_SETTINGS: [&str; 2] = ["core.sparseCheckout=true", "core.sparseCheckoutCone=true"];

const ENVIRONMENT: &[(&str, &str)] = &[
    ("LC_ALL", "C"),
    ("HOME", "/nonexistent"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_ALLOW_PROTOCOL", ""),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("GIT_GRAFT_FILE", "/dev/null"),
    ("GIT_LITERAL_PATHSPECS", "1"),
    ("GIT_PAGER", "cat"),
    ("GIT_EDITOR", "false"),
];

/// The workspace of a job, with its limits.
#[derive(Debug, Clone)]
pub struct GitWorkspace {
    /// The workspace.
    pub root: PathBuf,
    /// The home directory.
    pub home: PathBuf,
    /// Directory for temporary files.
    pub temporary: PathBuf,
    /// This program, for git's filters.
    pub program: PathBuf,
    /// Time limit of a query.
    pub quick: Duration,
    /// Time limit of a command that reads or writes all files.
    pub slow: Duration,
    /// Size limit of the output.
    pub output_bytes: u64,
}

impl Default for GitWorkspace {
    fn default() -> Self {
        let (quick, slow) = (Duration::from_secs(120), Duration::from_secs(30 * 60));
        let [root, home, temporary] = ["/workspace", "/home/agent", "/tmp"].map(PathBuf::from);
        let program = PathBuf::from(WORKER_PATH);
        Self { root, home, temporary, program, quick, slow, output_bytes: 2 << 30 }
    }
}

#[derive(Debug)]
pub(super) struct Git {
    program: PathBuf,
    search: OsString,
    pub workspace: GitWorkspace,
    /// Extra variables of later commands: the temporary index, disabled filters, the author.
    extra: Vec<(OsString, OsString)>,
    /// Extra settings of later commands, which override the variables.
    settings: Vec<String>,
}

/// One git command.
pub(super) struct GitCommand {
    command: Command,
    what: &'static str,
    quick: Duration,
    slow: Duration,
    temporary: PathBuf,
}

impl Git {
    pub fn find(workspace: &GitWorkspace) -> Result<Self, Error> {
        let search = std::env::var_os("PATH").filter(|search| !search.is_empty()).unwrap_or_else(|| SEARCH_PATH.into());
        Self::find_in(workspace, search)
    }

    pub fn find_in(workspace: &GitWorkspace, search: OsString) -> Result<Self, Error> {
        let program = git_program::find_git(&search).ok_or(Error::GitMissing)?;
        Ok(Self { program, search, workspace: workspace.clone(), extra: Vec::new(), settings: Vec::new() })
    }

    /// Makes all later commands respect the directories of a sparse checkout.
    pub fn enable_sparse_checkout(&mut self) {
        self.settings.extend(SPARSE_SETTINGS.map(str::to_owned));
    }

    /// Adds a variable to all later commands.
    pub fn set_variable(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        self.extra.push((name.into(), value.into()));
    }

    /// Sets the author of later commits.
    pub fn set_author(&mut self, name: &str, email: &str) {
        for role in ["AUTHOR", "COMMITTER"] {
            self.set_variable(format!("GIT_{role}_NAME"), name);
            self.set_variable(format!("GIT_{role}_EMAIL"), email);
        }
    }

    /// Builds a command on the workspace's repository; `what` describes it in errors.
    pub fn command(&self, what: &'static str) -> GitCommand {
        self.command_in(&self.workspace.root, what)
    }

    /// Builds a command on the repository at this directory, which may be nested in the workspace's.
    pub fn command_in(&self, root: &Path, what: &'static str) -> GitCommand {
        let mut run = self.command_without_repository(what);
        run.command.env("GIT_DIR", root.join(".git")).env("GIT_WORK_TREE", root).current_dir(root);
        run
    }

    /// Builds a command without a repository.
    pub fn command_without_repository(&self, what: &'static str) -> GitCommand {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(ENVIRONMENT.iter().copied()).env("PATH", &self.search).stdin(Stdio::null());
        command.current_dir(&self.workspace.root);
        command.envs(self.extra.iter().map(|(name, value)| (name, value)));
        SETTINGS.iter().copied().chain(self.settings.iter().map(String::as_str)).for_each(|setting| {
            command.args(["-c", setting]);
        });
        let GitWorkspace { quick, slow, ref temporary, .. } = self.workspace;
        GitCommand { command, what, quick, slow, temporary: temporary.clone() }
    }

    /// Runs a query and returns its output.
    pub fn query<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<GitOutput, Error> {
        self.command("reading the repository").args(arguments).run_quick()
    }

    /// Disables all filters. A filter is a program of the workspace and may hang; and content that it moves elsewhere, as
    /// large-file storage does, would stay behind in the sandbox.
    ///
    /// For large-file storage, Atoll's own filter takes the place of the configured one.
    pub fn replace_filters(&mut self, pointers: PointerUse) -> Result<(), Error> {
        let listed = self.query(filters::LIST_ARGUMENTS)?.stdout;
        let (large, mut others): (Vec<&[u8]>, Vec<&[u8]>) =
            split_records(&listed).partition(|key| key.starts_with(LARGE_FILE_FILTER));
        let is_replaced = !large.is_empty() && !large.contains(&PROCESS_KEY);
        if !is_replaced {
            // Git runs no other filter where a process is configured, and no setting removes it.
            others.extend(&large);
        }
        self.extra.extend(filters::disabling_env(&others.join(&0)));
        if is_replaced {
            let clean = large_file_filters::clean_command(&self.workspace.program, pointers);
            let settings = [format!("filter.lfs.clean={clean}"), "filter.lfs.required=true".to_owned()];
            self.settings.extend(settings);
        }
        Ok(())
    }

    /// A copy for commands on a submodule, without the variables and settings of the workspace's own repository.
    pub fn of_submodule(&self, root: &Path) -> Result<Self, Error> {
        let workspace = GitWorkspace { root: root.to_owned(), ..self.workspace.clone() };
        let mut git = Self::find_in(&workspace, self.search.clone())?;
        git.replace_filters(PointerUse::Compare)?;
        Ok(git)
    }
}

impl GitCommand {
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn input(mut self, bytes: &[u8]) -> Result<Self, Error> {
        let input =
            subprocess::stdin_file(bytes, &self.temporary).map_err(|source| Error::Io { what: self.what, source })?;
        self.command.stdin(input);
        Ok(self)
    }

    pub fn input_file(mut self, file: File) -> Self {
        self.command.stdin(file);
        self
    }

    pub fn run_quick(self) -> Result<GitOutput, Error> {
        let time = self.quick;
        self.capture(time)
    }

    pub fn run_slow(self) -> Result<GitOutput, Error> {
        let time = self.slow;
        self.capture(time)
    }

    /// Writes the output into a file, at most `bound` bytes.
    pub fn write_into(self, mut output: File, bound: u64) -> Result<GitOutput, Error> {
        let (what, time) = (self.what, self.slow);
        let finished = self.run(time, bound, &mut |bytes| output.write_all(bytes).map_err(RunFailure::Io))?;
        Ok(GitOutput::new(what, Vec::new(), finished))
    }

    fn capture(self, time: Duration) -> Result<GitOutput, Error> {
        let what = self.what;
        let mut stdout = Vec::new();
        let finished = self.run(time, MAX_LISTING_BYTES, &mut |bytes| {
            stdout.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(GitOutput::new(what, stdout, finished))
    }

    fn run(mut self, time: Duration, bound: u64, keep: subprocess::OutputSink<'_>) -> Result<ProcessExit, Error> {
        let what = self.what;
        // The jail limits memory.
        let limits = RunLimits { timeout: time, output_bytes: bound, memory_bytes: None, file_bytes: None };
        subprocess::run_command(&mut self.command, limits, keep).map_err(|failure| match failure {
            RunFailure::SpawnFailed(source) | RunFailure::Io(source) => Error::Io { what, source },
            RunFailure::TimedOut => Error::TimedOut { what, seconds: time.as_secs() },
            RunFailure::OutputTooLarge => Error::OutputTooLarge { what, bound },
        })
    }
}
