//! Builds the root on a small tmpfs and enters it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode};
use rustix::mount::{MountFlags, UnmountFlags};

use super::mount_sources::{MountSources, attach_mount};
use super::overlay::{self, MountPoints, OverlayMounts, OverlayRequest};
use super::{BuiltRoot, Role, SetupPlan, devices, imported_root, proc, programs, protect};
use crate::error::{AtStep, Errno, LaunchStep, StepFailure};
use crate::kernel::{self, NO_DEVICES, NO_SUID, READ_ONLY};
use crate::layers::LayerStack;
use crate::overlay_xattrs::OverlayXattrs;

/// A directory that every system has, as a temporary mount point of the new root.
const MOUNT_POINT: &str = "/usr";

/// Leaves the process in the new root, with the old root unmounted.
pub(super) fn build_root(plan: &SetupPlan<'_>, sources: MountSources) -> Result<BuiltRoot, StepFailure> {
    mount_tmpfs(Path::new(MOUNT_POINT), "mode=755,size=1m,nr_inodes=4k", LaunchStep::Root)?;
    rustix::process::chdir(MOUNT_POINT).at(LaunchStep::Root)?;
    let OverlayMounts { files, system } = mount_plan_overlays(plan, &sources)?;
    match &system {
        Some(system) => imported_root::mount_directories(system)?,
        None => build_from_host(plan, &sources)?,
    }
    let Some([workspace, home]) = files.as_ref().or(sources.files.as_ref()) else {
        return Err(Errno(libc::ENOENT)).at_with(LaunchStep::MountOverlay, "files");
    };
    for (tree, target) in [(workspace, "workspace"), (home, "home/agent"), (&sources.tmp, "tmp")] {
        create_dirs(Path::new(target))?;
        attach_mount(tree, Path::new(target), LaunchStep::Root)?;
    }
    let missing = protect::protect_paths(Path::new("workspace"), plan.protected)?;
    imported_root::mount_worker(&sources.worker, Path::new("."))?;
    let mounts: Vec<_> =
        sources.programs.into_iter().zip(plan.programs.iter().map(|program| program.at.as_str())).collect();
    programs::mount_programs(&mounts, Path::new("."))?;
    create_dirs(Path::new("run"))?;
    mount_tmpfs(Path::new("run"), "mode=755,size=16m", LaunchStep::Root)?;
    devices::mount_devices(&sources.devices, plan)?;
    proc::mount_proc(plan.limits.user_share)?;
    pivot_into_root(plan.role)?;
    Ok(BuiltRoot { spool: sources.spool, missing_protected: missing })
}

/// Mounts the visible host directories, for a sandbox without an image.
fn build_from_host(plan: &SetupPlan<'_>, sources: &MountSources) -> Result<(), StepFailure> {
    for (tree, path) in &sources.host_dirs {
        let target = relative_path(path);
        create_dirs(&target)?;
        attach_mount(tree, &target, LaunchStep::Root)?;
    }
    for (link, target) in &plan.view.links {
        symlink(target, relative_path(link)).at_with(LaunchStep::Root, link.display())?;
    }
    create_dirs(Path::new("etc"))?;
    attach_mount(&sources.etc, Path::new("etc"), LaunchStep::Root)?;
    create_dirs(Path::new("opt/atoll"))?;
    create_file(Path::new("opt/atoll/worker"))?;
    create_dirs(Path::new("var"))?;
    symlink("/tmp", "var/tmp").at_with(LaunchStep::Root, "var/tmp")
}

/// Mounts overlays in this process's private mount namespace.
pub(crate) fn mount_overlays_in_namespace(
    store: &OwnedFd,
    stack: &LayerStack,
    overlays: OverlayRequest,
    xattrs: OverlayXattrs,
) -> Result<OverlayMounts, StepFailure> {
    mount_tmpfs(Path::new(MOUNT_POINT), "mode=755,size=1m,nr_inodes=4k", LaunchStep::MountOverlay)?;
    mount_overlays_here(store, stack, overlays, xattrs)
}

/// Below [`MOUNT_POINT`]; removed after the overlays are mounted.
const SCRATCH: MountPoints = MountPoints { store: "/usr/.store", merged: "/usr/.merged" };

fn mount_plan_overlays(plan: &SetupPlan<'_>, sources: &MountSources) -> Result<OverlayMounts, StepFailure> {
    match (&plan.files.mounted, &sources.store) {
        (Some(mounted), _) => mounted.try_clone().at(LaunchStep::Descriptors),
        (None, Some(store)) => mount_overlays_here(store, plan.files.stack, plan.files.overlays, OverlayXattrs::User),
        (None, None) => Ok(OverlayMounts::default()),
    }
}

fn mount_overlays_here(
    store: &OwnedFd,
    stack: &LayerStack,
    overlays: OverlayRequest,
    xattrs: OverlayXattrs,
) -> Result<OverlayMounts, StepFailure> {
    for path in [SCRATCH.store, SCRATCH.merged] {
        create_dirs(Path::new(path))?;
    }
    let mounts = overlay::mount_overlays(store, stack, overlays, SCRATCH, xattrs)?;
    for path in [SCRATCH.store, SCRATCH.merged] {
        fs::remove_dir(path).at_with(LaunchStep::MountOverlay, path)?;
    }
    Ok(mounts)
}

/// Makes the current directory the root and unmounts everything else.
fn pivot_into_root(role: Role) -> Result<(), StepFailure> {
    // The old root is stacked over the new one, where it can be unmounted.
    rustix::process::pivot_root(".", ".").at(LaunchStep::PivotRoot)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).at_with(LaunchStep::PivotRoot, "old root")?;
    rustix::process::chdir("/").at(LaunchStep::PivotRoot)?;
    let root = rustix::fs::open("/", rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC, Mode::empty())
        .at(LaunchStep::PivotRoot)?;
    kernel::set_one_mount_attributes(root.as_fd(), READ_ONLY | NO_SUID | NO_DEVICES)
        .at_with(LaunchStep::PivotRoot, "read-only")?;
    match role {
        // The worker stays in `/`: its workspace may be remounted while it runs.
        Role::Worker => Ok(()),
        Role::Agent | Role::Root => rustix::process::chdir("/workspace").at_with(LaunchStep::PivotRoot, "/workspace"),
    }
}

/// Mounts a tmpfs, which counts as memory of its writers.
pub(super) fn mount_tmpfs(target: &Path, options: &str, step: LaunchStep) -> Result<(), StepFailure> {
    mount_tmpfs_with(target, options, MountFlags::NOSUID | MountFlags::NODEV, step)
}

/// Mounts an empty, read-only directory.
pub(super) fn mount_empty_dir(target: &Path, step: LaunchStep) -> Result<(), StepFailure> {
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount_tmpfs_with(target, "mode=555,size=4k,nr_inodes=1", flags, step)
}

fn mount_tmpfs_with(target: &Path, options: &str, flags: MountFlags, step: LaunchStep) -> Result<(), StepFailure> {
    let options = std::ffi::CString::new(options).map_err(io::Error::from).at(step)?;
    rustix::mount::mount(c"tmpfs", target, c"tmpfs", flags, options.as_c_str()).at_with(step, target.display())
}

fn relative_path(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_path_buf()
}

/// The tree is fresh, so it contains no links.
pub(super) fn create_dirs(path: &Path) -> Result<(), StepFailure> {
    fs::create_dir_all(path).at_with(LaunchStep::Root, path.display())
}

pub(super) fn create_file(path: &Path) -> Result<(), StepFailure> {
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o644)).map(drop).at_with(LaunchStep::Root, path.display())
}
