//! An imported root: its top-level directories are separate mounts, so that each can be remounted under a running
//! process. Its content is untrusted: links are not followed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::MoveMountFlags;

use super::mount_sources::attach_mount;
use super::overlay::SystemTree;
use super::root::create_dirs;
use crate::error::{AtStep, LaunchStep, StepFailure};

/// Mounts the directories below the current one, which is fresh.
pub(super) fn mount_directories(system: &SystemTree) -> Result<(), StepFailure> {
    for (tree, name) in &system.directories {
        create_dirs(name)?;
        attach_mount(tree, name, LaunchStep::Root)?;
    }
    for (name, target) in &system.links {
        symlink(target, name).at_with(LaunchStep::Root, name.display())?;
    }
    Ok(())
}

/// Mounts the worker binary at its fixed path in the given root.
pub(crate) fn mount_worker(worker: &OwnedFd, root: &Path) -> Result<(), StepFailure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, root, flags, Mode::empty()).at_with(LaunchStep::Root, "root")?;
    let target = match open_beneath(root.as_fd(), "opt/atoll/worker", OFlags::PATH | OFlags::CLOEXEC) {
        Err(rustix::io::Errno::NOENT) => create_worker_file(root.as_fd()),
        target => target,
    }
    .at_with(LaunchStep::Root, "opt/atoll/worker")?;
    let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(worker, c"", &target, c"", empty).at_with(LaunchStep::Root, "opt/atoll/worker")
}

fn open_beneath(directory: BorrowedFd<'_>, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat2(directory, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

/// Opens the mount point of agents' programs in the given root, creating it if needed.
pub(super) fn open_agents_dir(root: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, root, flags, Mode::empty())?;
    let opt = open_beneath(root.as_fd(), "opt", flags)?;
    let own = create_dir(opt.as_fd(), "atoll")?;
    create_dir(own.as_fd(), "agents")
}

/// Creates a directory if needed and opens it without following links.
fn create_dir(parent: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    open_beneath(parent, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)
}

/// Creates the worker's mount point, which the sandbox's root may have removed.
fn create_worker_file(root: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opt = open_beneath(root, "opt", flags)?;
    let directory = create_dir(opt.as_fd(), "atoll")?;
    let fresh = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&directory, "worker", fresh, Mode::from_raw_mode(0o644))?;
    open_beneath(directory.as_fd(), "worker", OFlags::PATH | OFlags::CLOEXEC)
}
