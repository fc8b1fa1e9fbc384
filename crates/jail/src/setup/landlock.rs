//! A second lock on the files, independent of the mounts: whatever is mounted how, nothing is written, made or removed
//! but below the directories that are the sandbox's own. Reading needs no lock: only what may be read is mounted.
//!
//! It holds directories, not their names: where a fork hangs new ones over the old, what was locked before could not
//! write to them. So a worker, which lives through forks, isn't locked; its hands lock themselves whenever they start,
//! and with them all that the agent is. An imported root is the sandbox's own as a whole and has no such lock.

use std::os::fd::{AsFd, BorrowedFd};

use landlock::{
    ABI, Access, AccessFs, PathBeneath, PathFd, PathFdError, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    Scope,
};

use crate::error::{AtStep, Errno, Failure, Step};
use crate::kernel;

/// Where may be written.
const WRITABLE: [&str; 6] = ["/workspace", "/home/agent", "/tmp", "/run", "/dev", "/proc"];

/// From this version on files can be moved between directories; before, every such move fails, which breaks too much.
const LEAST: i32 = 2;

/// Whether there is such a lock on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Landlock {
    version: i32,
}

impl Landlock {
    pub fn find() -> Self {
        Self { version: kernel::landlock_version() }
    }

    pub fn is_usable(self) -> bool {
        self.version >= LEAST
    }

    /// 0 is none.
    pub fn version(self) -> i32 {
        self.version
    }

    /// Locks this process and all it starts.
    pub fn close(self, reach: Reach) -> Result<(), Failure> {
        if !self.is_usable() {
            return Ok(());
        }
        // Of later versions nothing is wanted: what they add would have to be allowed again.
        let writing = AccessFs::from_write(ABI::V3);
        let ruleset = Ruleset::default().handle_access(writing).and_then(|ruleset| match reach {
            Reach::Itself => ruleset.scope(Scope::from_all(ABI::V6)),
            Reach::All => Ok(ruleset),
        });
        let mut ruleset = ruleset.and_then(Ruleset::create).map_err(|error| number(&error)).at(Step::Landlock)?;
        for path in WRITABLE {
            match PathFd::new(path).map_err(|error| opening(&error)) {
                Ok(opened) => ruleset = allow(ruleset, opened.as_fd(), writing, path)?,
                // What isn't there can't be written to.
                Err(Errno(libc::ENOENT)) => {}
                Err(errno) => return Err(errno).at_with(Step::Landlock, path),
            }
        }
        ruleset.restrict_self().map(drop).map_err(|error| number(&error)).at(Step::Landlock)
    }
}

/// Whom a locked process may send signals, and whose abstract sockets it may connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Itself and what it has started.
    Itself,
    /// All that its namespaces let it: others of its sandbox were locked at another time.
    All,
}

fn allow(
    ruleset: landlock::RulesetCreated,
    directory: BorrowedFd<'_>,
    access: landlock::BitFlags<AccessFs>,
    name: &str,
) -> Result<landlock::RulesetCreated, Failure> {
    let added = ruleset.add_rule(PathBeneath::new(directory, access));
    added.map_err(|error| number(&error)).at_with(Step::Landlock, name)
}

/// The kernel's own number for a failure.
fn number(error: &RulesetError) -> Errno {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            return Errno(found);
        }
        cause = error.source();
    }
    Errno(libc::EINVAL)
}

fn opening(error: &PathFdError) -> Errno {
    match error {
        PathFdError::OpenCall { source, .. } => Errno(source.raw_os_error().unwrap_or(libc::EIO)),
        _ => Errno(libc::EINVAL),
    }
}
