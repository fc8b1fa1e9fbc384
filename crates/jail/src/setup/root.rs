//! Builds the root on a small file system in memory and enters it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode};
use rustix::mount::{MountFlags, UnmountFlags};

use super::overlay::{self, Scratch, Stacked, Wanted};
use super::trees::{Trees, hang};
use super::{Built, Plan, Role, devices, proc, programs, protect, system};
use crate::error::{AtStep, Errno, Failure, Step};
use crate::kernel::{self, NO_DEVICES, NO_SUID, READ_ONLY};
use crate::layers::Stack;

/// A directory that every system has, to hang the new root over for a moment.
const MOUNT_POINT: &str = "/usr";

/// Leaves the process in the new root, and the old root gone.
pub(super) fn build(plan: &Plan<'_>, trees: Trees) -> Result<Built, Failure> {
    memory(Path::new(MOUNT_POINT), "mode=755,size=1m,nr_inodes=4k", Step::Root)?;
    rustix::process::chdir(MOUNT_POINT).at(Step::Root)?;
    let Stacked { files, system } = stacked(plan, &trees)?;
    match &system {
        Some(system) => system::build(system)?,
        None => build_from_host(plan, &trees)?,
    }
    let Some([workspace, home]) = files.as_ref().or(trees.files.as_ref()) else {
        return Err(Errno(libc::ENOENT)).at_with(Step::Layers, "files");
    };
    for (tree, target) in [(workspace, "workspace"), (home, "home/agent"), (&trees.temporary, "tmp")] {
        make_directories(Path::new(target))?;
        hang(tree, Path::new(target), Step::Root)?;
    }
    let missing = protect::protect(Path::new("workspace"), plan.protected)?;
    system::hang_worker(&trees.worker, Path::new("."))?;
    let shown: Vec<_> = trees.programs.into_iter().zip(plan.programs.iter().map(|shown| shown.at.as_str())).collect();
    programs::hang(&shown, Path::new("."))?;
    make_directories(Path::new("run"))?;
    memory(Path::new("run"), "mode=755,size=16m", Step::Root)?;
    devices::build(&trees.devices, plan)?;
    proc::build()?;
    enter(plan.role)?;
    Ok(Built { spool: trees.spool, missing })
}

/// What is seen of the host, in a root without an image.
fn build_from_host(plan: &Plan<'_>, trees: &Trees) -> Result<(), Failure> {
    for (tree, path) in &trees.shown {
        let target = below(path);
        make_directories(&target)?;
        hang(tree, &target, Step::Root)?;
    }
    for (link, target) in &plan.view.links {
        symlink(target, below(link)).at_with(Step::Root, link.display())?;
    }
    make_directories(Path::new("etc"))?;
    hang(&trees.etc, Path::new("etc"), Step::Root)?;
    make_directories(Path::new("opt/atoll"))?;
    make_file(Path::new("opt/atoll/worker"))?;
    make_directories(Path::new("var"))?;
    symlink("/tmp", "var/tmp").at_with(Step::Root, "var/tmp")
}

/// Stacks layers in a mount namespace that is this process's alone.
pub(crate) fn stack_aside(store: &OwnedFd, stack: &Stack, wanted: Wanted) -> Result<Stacked, Failure> {
    memory(Path::new(MOUNT_POINT), "mode=755,size=1m,nr_inodes=4k", Step::Layers)?;
    stack_here(store, stack, wanted)
}

/// Below [`MOUNT_POINT`], gone when the layers are stacked.
const SCRATCH: Scratch = Scratch { store: "/usr/.store", merged: "/usr/.merged" };

fn stacked(plan: &Plan<'_>, trees: &Trees) -> Result<Stacked, Failure> {
    match &trees.store {
        Some(store) => stack_here(store, plan.files.stack, plan.files.wanted),
        None => Ok(Stacked::default()),
    }
}

fn stack_here(store: &OwnedFd, stack: &Stack, wanted: Wanted) -> Result<Stacked, Failure> {
    for path in [SCRATCH.store, SCRATCH.merged] {
        make_directories(Path::new(path))?;
    }
    let stacked = overlay::stack(store, stack, wanted, SCRATCH)?;
    for path in [SCRATCH.store, SCRATCH.merged] {
        fs::remove_dir(path).at_with(Step::Layers, path)?;
    }
    Ok(stacked)
}

/// Makes the current directory the root, and nothing else remain.
fn enter(role: Role) -> Result<(), Failure> {
    // The old root ends up over the new one, at the same place, from where it can be taken off.
    rustix::process::pivot_root(".", ".").at(Step::Pivot)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).at_with(Step::Pivot, "old root")?;
    rustix::process::chdir("/").at(Step::Pivot)?;
    let root =
        rustix::fs::open("/", rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC, Mode::empty()).at(Step::Pivot)?;
    kernel::set_attributes_of_one(root.as_fd(), READ_ONLY | NO_SUID | NO_DEVICES).at_with(Step::Pivot, "read-only")?;
    match role {
        // It stays at the root: its workspace may be exchanged while it lives.
        Role::Worker => Ok(()),
        Role::Agent | Role::Root => rustix::process::chdir("/workspace").at_with(Step::Pivot, "/workspace"),
    }
}

/// A file system in memory, which counts as memory of whoever writes to it.
pub(super) fn memory(target: &Path, options: &str, step: Step) -> Result<(), Failure> {
    mount_memory(target, options, MountFlags::NOSUID | MountFlags::NODEV, step)
}

/// A directory that is empty for ever.
pub(super) fn emptiness(target: &Path, step: Step) -> Result<(), Failure> {
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount_memory(target, "mode=555,size=4k,nr_inodes=1", flags, step)
}

fn mount_memory(target: &Path, options: &str, flags: MountFlags, step: Step) -> Result<(), Failure> {
    let options = std::ffi::CString::new(options).map_err(io::Error::from).at(step)?;
    rustix::mount::mount(c"tmpfs", target, c"tmpfs", flags, options.as_c_str()).at_with(step, target.display())
}

fn below(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_path_buf()
}

/// All of it is fresh and ours, so there is no link in it to be led astray by.
pub(super) fn make_directories(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).at_with(Step::Root, path.display())
}

pub(super) fn make_file(path: &Path) -> Result<(), Failure> {
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o644)).map(drop).at_with(Step::Root, path.display())
}
