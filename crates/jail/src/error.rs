//! Errors, which name the failed step and a remedy if there is one.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// An `errno` that, unlike `io::Error`, can be sent from the launcher to its client.
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
    #[error("invalid sandbox name {name:?}: use 1 to 64 characters of a-z, 0-9 and _")]
    InvalidName { name: String },
    #[error(
        "invalid snapshot, image or cache name {name:?}: use 1 to 64 characters of a-z, 0-9, `.`, `_` and `-`, starting with a letter or digit"
    )]
    InvalidLabel { name: String },
    #[error("the {kind} {name} exists already: choose another name or delete it first")]
    AlreadyExists { kind: CatalogKind, name: String },
    #[error("no {kind} is named {name}: run `atoll {kind} ls` to list them")]
    NotFound { kind: CatalogKind, name: String },
    #[error("the {kind} {name} is used by {by}: destroy or delete that first")]
    InUse { kind: CatalogKind, name: String, by: String },
    #[error("cannot import the archive as image {name}: {reason}")]
    InvalidArchive { name: String, reason: String },
    #[error("sandbox {name} is busy: {reason}; try again later")]
    Busy { name: String, reason: String },
    #[error("sandbox {name} has {layers} layers, which is the maximum: continue in a new sandbox from its results")]
    TooManyLayers { name: String, layers: usize },
    #[error("sandbox {name} has no running worker: start it first")]
    NotRunning { name: String },
    #[error("sandbox {name} has no root user: {reason}")]
    NoRootUser { name: String, reason: String },
    #[error("invalid sandbox specification: {reason}")]
    InvalidSpec { reason: String },
    #[error("no sandbox is named {name}")]
    UnknownSandbox { name: String },
    #[error("sandbox {name} is incomplete, its record is missing or unreadable: destroy it and prepare it again")]
    Incomplete { name: String },
    #[error("sandbox {name} has a running worker: kill it before starting another")]
    AlreadyRunning { name: String },
    #[error("processes of sandbox {name} did not stop within {seconds} s and were resumed: pause it again later")]
    PauseTimeout { name: String, seconds: u64 },
    #[error("sandbox {name} is being killed or destroyed: wait until it is gone")]
    Ending { name: String },
    #[error("sandbox {name}: failed to {step}{}: {source}{}", format_detail(detail), format_remedy(remedy))]
    StepFailed { name: String, step: LaunchStep, detail: String, source: Errno, remedy: Option<String> },
    #[error("failed to {doing} {}: {source}", path.display())]
    FileFailed { doing: String, path: PathBuf, source: Errno },
    #[error(
        "no free range of {count} ids from {base} on: set `local.id_base` to ids that neither /etc/passwd, /etc/subuid nor other sandboxes use"
    )]
    NoFreeIdRange { base: u32, count: u32 },
    #[error("cannot create sandboxes here: {reason}{}", format_remedy(remedy))]
    Unsupported { reason: String, remedy: Option<String> },
    #[error("processes of sandbox {name} did not exit within {seconds} s after SIGKILL")]
    KillTimeout { name: String, seconds: u64 },
    #[error("failed to remove the files of sandbox {name}: {reason}")]
    RemoveFailed { name: String, reason: String },
    #[error("another launcher uses {}: stop that server first", path.display())]
    DataDirLocked { path: PathBuf },
    #[error("failed to start the launcher {}: {source}", path.display())]
    LauncherStartFailed { path: PathBuf, source: Errno },
    #[error("the launcher has ended: start it again; the sandboxes keep running")]
    LauncherGone,
    #[error("the launcher spawner of this server has ended: restart the server; the sandboxes keep running")]
    SpawnerGone,
    #[error("the launcher did not answer {request} within {seconds} s")]
    Timeout { request: String, seconds: u64 },
    #[error("protocol error between launcher and client: {reason}")]
    Protocol { reason: String },
}

