//! Mounts `/proc` of the new pid namespace, without files that reveal or change the host.

use std::path::Path;

use rustix::mount::MountFlags;

use super::UserShare;
use super::mount_sources::{attach_mount, clone_mount};
use super::root::mount_empty_dir;
use crate::error::{AtStep, LaunchStep, StepFailure};
use crate::kernel::{NO_DEVICES, NO_EXECUTION, NO_SUID, READ_ONLY};

/// Files that appear empty.
const HIDDEN_FILES: [&str; 7] = [
    "proc/kcore",
    "proc/keys",
    "proc/key-users",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/timer_list",
    "proc/timer_stats",
];

/// Directories that appear empty.
const HIDDEN_DIRECTORIES: [&str; 3] = ["proc/acpi", "proc/asound", "proc/scsi"];

/// Read-only paths.
const READ_ONLY_PATHS: [&str; 5] = ["proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"];

/// Mounts `/proc`; sets the limits of the user namespace before `/proc/sys` becomes read-only.
pub(super) fn mount_proc(share: Option<UserShare>) -> Result<(), StepFailure> {
    super::root::create_dirs(Path::new("proc"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount(c"proc", c"proc", c"proc", flags, None).at(LaunchStep::Proc)?;
    share.map_or(Ok(()), UserShare::apply_to_namespace)?;
    for path in existing_paths(HIDDEN_FILES)? {
        attach_mount(&clone_mount(Path::new("dev/null"), READ_ONLY | NO_SUID | NO_EXECUTION)?, path, LaunchStep::Proc)?;
    }
    for path in existing_paths(HIDDEN_DIRECTORIES)? {
        mount_empty_dir(path, LaunchStep::Proc)?;
    }
    for path in existing_paths(READ_ONLY_PATHS)? {
        attach_mount(&clone_mount(path, READ_ONLY | NO_SUID | NO_DEVICES | NO_EXECUTION)?, path, LaunchStep::Proc)?;
    }
    Ok(())
}

/// Returns the paths that this kernel has. A path that cannot be examined is an error, because it would stay visible.
fn existing_paths<const N: usize>(paths: [&'static str; N]) -> Result<Vec<&'static Path>, StepFailure> {
    let mut existing = Vec::new();
    for path in paths.map(Path::new) {
        if path.try_exists().at_with(LaunchStep::Proc, path.display())? {
            existing.push(path);
        }
    }
    Ok(existing)
}
