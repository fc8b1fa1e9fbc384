//! Takes hold of what the root will show, as mounts that hang nowhere yet.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

use super::programs::{Held, take};
use super::{Files, Plan};
use crate::error::{AtStep, Failure, Step};
use crate::kernel::{self, NO_DEVICES, NO_EXECUTION, NO_SUID, READ_ONLY};

/// The device nodes that programs need; none gives access to anything of the host.
pub(super) const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

pub(super) struct Trees {
    /// Directories of the host, and where they go.
    pub shown: Vec<(OwnedFd, PathBuf)>,
    pub etc: OwnedFd,
    pub worker: OwnedFd,
    /// Workspace and home, unless they are to be stacked.
    pub files: Option<[OwnedFd; 2]>,
    /// All layers, where some are to be stacked.
    pub store: Option<OwnedFd>,
    pub temporary: OwnedFd,
    pub spool: OwnedFd,
    pub devices: Vec<(OwnedFd, &'static str)>,
    /// In the order of the plan's.
    pub programs: Vec<Held>,
}

impl Trees {
    pub fn open(plan: &Plan<'_>) -> Result<Self, Failure> {
        let fixed = READ_ONLY | NO_SUID | NO_DEVICES;
        let own = NO_SUID | NO_DEVICES;
        let shown = |path: &PathBuf| Ok((tree(path, fixed)?, path.clone()));
        let device = |name: &'static str| Ok((tree(&Path::new("/dev").join(name), NO_SUID | NO_EXECUTION)?, name));
        let directories = if plan.files.wanted.system { &[] } else { plan.view.directories.as_slice() };
        let [temporary, spool] = scratch(plan, own)?;
        Ok(Self {
            shown: directories.iter().map(shown).collect::<Result<_, _>>()?,
            etc: tree(plan.template, fixed)?,
            worker: tree(plan.worker, fixed)?,
            files: files(plan, own)?,
            store: store(plan)?,
            temporary,
            spool,
            devices: DEVICES.into_iter().map(device).collect::<Result<_, _>>()?,
            programs: programs(plan)?,
        })
    }
}

fn files(plan: &Plan<'_>, attributes: u64) -> Result<Option<[OwnedFd; 2]>, Failure> {
    let Files { layers, stack, taken, wanted, .. } = &plan.files;
    if let Some([workspace, home]) = taken {
        return Ok(Some([workspace.try_clone().at(Step::Trees)?, home.try_clone().at(Step::Trees)?]));
    }
    if wanted.files {
        return Ok(None);
    }
    let [workspace, home] = [layers.workspace(&stack.top), layers.agent_home(&stack.top)];
    Ok(Some([tree(&workspace, attributes)?, tree(&home, attributes)?]))
}

fn programs(plan: &Plan<'_>) -> Result<Vec<Held>, Failure> {
    match &plan.files.programs {
        Some(held) => held.iter().map(Held::copy).collect(),
        // This process is who the launcher is, so nobody's rights are exceeded.
        None => plan.programs.iter().map(|shown| take(&shown.from, None)).collect(),
    }
}

fn scratch(plan: &Plan<'_>, attributes: u64) -> Result<[OwnedFd; 2], Failure> {
    let Files { layers, stack, scratch, .. } = &plan.files;
    if let Some([temporary, spool]) = scratch {
        return Ok([temporary.try_clone().at(Step::Trees)?, spool.try_clone().at(Step::Trees)?]);
    }
    let temporary = tree(&plan.home.temporary(layers, stack), attributes)?;
    Ok([temporary, tree(&plan.home.spool(layers, stack), attributes | NO_EXECUTION)?])
}

fn store(plan: &Plan<'_>) -> Result<Option<OwnedFd>, Failure> {
    let Files { layers, store, wanted, .. } = &plan.files;
    match store {
        Some(store) => Ok(Some(store.try_clone().at(Step::Trees)?)),
        None if wanted.files || wanted.system => Ok(Some(tree(&layers.directory, NO_SUID | NO_DEVICES)?)),
        None => Ok(None),
    }
}

/// A copy of the mount at a path, with all below it and the attributes given.
pub(crate) fn tree(path: &Path, attributes: u64) -> Result<OwnedFd, Failure> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = rustix::mount::open_tree(CWD, path, flags).at_with(Step::Trees, path.display())?;
    kernel::set_mount_attributes(tree.as_fd(), attributes).at_with(Step::Trees, path.display())?;
    Ok(tree)
}

/// Hangs a tree over a path below the current directory.
pub(crate) fn hang(tree: &OwnedFd, path: &Path, step: Step) -> Result<(), Failure> {
    rustix::mount::move_mount(tree, c"", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .at_with(step, path.display())
}
