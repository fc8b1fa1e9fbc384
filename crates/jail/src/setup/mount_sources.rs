//! Clones the mounts that the root will contain, detached.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

use super::programs::{ProgramMount, clone_program_mount};
use super::{FileSources, SetupPlan};
use crate::error::{AtStep, LaunchStep, StepFailure};
use crate::kernel::{self, NO_DEVICES, NO_EXECUTION, NO_SUID, READ_ONLY};

/// Device nodes that programs need; none gives access to the host.
pub(super) const DEVICE_NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

pub(super) struct MountSources {
    /// Host directories and their targets.
    pub host_dirs: Vec<(OwnedFd, PathBuf)>,
    pub etc: OwnedFd,
    pub worker: OwnedFd,
    /// Workspace and home, unless they become overlays.
    pub files: Option<[OwnedFd; 2]>,
    /// The layer store, if overlays are needed.
    pub store: Option<OwnedFd>,
    pub tmp: OwnedFd,
    pub spool: OwnedFd,
    pub devices: Vec<(OwnedFd, &'static str)>,
    /// In the plan's order.
    pub programs: Vec<ProgramMount>,
}

impl MountSources {
    pub fn open(plan: &SetupPlan<'_>) -> Result<Self, StepFailure> {
        let read_only = READ_ONLY | NO_SUID | NO_DEVICES;
        let writable = NO_SUID | NO_DEVICES;
        let host_dir = |path: &PathBuf| Ok((clone_mount(path, read_only)?, path.clone()));
        let device =
            |name: &'static str| Ok((clone_mount(&Path::new("/dev").join(name), NO_SUID | NO_EXECUTION)?, name));
        let directories = if plan.files.overlays.system { &[] } else { plan.view.directories.as_slice() };
        let [tmp, spool] = clone_scratch(plan, writable)?;
        Ok(Self {
            host_dirs: directories.iter().map(host_dir).collect::<Result<_, _>>()?,
            etc: clone_mount(plan.template, read_only)?,
            worker: clone_mount(plan.worker, read_only)?,
            files: clone_files(plan, writable)?,
            store: clone_store(plan)?,
            tmp,
            spool,
            devices: DEVICE_NODES.into_iter().map(device).collect::<Result<_, _>>()?,
            programs: clone_programs(plan)?,
        })
    }
}

fn clone_files(plan: &SetupPlan<'_>, attributes: u64) -> Result<Option<[OwnedFd; 2]>, StepFailure> {
    let FileSources { layers, stack, files: cloned, overlays, .. } = &plan.files;
    if let Some([workspace, home]) = cloned {
        return Ok(Some([
            workspace.try_clone().at(LaunchStep::CloneMounts)?,
            home.try_clone().at(LaunchStep::CloneMounts)?,
        ]));
    }
    if overlays.files {
        return Ok(None);
    }
    let [workspace, home] = [layers.workspace_dir(&stack.top), layers.home_dir(&stack.top)];
    Ok(Some([clone_mount(&workspace, attributes)?, clone_mount(&home, attributes)?]))
}

fn clone_programs(plan: &SetupPlan<'_>) -> Result<Vec<ProgramMount>, StepFailure> {
    match &plan.files.programs {
        Some(programs) => programs.iter().map(ProgramMount::try_clone).collect(),
        // This process has the launcher's rights, which are the server's too.
        None => plan.programs.iter().map(|program| clone_program_mount(&program.from, None)).collect(),
    }
}

fn clone_scratch(plan: &SetupPlan<'_>, attributes: u64) -> Result<[OwnedFd; 2], StepFailure> {
    let FileSources { layers, stack, scratch, .. } = &plan.files;
    if let Some([tmp, spool]) = scratch {
        return Ok([tmp.try_clone().at(LaunchStep::CloneMounts)?, spool.try_clone().at(LaunchStep::CloneMounts)?]);
    }
    let tmp = clone_mount(&plan.sandbox_dir.tmp_dir(layers, stack), attributes)?;
    Ok([tmp, clone_mount(&plan.sandbox_dir.spool_dir(layers, stack), attributes | NO_EXECUTION)?])
}

fn clone_store(plan: &SetupPlan<'_>) -> Result<Option<OwnedFd>, StepFailure> {
    let FileSources { layers, store, overlays, mounted, .. } = &plan.files;
    match store {
        _ if mounted.is_some() => Ok(None),
        Some(store) => Ok(Some(store.try_clone().at(LaunchStep::CloneMounts)?)),
        None if overlays.files || overlays.system => Ok(Some(clone_mount(&layers.directory, NO_SUID | NO_DEVICES)?)),
        None => Ok(None),
    }
}

/// Clones the mount at a path, with all mounts below it, and sets attributes.
pub(crate) fn clone_mount(path: &Path, attributes: u64) -> Result<OwnedFd, StepFailure> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = rustix::mount::open_tree(CWD, path, flags).at_with(LaunchStep::CloneMounts, path.display())?;
    kernel::set_mount_attributes(tree.as_fd(), attributes).at_with(LaunchStep::CloneMounts, path.display())?;
    Ok(tree)
}

/// Attaches a detached mount at a path.
pub(crate) fn attach_mount(tree: &OwnedFd, path: &Path, step: LaunchStep) -> Result<(), StepFailure> {
    rustix::mount::move_mount(tree, c"", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .at_with(step, path.display())
}