/// The kinds of catalog entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatalogKind {
    Snapshot,
    Image,
    Cache,
}

impl fmt::Display for CatalogKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Snapshot => "snapshot",
            Self::Image => "image",
            Self::Cache => "cache",
        })
    }
}

fn format_detail(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
}

fn format_remedy(remedy: &Option<String>) -> String {
    remedy.as_ref().map_or_else(String::new, |remedy| format!(". {remedy}"))
}

impl Error {
    pub(crate) fn file(doing: &str, path: &Path, source: impl Into<Errno>) -> Self {
        Self::FileFailed { doing: doing.to_owned(), path: path.to_path_buf(), source: source.into() }
    }

    pub(crate) fn step(name: &str, failure: StepFailure) -> Self {
        let remedy = failure.step.remedy(failure.source);
        Self::StepFailed {
            name: name.to_owned(),
            step: failure.step,
            detail: failure.detail,
            source: failure.source,
            remedy,
        }
    }

    pub(crate) fn protocol(reason: impl fmt::Display) -> Self {
        Self::Protocol { reason: reason.to_string() }
    }
}

/// A failure that a new process reports while it enters a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StepFailure {
    pub step: LaunchStep,
    pub detail: String,
    pub source: Errno,
}

/// Attaches the failed step to a system call's error.
pub(crate) trait AtStep<T> {
    fn at(self, step: LaunchStep) -> Result<T, StepFailure>;
    fn at_with<D: fmt::Display>(self, step: LaunchStep, detail: D) -> Result<T, StepFailure>;
}

impl<T, E: Into<Errno>> AtStep<T> for Result<T, E> {
    fn at(self, step: LaunchStep) -> Result<T, StepFailure> {
        self.map_err(|source| StepFailure { step, detail: String::new(), source: source.into() })
    }

    fn at_with<D: fmt::Display>(self, step: LaunchStep, detail: D) -> Result<T, StepFailure> {
        self.map_err(|source| StepFailure { step, detail: detail.to_string(), source: source.into() })
    }
}

/// The steps of entering a sandbox, in order; each completes "failed to …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LaunchStep {
    Cgroup,
    Descriptors,
    Namespaces,
    IdMaps,
    EnterCgroup,
    Wait,
    CloneMounts,
    SwitchIds,
    Root,
    Proc,
    Devices,
    PivotRoot,
    Network,
    Hostname,
    Limits,
    Capabilities,
    Landlock,
    Seccomp,
    Execute,
    Join,
    KillProcesses,
    MountOverlay,
    SwapLayers,
    Protect,
    ProtectProgram,
}

impl fmt::Display for LaunchStep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Cgroup => "create the cgroup",
            Self::Descriptors => "set up the descriptors",
            Self::Namespaces => "create the namespaces",
            Self::IdMaps => "write the id maps",
            Self::EnterCgroup => "enter the cgroup",
            Self::Wait => "wait for the launcher",
            Self::CloneMounts => "clone the mounts",
            Self::SwitchIds => "switch to the sandbox's ids",
            Self::Root => "build the root file system",
            Self::Proc => "mount /proc",
            Self::Devices => "build /dev",
            Self::PivotRoot => "pivot into the new root",
            Self::Network => "bring up the loopback",
            Self::Hostname => "set the host name",
            Self::Limits => "set the process limits",
            Self::Capabilities => "drop capabilities",
            Self::Landlock => "apply the Landlock rules",
            Self::Seccomp => "install the seccomp filter",
            Self::Execute => "execute the program",
            Self::Join => "join the running sandbox",
            Self::KillProcesses => "kill the sandbox's processes",
            Self::MountOverlay => "mount the overlay",
            Self::SwapLayers => "swap the sandbox's layers",
            Self::Protect => "protect a workspace path",
            Self::ProtectProgram => "make the launcher's program read-only",
        })
    }
}

