//! `/dev`: a few harmless nodes of the host, terminals of its own, shared memory.

use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::mount::MountFlags;

use super::Plan;
use super::root::{make_directories, make_file, memory};
use super::trees::hang;
use crate::error::{AtStep, Failure, Step};

const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
    ("pts/ptmx", "dev/ptmx"),
];

pub(super) fn build(devices: &[(OwnedFd, &'static str)], plan: &Plan<'_>) -> Result<(), Failure> {
    make_directories(Path::new("dev/pts"))?;
    make_directories(Path::new("dev/shm"))?;
    for (tree, name) in devices {
        let target = Path::new("dev").join(name);
        make_file(&target)?;
        hang(tree, &target, Step::Devices)?;
    }
    for (target, link) in LINKS {
        symlink(target, link).at_with(Step::Devices, link)?;
    }
    // Terminals belong to the group that inside is called `tty`, where that id exists.
    let options = if plan.map.group(5).is_some() {
        c"newinstance,ptmxmode=0666,mode=0620,gid=5"
    } else {
        c"newinstance,ptmxmode=0666,mode=0600"
    };
    rustix::mount::mount(c"devpts", c"dev/pts", c"devpts", MountFlags::NOSUID | MountFlags::NOEXEC, options)
        .at_with(Step::Devices, "dev/pts")?;
    memory(Path::new("dev/shm"), &format!("mode=1777,size={}", plan.limits.shared_memory), Step::Devices)
}
