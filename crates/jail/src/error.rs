//! What can go wrong, in words that name the step and, where there is one, the remedy.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// An error number of the kernel: unlike `io::Error` it can be sent from the launcher to its client.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(formatter)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl std::error::Error for Errno {}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Error {
    #[error("{name:?} can't name a sandbox: use 1 to 64 of a-z, 0-9 and _")]
    Name { name: String },
    #[error(
        "{name:?} can't name a snapshot or an image: use 1 to 64 of a-z, 0-9, `.`, `_` and `-`, the first a letter or digit"
    )]
    Label { name: String },
    #[error("there is a {kind} named {name} already: choose another name, or forget that one first")]
    Taken { kind: Kept, name: String },
    #[error("no {kind} is named {name}: `atoll {kind} ls` shows those that there are")]
    NotKept { kind: Kept, name: String },
    #[error("the {kind} {name} is used by {by}: destroy or forget that first")]
    InUse { kind: Kept, name: String, by: String },
    #[error("the archive can't become the image {name}: {reason}")]
    Archive { name: String, reason: String },
    #[error("sandbox {name} is busy: {reason}; try again when that is over")]
    Busy { name: String, reason: String },
    #[error("sandbox {name} stands on {layers} layers, and no more can be stacked: begin a new one with its results")]
    TooDeep { name: String, layers: usize },
    #[error("sandbox {name} has no living worker: start it first")]
    NotAlive { name: String },
    #[error("sandbox {name} has no root to run as: {reason}")]
    NoRoot { name: String, reason: String },
    #[error("the sandbox's description is not usable: {reason}")]
    Spec { reason: String },
    #[error("no sandbox is named {name}")]
    Unknown { name: String },
    #[error("sandbox {name} is only half made, its record is missing or unreadable: destroy it and prepare it again")]
    HalfMade { name: String },
    #[error("sandbox {name} has a living worker: kill it before starting another")]
    Alive { name: String },
    #[error("processes of sandbox {name} did not stand still within {seconds} s, and go on: pause it again later")]
    NotPaused { name: String, seconds: u64 },
    #[error("sandbox {name} is being killed or destroyed: wait for its end")]
    Ending { name: String },
    #[error("sandbox {name}: failed to {step}{}: {source}{}", about(detail), hint(remedy))]
    Step { name: String, step: Step, detail: String, source: Errno, remedy: Option<String> },
    #[error("failed to {doing} {}: {source}", path.display())]
    File { doing: String, path: PathBuf, source: Errno },
    #[error(
        "no free range of {count} ids from {base} on: set `local.id_base` to where neither /etc/passwd, /etc/subuid nor other sandboxes have ids"
    )]
    NoRange { base: u32, count: u32 },
    #[error("sandboxes can't be made here: {reason}{}", hint(remedy))]
    Impossible { reason: String, remedy: Option<String> },
    #[error("processes of sandbox {name} did not end within {seconds} s of being killed")]
    StillAlive { name: String, seconds: u64 },
    #[error("files of sandbox {name} could not be removed: {reason}")]
    NotRemoved { name: String, reason: String },
    #[error("another launcher uses {}: stop that server first", path.display())]
    Locked { path: PathBuf },
    #[error("failed to start the launcher {}: {source}", path.display())]
    Launcher { path: PathBuf, source: Errno },
    #[error("the launcher ended: start it again; the sandboxes live on")]
    Gone,
    #[error(
        "the process that starts launchers for this server has ended: restart the server; sandboxes that run live on"
    )]
    KeeperGone,
    #[error("the launcher did not answer {request} within {seconds} s")]
    Timeout { request: String, seconds: u64 },
    #[error("launcher and client don't understand each other: {reason}")]
    Protocol { reason: String },
}

/// What is kept by a name of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    Snapshot,
    Image,
}

impl fmt::Display for Kept {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Snapshot => "snapshot",
            Self::Image => "image",
        })
    }
}

fn about(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
}

fn hint(remedy: &Option<String>) -> String {
    remedy.as_ref().map_or_else(String::new, |remedy| format!(". {remedy}"))
}

impl Error {
    pub(crate) fn file(doing: &str, path: &Path, source: impl Into<Errno>) -> Self {
        Self::File { doing: doing.to_owned(), path: path.to_path_buf(), source: source.into() }
    }

    pub(crate) fn step(name: &str, failure: Failure) -> Self {
        let remedy = failure.step.remedy(failure.source);
        Self::Step { name: name.to_owned(), step: failure.step, detail: failure.detail, source: failure.source, remedy }
    }

    pub(crate) fn protocol(reason: impl fmt::Display) -> Self {
        Self::Protocol { reason: reason.to_string() }
    }
}

/// What a process on its way into a sandbox says when it can't go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub step: Step,
    pub detail: String,
    pub source: Errno,
}

/// Gives a failed system call the step it belongs to.
pub(crate) trait AtStep<T> {
    fn at(self, step: Step) -> Result<T, Failure>;
    fn at_with<D: fmt::Display>(self, step: Step, detail: D) -> Result<T, Failure>;
}

impl<T, E: Into<Errno>> AtStep<T> for Result<T, E> {
    fn at(self, step: Step) -> Result<T, Failure> {
        self.map_err(|source| Failure { step, detail: String::new(), source: source.into() })
    }

    fn at_with<D: fmt::Display>(self, step: Step, detail: D) -> Result<T, Failure> {
        self.map_err(|source| Failure { step, detail: detail.to_string(), source: source.into() })
    }
}