impl LaunchStep {
    /// Suggests what the host's administrator can do about a known failure.
    pub(crate) fn remedy(self, errno: Errno) -> Option<String> {
        let too_old = "Linux 5.12 or newer is required.";
        let sentence = match (self, errno.0) {
            (_, libc::ENOSYS) => too_old,
            (Self::CloneMounts | Self::Root | Self::Namespaces, libc::EINVAL) => too_old,
            (Self::Namespaces, libc::ENOSPC) => {
                "The kernel allows no more namespaces: raise user.max_user_namespaces (sysctl -w user.max_user_namespaces=15000)."
            }
            (
                Self::Namespaces
                | Self::IdMaps
                | Self::EnterCgroup
                | Self::CloneMounts
                | Self::SwitchIds
                | Self::Root
                | Self::Network,
                libc::EPERM | libc::EACCES,
            ) => return Some(explain_refused_namespaces()),
            (Self::IdMaps, libc::ENOENT) => "newuidmap and newgidmap are missing: install the package uidmap.",
            (Self::Proc, libc::EPERM) => {
                "Parts of this host's /proc are masked, as in a container: run outside of it, or give the container an unmasked /proc (docker: --security-opt systempaths=unconfined)."
            }
            (Self::Protect, libc::ELOOP) => "The path is or contains a symbolic link: protect the link's target.",
            (Self::PivotRoot, libc::EINVAL) => "This host's root is a ramfs: run from a disk or an overlay.",
            (Self::Execute, libc::ENOENT) => {
                "The program or its loader is not visible inside: link it statically, or put it below /usr or a tool directory."
            }
            (Self::MountOverlay, libc::EINVAL | libc::ENODEV | libc::EOPNOTSUPP) => {
                "Layers need overlayfs in user namespaces (Linux 5.11 or newer) and a data directory on ext4, xfs or btrfs."
            }
            (Self::SwapLayers, libc::EBUSY) => {
                "A process in the sandbox still has a file open for writing: try again when it has closed it."
            }
            (Self::Execute, libc::EACCES) => "The sandbox's user cannot execute the program: chmod a+rx it.",
            _ => return None,
        };
        Some(sentence.to_owned())
    }
}

/// Explains why the kernel refuses user namespaces, from the sysctls that distributions set.
pub(crate) fn explain_refused_namespaces() -> String {
    let reads = |path: &str, expected: &str| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == expected);
    if reads("/proc/sys/user/max_user_namespaces", "0") {
        "User namespaces are disabled: sysctl -w user.max_user_namespaces=15000.".to_owned()
    } else if reads("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "Only root may create user namespaces: sysctl -w kernel.unprivileged_userns_clone=1.".to_owned()
    } else if reads("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        let program = std::env::current_exe().unwrap_or_else(|_| "/usr/bin/atoll".into());
        format!(
            "AppArmor denies user namespaces to programs without a profile. Either write `abi <abi/4.0>, include <tunables/global> profile atoll {} flags=(unconfined) {{ userns, }}` to /etc/apparmor.d/atoll and run: apparmor_parser -r /etc/apparmor.d/atoll. Or allow them for all programs: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0.",
            program.display()
        )
    } else {
        "User namespaces are denied to this process, as by a container's seccomp profile: run outside of it, or allow them.".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_failure_names_step_detail_and_remedy() {
        let failure = StepFailure { step: LaunchStep::Namespaces, detail: String::new(), source: Errno(libc::ENOSPC) };
        let text = Error::step("sbx_1", failure).to_string();
        assert!(text.starts_with("sandbox sbx_1: failed to create the namespaces: No space left"), "{text}");
        assert!(text.contains("user.max_user_namespaces"), "{text}");

        let failure =
            StepFailure { step: LaunchStep::Execute, detail: "/bin/nothing".into(), source: Errno(libc::EIO) };
        let text = Error::step("sbx_1", failure).to_string();
        assert!(text.contains("failed to execute the program (/bin/nothing): "), "{text}");
    }
}
