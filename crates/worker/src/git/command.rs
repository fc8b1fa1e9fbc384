//! How git is run in a sandbox: on the workspace's repository, with the few settings that keep it
//! from starting what the workspace's configuration names.
//!
//! The workspace is hostile, and nothing here pretends otherwise: the jail around this process is
//! what protects the host. These settings keep a job from hanging and its result predictable.

use super::error::Error;
use atoll_forge::plumbing::run::{self, Failure, Finished, Limits};
use atoll_forge::plumbing::{Answer, filters, program};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const SEARCH: &str = "/usr/local/bin:/usr/bin:/bin";

/// More than the longest list of files that anyone works with.
pub(super) const LISTING: u64 = 256 << 20;

const SETTINGS: &[&str] = &[
    "advice.graftFileDeprecated=false",
    "core.bare=false",
    "core.bigFileThreshold=32m",
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    // The server refuses names that some systems take for `.git`, so they must not come so far.
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "core.sparseCheckout=false",
    "core.splitIndex=false",
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

/// Where a job works, and how long it may take.
#[derive(Debug, Clone)]
pub struct Place {
    /// The workspace.
    pub root: PathBuf,
    /// For what is thrown away.
    pub temporary: PathBuf,
    /// For a command that only looks something up.
    pub quick: Duration,
    /// For one that reads or writes all files.
    pub slow: Duration,
    /// What comes out, packed or as a patch.
    pub output_bytes: u64,
}

impl Default for Place {
    fn default() -> Self {
        let (quick, slow) = (Duration::from_secs(120), Duration::from_secs(30 * 60));
        Self { root: "/workspace".into(), temporary: "/tmp".into(), quick, slow, output_bytes: 2 << 30 }
    }
}

#[derive(Debug)]
pub(super) struct Git {
    program: PathBuf,
    search: OsString,
    pub place: Place,
    /// What every later command gets besides: the temporary index, filters that are off, a name.
    extra: Vec<(OsString, OsString)>,
}

/// One command, to be run once.
pub(super) struct Run {
    command: Command,
    what: &'static str,
    quick: Duration,
    slow: Duration,
    temporary: PathBuf,
}

impl Git {
    pub fn find(place: &Place) -> Result<Self, Error> {
        let search = std::env::var_os("PATH").filter(|search| !search.is_empty()).unwrap_or_else(|| SEARCH.into());
        Self::find_in(place, search)
    }

    pub fn find_in(place: &Place, search: OsString) -> Result<Self, Error> {
        let program = program::find(&search).ok_or(Error::GitMissing)?;
        Ok(Self { program, search, place: place.clone(), extra: Vec::new() })
    }

    /// From here on every command has this in its environment.
    pub fn with(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        self.extra.push((name.into(), value.into()));
    }

    /// From here on commits carry this name.
    pub fn with_author(&mut self, name: &str, email: &str) {
        for role in ["AUTHOR", "COMMITTER"] {
            self.with(format!("GIT_{role}_NAME"), name);
            self.with(format!("GIT_{role}_EMAIL"), email);
        }
    }

    /// A command on the workspace's repository. `what` is for the reader of an error.
    pub fn run(&self, what: &'static str) -> Run {
        self.run_in(&self.place.root, what)
    }

    /// A command on the repository at this directory, which may be one inside the workspace's.
    pub fn run_in(&self, root: &Path, what: &'static str) -> Run {
        let mut run = self.bare(what);
        run.command.env("GIT_DIR", root.join(".git")).env("GIT_WORK_TREE", root).current_dir(root);
        run
    }

    /// A command on no repository.
    pub fn bare(&self, what: &'static str) -> Run {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(ENVIRONMENT.iter().copied()).env("PATH", &self.search).stdin(Stdio::null());
        command.current_dir(&self.place.root);
        command.envs(self.extra.iter().map(|(name, value)| (name, value)));
        SETTINGS.iter().for_each(|setting| {
            command.args(["-c", setting]);
        });
        let Place { quick, slow, ref temporary, .. } = self.place;
        Run { command, what, quick, slow, temporary: temporary.clone() }
    }

    /// A command that only looks something up, and its whole answer.
    pub fn read<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<Answer, Error> {
        self.run("reading the repository").args(arguments).quick()
    }

    /// Makes every filter do nothing from here on. A filter is a program of the workspace's, which may hang;
    /// and what it would take out of a file, as large-file storage does, would stay behind in the sandbox.
    pub fn without_filters(&mut self) -> Result<(), Error> {
        let listed = self.read(filters::LIST)?;
        self.extra.extend(filters::off(&listed.stdout));
        Ok(())
    }
}

impl Run {
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn input(mut self, bytes: &[u8]) -> Result<Self, Error> {
        let input = run::input(bytes, &self.temporary).map_err(|source| Error::Io { what: self.what, source })?;
        self.command.stdin(input);
        Ok(self)
    }

    pub fn input_file(mut self, file: File) -> Self {
        self.command.stdin(file);
        self
    }

    pub fn quick(self) -> Result<Answer, Error> {
        let time = self.quick;
        self.capture(time)
    }

    pub fn slow(self) -> Result<Answer, Error> {
        let time = self.slow;
        self.capture(time)
    }

    /// Writes the output into a file, at most `bound` bytes of it.
    pub fn into(self, mut output: File, bound: u64) -> Result<Answer, Error> {
        let (what, time) = (self.what, self.slow);
        let finished = self.run(time, bound, &mut |bytes| output.write_all(bytes).map_err(Failure::Io))?;
        Ok(Answer::new(what, Vec::new(), finished))
    }

    fn capture(self, time: Duration) -> Result<Answer, Error> {
        let what = self.what;
        let mut stdout = Vec::new();
        let finished = self.run(time, LISTING, &mut |bytes| {
            stdout.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(Answer::new(what, stdout, finished))
    }

    fn run(mut self, time: Duration, bound: u64, keep: run::Sink<'_>) -> Result<Finished, Error> {
        let what = self.what;
        // Memory is the jail's to bound.
        let limits = Limits { time, output: bound, memory: None };
        run::run(&mut self.command, limits, keep).map_err(|failure| match failure {
            Failure::NotStarted(source) | Failure::Io(source) => Error::Io { what, source },
            Failure::TimedOut => Error::TimedOut { what, seconds: time.as_secs() },
            Failure::TooMuch => Error::TooMuch { what, bound },
        })
    }
}
