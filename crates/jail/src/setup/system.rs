//! An imported root: its directories side by side in the sandbox's own root, so that each can be exchanged while a
//! process lives there. What was imported, and what the sandbox's root made of it, is a stranger's: no link is followed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::MoveMountFlags;

use super::overlay::System;
use super::root::make_directories;
use super::trees::hang;
use crate::error::{AtStep, Failure, Step};

/// Builds it below the current directory, which is fresh and ours.
pub(super) fn build(system: &System) -> Result<(), Failure> {
    for (tree, name) in &system.directories {
        make_directories(name)?;
        hang(tree, name, Step::Root)?;
    }
    for (name, target) in &system.links {
        symlink(target, name).at_with(Step::Root, name.display())?;
    }
    Ok(())
}

/// Hangs the worker's program where it always is, in the root that `root` leads to.
pub(crate) fn hang_worker(worker: &OwnedFd, root: &Path) -> Result<(), Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, root, flags, Mode::empty()).at_with(Step::Root, "root")?;
    let target = match open(root.as_fd(), "opt/atoll/worker", OFlags::PATH | OFlags::CLOEXEC) {
        Err(rustix::io::Errno::NOENT) => make(root.as_fd()),
        target => target,
    }
    .at_with(Step::Root, "opt/atoll/worker")?;
    let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(worker, c"", &target, c"", empty).at_with(Step::Root, "opt/atoll/worker")
}

fn open(directory: BorrowedFd<'_>, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat2(directory, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

/// The directory over which agents' programs are hung, in the root that `root` leads to.
pub(super) fn directory_for_agents(root: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, root, flags, Mode::empty())?;
    let opt = open(root.as_fd(), "opt", flags)?;
    let own = make_directory(opt.as_fd(), "atoll")?;
    make_directory(own.as_fd(), "agents")
}

/// A directory that is there afterwards, and no link.
fn make_directory(parent: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    open(parent, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)
}

/// The sandbox's root may have removed it.
fn make(root: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opt = open(root, "opt", flags)?;
    let directory = make_directory(opt.as_fd(), "atoll")?;
    let fresh = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&directory, "worker", fresh, Mode::from_raw_mode(0o644))?;
    open(directory.as_fd(), "worker", OFlags::PATH | OFlags::CLOEXEC)
}