/// The steps on the way into a sandbox, in their order; each fits "failed to …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    Group,
    Descriptors,
    Clone,
    Maps,
    EnterGroup,
    Wait,
    Trees,
    Ids,
    Root,
    Proc,
    Devices,
    Pivot,
    Network,
    Hostname,
    Limits,
    Capabilities,
    Landlock,
    Seccomp,
    Execute,
    Join,
    Quiet,
    Layers,
    Exchange,
    Protect,
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Group => "make the cgroup",
            Self::Descriptors => "arrange the descriptors",
            Self::Clone => "make the namespaces",
            Self::Maps => "write the id maps",
            Self::EnterGroup => "enter the cgroup",
            Self::Wait => "wait for the launcher",
            Self::Trees => "take hold of the directories to show",
            Self::Ids => "switch to the sandbox's ids",
            Self::Root => "build the root",
            Self::Proc => "mount /proc",
            Self::Devices => "build /dev",
            Self::Pivot => "enter the new root",
            Self::Network => "bring the loopback up",
            Self::Hostname => "set the host name",
            Self::Limits => "set the process limits",
            Self::Capabilities => "give up the capabilities",
            Self::Landlock => "lock the files that are not the sandbox's own",
            Self::Seccomp => "install the system call filter",
            Self::Execute => "execute the program",
            Self::Join => "join the living sandbox",
            Self::Quiet => "end what runs in the sandbox",
            Self::Layers => "stack the layers of files",
            Self::Exchange => "exchange the sandbox's files",
            Self::Protect => "protect a path of the workspace",
        })
    }
}

impl Step {
    /// What the owner of the machine can do about a failure that is known.
    pub(crate) fn remedy(self, errno: Errno) -> Option<String> {
        let too_old = "A kernel of 5.12 or newer is needed.";
        let sentence = match (self, errno.0) {
            (_, libc::ENOSYS) => too_old,
            (Self::Trees | Self::Root | Self::Clone, libc::EINVAL) => too_old,
            (Self::Clone, libc::ENOSPC) => {
                "The kernel allows no more namespaces: raise user.max_user_namespaces (sysctl -w user.max_user_namespaces=15000)."
            }
            (
                Self::Clone | Self::Maps | Self::EnterGroup | Self::Trees | Self::Ids | Self::Root | Self::Network,
                libc::EPERM | libc::EACCES,
            ) => return Some(namespaces_refused()),
            (Self::Maps, libc::ENOENT) => "newuidmap and newgidmap are missing: install the package uidmap.",
            (Self::Proc, libc::EPERM) => {
                "The /proc of this machine has masked parts, as in a container: run outside of it, or give the container an unmasked /proc (docker: --security-opt systempaths=unconfined)."
            }
            (Self::Protect, libc::ELOOP) => {
                "It is a symbolic link, or leads through one: protect what the link leads to."
            }
            (Self::Pivot, libc::EINVAL) => "The root of this machine is a ramfs: run from a disk or an overlay.",
            (Self::Execute, libc::ENOENT) => {
                "The program or its loader is not visible inside: link it statically, or put it below /usr or a tool directory."
            }
            (Self::Layers, libc::EINVAL | libc::ENODEV | libc::EOPNOTSUPP) => {
                "Layers need overlayfs in user namespaces (kernel 5.11 or newer) and a data directory on a file system that can carry them, as ext4, xfs or btrfs."
            }
            (Self::Exchange, libc::EBUSY) => {
                "Something inside still has a file open for writing: try again when its worker is quiet."
            }
            (Self::Execute, libc::EACCES) => "The program is not executable by the sandbox's user: chmod a+rx it.",
            _ => return None,
        };
        Some(sentence.to_owned())
    }
}

/// Why the kernel refuses user namespaces, by the settings that distributions refuse them with.
pub(crate) fn namespaces_refused() -> String {
    let reads = |path: &str, wanted: &str| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == wanted);
    if reads("/proc/sys/user/max_user_namespaces", "0") {
        "User namespaces are switched off: sysctl -w user.max_user_namespaces=15000.".to_owned()
    } else if reads("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "User namespaces are root's only: sysctl -w kernel.unprivileged_userns_clone=1.".to_owned()
    } else if reads("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        let program = std::env::current_exe().unwrap_or_else(|_| "/usr/bin/atoll".into());
        format!(
            "AppArmor refuses user namespaces to programs without a profile. Either write `abi <abi/4.0>, include <tunables/global> profile atoll {} flags=(unconfined) {{ userns, }}` to /etc/apparmor.d/atoll and run: apparmor_parser -r /etc/apparmor.d/atoll. Or allow them to all: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0.",
            program.display()
        )
    } else {
        "Something refuses user namespaces to this process, as a container's seccomp profile does: run outside of it, or allow them.".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_names_itself_its_detail_and_the_remedy() {
        let failure = Failure { step: Step::Clone, detail: String::new(), source: Errno(libc::ENOSPC) };
        let text = Error::step("sbx_1", failure).to_string();
        assert!(text.starts_with("sandbox sbx_1: failed to make the namespaces: No space left"), "{text}");
        assert!(text.contains("user.max_user_namespaces"), "{text}");

        let failure = Failure { step: Step::Execute, detail: "/bin/nothing".into(), source: Errno(libc::EIO) };
        let text = Error::step("sbx_1", failure).to_string();
        assert!(text.contains("failed to execute the program (/bin/nothing): "), "{text}");
    }
}
