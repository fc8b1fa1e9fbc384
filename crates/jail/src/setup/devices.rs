//! Builds `/dev`: harmless device nodes of the host, its own terminals, shared memory.

use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::mount::MountFlags;

use super::SetupPlan;
use super::mount_sources::attach_mount;
use super::root::{create_dirs, create_file, mount_tmpfs};
use crate::error::{AtStep, LaunchStep, StepFailure};

const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
    ("pts/ptmx", "dev/ptmx"),
];

pub(super) fn mount_devices(devices: &[(OwnedFd, &'static str)], plan: &SetupPlan<'_>) -> Result<(), StepFailure> {
    create_dirs(Path::new("dev/pts"))?;
    create_dirs(Path::new("dev/shm"))?;
    for (tree, name) in devices {
        let target = Path::new("dev").join(name);
        create_file(&target)?;
        attach_mount(tree, &target, LaunchStep::Devices)?;
    }
    for (target, link) in LINKS {
        symlink(target, link).at_with(LaunchStep::Devices, link)?;
    }
    // Terminals belong to the group `tty`, if that id is mapped. `max`: the kernel limits terminals for the whole
    // machine too, to 3072 by default.
    let options = if plan.map.host_gid(5).is_some() {
        c"newinstance,ptmxmode=0666,max=128,mode=0620,gid=5"
    } else {
        c"newinstance,ptmxmode=0666,max=128,mode=0600"
    };
    rustix::mount::mount(c"devpts", c"dev/pts", c"devpts", MountFlags::NOSUID | MountFlags::NOEXEC, options)
        .at_with(LaunchStep::Devices, "dev/pts")?;
    mount_tmpfs(Path::new("dev/shm"), &format!("mode=1777,size={}", plan.limits.shared_memory), LaunchStep::Devices)
}
