//! Runs git on the host as the repository's owner, with only the repository's configuration and with settings that
//! prevent it from starting programs.

use crate::error::Error;
use crate::plumbing::subprocess::{self, ProcessExit, RunFailure, RunLimits};
use crate::plumbing::{GitOutput, git_program::find_git};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// The first version with `GIT_CONFIG_COUNT` and `--path-format=absolute`.
const MIN_GIT_VERSION: (u32, u32) = (2, 31);

const DEFAULT_SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Override the repository's configuration.
const CONFIG_OVERRIDES: &[&str] = &[
    "advice.graftFileDeprecated=false",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.alternateRefsCommand=false",
    "core.askPass=false",
    "core.sshCommand=false",
    "core.fsync=committed,reference",
    "credential.helper=",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
    "submodule.recurse=false",
    "init.defaultBranch=main",
];

const ENVIRONMENT: &[(&str, &str)] = &[
    ("PATH", DEFAULT_SEARCH_PATH),
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
    ("GIT_PAGER", "cat"),
    ("GIT_EDITOR", "false"),
];

/// The owner of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    /// The user of this process.
    pub fn current() -> Self {
        Self { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    pub fn is_current_user(self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }
}

/// Finds git and checks its version.
pub(crate) fn require_git() -> Result<&'static Path, Error> {
    static GIT_PATH: OnceLock<PathBuf> = OnceLock::new();
    if let Some(found) = GIT_PATH.get() {
        return Ok(found);
    }
    let search =
        std::env::var_os("PATH").filter(|search| !search.is_empty()).unwrap_or_else(|| DEFAULT_SEARCH_PATH.into());
    let found = find_git(&search).ok_or(Error::GitMissing)?;
    check_version(&query_version(&found)?)?;
    Ok(GIT_PATH.get_or_init(|| found))
}

