//! `/proc` of the new pid namespace, without what tells about or changes the host.

use std::path::Path;

use rustix::mount::MountFlags;

use super::root::emptiness;
use super::trees::{hang, tree};
use crate::error::{AtStep, Failure, Step};
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

/// What can be read but not written, whoever asks.
const FIXED: [&str; 5] = ["proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"];

pub(super) fn build() -> Result<(), Failure> {
    super::root::make_directories(Path::new("proc"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount(c"proc", c"proc", c"proc", flags, None).at(Step::Proc)?;
    for path in HIDDEN_FILES.map(Path::new).into_iter().filter(|path| path.exists()) {
        hang(&tree(Path::new("dev/null"), READ_ONLY | NO_SUID | NO_EXECUTION)?, path, Step::Proc)?;
    }
    for path in HIDDEN_DIRECTORIES.map(Path::new).into_iter().filter(|path| path.exists()) {
        emptiness(path, Step::Proc)?;
    }
    for path in FIXED.map(Path::new).into_iter().filter(|path| path.exists()) {
        hang(&tree(path, READ_ONLY | NO_SUID | NO_DEVICES | NO_EXECUTION)?, path, Step::Proc)?;
    }
    Ok(())
}
