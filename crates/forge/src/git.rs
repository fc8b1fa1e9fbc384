//! How git is run on the host: as the repository's owner, with nothing but the repository's own
//! configuration, of which nothing can start a program.

use crate::error::Error;
use crate::plumbing::run::{self, Failure, Finished, Limits};
use crate::plumbing::{Answer, program::find};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// The first that takes settings from its environment (`GIT_CONFIG_COUNT`) and prints absolute paths.
const OLDEST: (u32, u32) = (2, 31);

const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Stronger than whatever a repository's own configuration says.
const SETTINGS: &[&str] = &[
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
    ("PATH", SEARCH),
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

/// Who a repository belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    pub fn is_us(self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }
}

/// The program, found and new enough.
pub(crate) fn program() -> Result<&'static Path, Error> {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    let search = std::env::var_os("PATH").filter(|search| !search.is_empty()).unwrap_or_else(|| SEARCH.into());
    let found = find(&search).ok_or(Error::GitMissing)?;
    new_enough(&version(&found)?)?;
    Ok(FOUND.get_or_init(|| found))
}

fn version(program: &Path) -> Result<String, Error> {
    let what = "asking git for its version";
    let output = Command::new(program).arg("--version").env_clear().stdin(Stdio::null()).output();
    let output = output.map_err(|source| Error::Io { what, source })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn new_enough(said: &str) -> Result<(), Error> {
    let found = said.trim().trim_start_matches("git version ").to_owned();
    let mut numbers = found.split('.').map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < OLDEST { Err(Error::GitTooOld { found }) } else { Ok(()) }
}

/// Which repository a command is about.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub git_dir: PathBuf,
    pub work_tree: Option<PathBuf>,
}

/// One command of git, to be run once.
pub(crate) struct Run {
    command: Command,
    what: &'static str,
    time: Duration,
    memory: Option<u64>,
}

impl Run {
    /// `what` is for the reader of an error: "reading the repository".
    pub fn new(owner: Owner, place: Option<&Place>, what: &'static str, time: Duration) -> Result<Self, Error> {
        let mut command = Command::new(program()?);
        command.env_clear().envs(ENVIRONMENT.iter().copied()).current_dir("/").stdin(Stdio::null());
        if !owner.is_us() {
            // With a uid, the standard library also gives up all supplementary groups.
            command.uid(owner.uid).gid(owner.gid);
        }
        SETTINGS.iter().for_each(|setting| {
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
        Ok(Self { command, what, time, memory: None })
    }

    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    pub fn input(mut self, bytes: &[u8]) -> Result<Self, Error> {
        let input = run::input(bytes, &std::env::temp_dir()).map_err(|source| Error::Io { what: self.what, source })?;
        self.command.stdin(input);
        Ok(self)
    }

    pub fn input_file(mut self, file: File) -> Self {
        self.command.stdin(file);
        self
    }

    /// Keeps the output, at most `bound` bytes of it.
    pub fn capture(self, bound: u64) -> Result<Answer, Error> {
        let what = self.what;
        let mut stdout = Vec::new();
        let finished = self.run(bound, &mut |bytes| {
            stdout.extend_from_slice(bytes);
            Ok(())
        });
        finished.map(|finished| Answer::new(what, stdout, finished))
    }

    /// Counts the names in the output, each ended by a zero, and gives up when there are more than `most`.
    pub fn count(self, most: u64) -> Result<(u64, Answer), Error> {
        let what = self.what;
        let mut count = 0;
        let finished = self.run(u64::MAX, &mut |bytes| {
            count += bytes.iter().filter(|byte| **byte == 0).count() as u64;
            if count > most { Err(Failure::TooMuch) } else { Ok(()) }
        })?;
        Ok((count, Answer::new(what, Vec::new(), finished)))
    }

    /// Writes the output into a file, at most `bound` bytes of it.
    pub fn write(self, file: &mut File, bound: u64) -> Result<(u64, Answer), Error> {
        let what = self.what;
        let mut written = 0;
        let result = self.run(bound, &mut |bytes| {
            written += bytes.len() as u64;
            file.write_all(bytes).map_err(Failure::Io)
        });
        match result {
            Ok(finished) => Ok((written, Answer::new(what, Vec::new(), finished))),
            Err(Error::TooSlow { what, after, .. }) => Err(Error::TooSlow { what, after, bytes: Some(written) }),
            Err(other) => Err(other),
        }
    }

    fn run(mut self, bound: u64, keep: run::Sink<'_>) -> Result<Finished, Error> {
        let Self { what, time, memory, .. } = self;
        let limits = Limits { time, output: bound, memory };
        run::run(&mut self.command, limits, keep).map_err(|failure| match failure {
            Failure::NotStarted(source) | Failure::Io(source) => Error::Io { what, source },
            Failure::TimedOut => Error::TooSlow { what, after: time, bytes: None },
            Failure::TooMuch => Error::TooMuchSaid { what, bound },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_git_is_told_so() {
        assert!(Error::GitMissing.to_string().contains("apt install git"));
    }

    #[test]
    fn an_old_git_is_refused() {
        for old in ["git version 2.30.2\n", "git version 1.9", "", "something else"] {
            assert!(matches!(new_enough(old), Err(Error::GitTooOld { .. })), "{old}");
        }
        for new in ["git version 2.31.0", "git version 2.47.3 (Apple Git-1)\n", "git version 3.0-rc0"] {
            new_enough(new).unwrap();
        }
        new_enough(&version(program().unwrap()).unwrap()).unwrap();
    }
}