fn query_version(program: &Path) -> Result<String, Error> {
    let what = "asking git for its version";
    let output = Command::new(program).arg("--version").env_clear().stdin(Stdio::null()).output();
    let output = output.map_err(|source| Error::Io { what, source })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn check_version(version_output: &str) -> Result<(), Error> {
    let found = version_output.trim().trim_start_matches("git version ").to_owned();
    let mut numbers = found.split('.').map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < MIN_GIT_VERSION { Err(Error::GitTooOld { found }) } else { Ok(()) }
}

/// The directories of a repository.
#[derive(Debug, Clone)]
pub(crate) struct RepositoryDirs {
    pub git_dir: PathBuf,
    pub work_tree: Option<PathBuf>,
}

/// A single git command.
pub(crate) struct HostGitCommand {
    command: Command,
    what: &'static str,
    timeout: Duration,
    memory_bytes: Option<u64>,
    file_bytes: Option<u64>,
}

/// Makes stdin the descriptor 3, and starts git with its arguments unchanged.
const DESCRIPTOR_SCRIPT: &str = r#"exec "$0" "$@" 3<&0 </dev/null"#;

impl HostGitCommand {
    /// `what` describes the action in errors, such as "reading the repository".
    pub fn new(
        owner: Owner,
        place: Option<&RepositoryDirs>,
        what: &'static str,
        time: Duration,
    ) -> Result<Self, Error> {
        Self::build(Command::new(require_git()?), owner, place, what, time)
    }

    /// A command that has an open file as its descriptor 3. Its stdin is empty.
    pub fn with_descriptor(
        owner: Owner,
        place: Option<&RepositoryDirs>,
        what: &'static str,
        time: Duration,
        file: File,
    ) -> Result<Self, Error> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", DESCRIPTOR_SCRIPT]).arg(require_git()?);
        let mut built = Self::build(shell, owner, place, what, time)?;
        built.command.stdin(file);
        Ok(built)
    }

    fn build(
        mut command: Command,
        owner: Owner,
        place: Option<&RepositoryDirs>,
        what: &'static str,
        time: Duration,
    ) -> Result<Self, Error> {
        command.env_clear().envs(ENVIRONMENT.iter().copied()).current_dir("/").stdin(Stdio::null());
        if !owner.is_current_user() {
            // With a uid, the standard library also drops all supplementary groups.
            command.uid(owner.uid).gid(owner.gid);
        }
        CONFIG_OVERRIDES.iter().for_each(|setting| {
            command.args(["-c", setting]);
        });
        if let Some(place) = place {
            let mut safe = OsString::from("safe.directory=");
            safe.push(place.work_tree.as_ref().unwrap_or(&place.git_dir));
            command.arg("-c").arg(safe);
            match &place.work_tree {
                Some(tree) => command.env("GIT_WORK_TREE", tree),
                None => command.args(["-c", "core.bare=true"]),
            };
            command.env("GIT_DIR", &place.git_dir);
        }
        Ok(Self { command, what, timeout: time, memory_bytes: None, file_bytes: None })
    }

    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Reads the user's own configuration too. Only for `git config`, which starts no programs.
    pub fn with_user_configuration(mut self) -> Self {
        for name in ["GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_GLOBAL"] {
            self.command.env_remove(name);
        }
        for name in ["HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"] {
            if let Some(value) = std::env::var_os(name) {
                self.command.env(name, value);
            }
        }
        self
    }

    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Limits the size of each file that git writes.
    pub fn file_limit(mut self, bytes: u64) -> Self {
        self.file_bytes = Some(bytes);
        self
    }

    pub fn input_bytes(mut self, bytes: &[u8]) -> Result<Self, Error> {
        let input = subprocess::stdin_file(bytes, &std::env::temp_dir())
            .map_err(|source| Error::Io { what: self.what, source })?;
        self.command.stdin(input);
        Ok(self)
    }

    pub fn input_file(mut self, file: File) -> Self {
        self.command.stdin(file);
        self
    }

    /// Returns the output, at most `bound` bytes.
    pub fn capture_output(self, bound: u64) -> Result<GitOutput, Error> {
        let what = self.what;
        let mut stdout = Vec::new();
        let finished = self.run_limited(bound, &mut |bytes| {
            stdout.extend_from_slice(bytes);
            Ok(())
        });
        finished.map(|finished| GitOutput::new(what, stdout, finished))
    }

    /// Counts the NUL-terminated names in the output; fails beyond `most`.
    pub fn count_names(self, most: u64) -> Result<(u64, GitOutput), Error> {
        let what = self.what;
        let mut count = 0;
        let finished = self.run_limited(u64::MAX, &mut |bytes| {
            count += bytes.iter().filter(|byte| **byte == 0).count() as u64;
            if count > most { Err(RunFailure::OutputTooLarge) } else { Ok(()) }
        })?;
        Ok((count, GitOutput::new(what, Vec::new(), finished)))
    }

    /// Passes each NUL-terminated record of the output to `keep`; fails at a record longer than `bound` bytes.
    pub fn read_records(self, bound: u64, keep: &mut dyn FnMut(&[u8])) -> Result<GitOutput, Error> {
        let what = self.what;
        let mut rest = Vec::new();
        let finished = self.run_limited(u64::MAX, &mut |bytes| {
            rest.extend_from_slice(bytes);
            if let Some(end) = rest.iter().rposition(|byte| *byte == 0) {
                rest[..end].split(|byte| *byte == 0).for_each(&mut *keep);
                rest.drain(..=end);
            }
            if rest.len() as u64 > bound { Err(RunFailure::OutputTooLarge) } else { Ok(()) }
        })?;
        Ok(GitOutput::new(what, Vec::new(), finished))
    }

    /// Writes the output to a file, at most `bound` bytes.
    pub fn write_output(self, file: &mut File, bound: u64) -> Result<(u64, GitOutput), Error> {
        let what = self.what;
        let mut written = 0;
        let result = self.run_limited(bound, &mut |bytes| {
            written += bytes.len() as u64;
            file.write_all(bytes).map_err(RunFailure::Io)
        });
        match result {
            Ok(finished) => Ok((written, GitOutput::new(what, Vec::new(), finished))),
            Err(Error::TimedOut { what, after, .. }) => Err(Error::TimedOut { what, after, bytes: Some(written) }),
            Err(other) => Err(other),
        }
    }

    fn run_limited(mut self, bound: u64, keep: subprocess::OutputSink<'_>) -> Result<ProcessExit, Error> {
        let Self { what, timeout: time, memory_bytes, file_bytes, .. } = self;
        let limits = RunLimits { timeout: time, output_bytes: bound, memory_bytes, file_bytes };
        subprocess::run_command(&mut self.command, limits, keep).map_err(|failure| match failure {
            RunFailure::SpawnFailed(source) | RunFailure::Io(source) => Error::Io { what, source },
            RunFailure::TimedOut => Error::TimedOut { what, after: time, bytes: None },
            RunFailure::OutputTooLarge => Error::OutputTooLarge { what, bound },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_git_error_says_how_to_install_it() {
        assert!(Error::GitMissing.to_string().contains("apt install git"));
    }

    #[test]
    fn rejects_an_old_git() {
        for old in ["git version 2.30.2\n", "git version 1.9", "", "something else"] {
            assert!(matches!(check_version(old), Err(Error::GitTooOld { .. })), "{old}");
        }
        for new in ["git version 2.31.0", "git version 2.47.3 (Apple Git-1)\n", "git version 3.0-rc0"] {
            check_version(new).unwrap();
        }
        check_version(&query_version(require_git().unwrap()).unwrap()).unwrap();
    }
}
