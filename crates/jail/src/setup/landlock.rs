//! Landlock rules that restrict writes, independent of the mounts: nothing is written, created or removed outside of
//! the sandbox's own directories. Reading needs no rule: only readable files are mounted.
//!
//! Landlock rules refer to directories, not paths: after a fork remounts the files, a restricted process could not
//! write to them. So the worker, which outlives forks, is unrestricted. Its spawner restricts itself at each start, and
//! thereby the agent. An imported root belongs to the sandbox as a whole and has no such rules.

use std::os::fd::{AsFd, BorrowedFd};

use landlock::{
    ABI, Access, AccessFs, PathBeneath, PathFd, PathFdError, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    Scope,
};

use crate::error::{AtStep, Errno, LaunchStep, StepFailure};
use crate::kernel;

/// Writable directories.
const WRITABLE_DIRS: [&str; 6] = ["/workspace", "/home/agent", "/tmp", "/run", "/dev", "/proc"];

/// Before this version, moving a file between directories always fails, which breaks too many programs.
const MIN_ABI_VERSION: i32 = 2;

/// This host's Landlock support.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Landlock {
    version: i32,
}

impl Landlock {
    pub fn detect() -> Self {
        Self { version: kernel::landlock_version() }
    }

    pub fn is_usable(self) -> bool {
        self.version >= MIN_ABI_VERSION
    }

    /// The ABI version; 0 without Landlock.
    pub fn version(self) -> i32 {
        self.version
    }

    /// Restricts this process and its future children.
    pub fn restrict_self(self, reach: SignalScope) -> Result<(), StepFailure> {
        if !self.is_usable() {
            return Ok(());
        }
        // Rights of later versions are not handled: they would have to be allowed again.
        let writing = AccessFs::from_write(ABI::V3);
        let ruleset = Ruleset::default().handle_access(writing).and_then(|ruleset| match reach {
            SignalScope::OwnDomain => ruleset.scope(Scope::from_all(ABI::V6)),
            SignalScope::All => Ok(ruleset),
        });
        let mut ruleset =
            ruleset.and_then(Ruleset::create).map_err(|error| ruleset_errno(&error)).at(LaunchStep::Landlock)?;
        for path in WRITABLE_DIRS {
            match PathFd::new(path).map_err(|error| open_errno(&error)) {
                Ok(opened) => ruleset = allow_writes(ruleset, opened.as_fd(), writing, path)?,
                // A missing directory needs no rule.
                Err(Errno(libc::ENOENT)) => {}
                Err(errno) => return Err(errno).at_with(LaunchStep::Landlock, path),
            }
        }
        ruleset.restrict_self().map(drop).map_err(|error| ruleset_errno(&error)).at(LaunchStep::Landlock)
    }
}

/// The processes that a restricted process may signal, and whose abstract sockets it may connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalScope {
    /// Itself and its descendants.
    OwnDomain,
    /// All that its namespaces allow: other processes of the sandbox have other Landlock domains.
    All,
}

fn allow_writes(
    ruleset: landlock::RulesetCreated,
    directory: BorrowedFd<'_>,
    access: landlock::BitFlags<AccessFs>,
    name: &str,
) -> Result<landlock::RulesetCreated, StepFailure> {
    let added = ruleset.add_rule(PathBeneath::new(directory, access));
    added.map_err(|error| ruleset_errno(&error)).at_with(LaunchStep::Landlock, name)
}

/// The errno in a Landlock error.
fn ruleset_errno(error: &RulesetError) -> Errno {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            return Errno(found);
        }
        cause = error.source();
    }
    Errno(libc::EINVAL)
}

fn open_errno(error: &PathFdError) -> Errno {
    match error {
        PathFdError::OpenCall { source, .. } => Errno(source.raw_os_error().unwrap_or(libc::EIO)),
        _ => Errno(libc::EINVAL),
    }
}
