//! Takes hold of what the root will show, as mounts that hang nowhere yet.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

use super::Plan;
use crate::error::{AtStep, Failure, Step};
use crate::kernel::{self, NO_DEVICES, NO_EXECUTION, NO_SUID, READ_ONLY};

/// The device nodes that programs need; none gives access to anything of the host.
pub(super) const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

pub(super) struct Trees {
    /// Directories of the host, and where they go.
    pub shown: Vec<(OwnedFd, PathBuf)>,
    pub etc: OwnedFd,
    pub worker: OwnedFd,
    pub workspace: OwnedFd,
    pub agent_home: OwnedFd,
    pub temporary: OwnedFd,
    pub spool: OwnedFd,
    pub devices: Vec<(OwnedFd, &'static str)>,
}

impl Trees {
    pub fn open(plan: &Plan<'_>) -> Result<Self, Failure> {
        let fixed = READ_ONLY | NO_SUID | NO_DEVICES;
        let own = NO_SUID | NO_DEVICES;
        let shown = |path: &PathBuf| Ok((tree(path, fixed)?, path.clone()));
        let device = |name: &'static str| Ok((tree(&Path::new("/dev").join(name), NO_SUID | NO_EXECUTION)?, name));
        Ok(Self {
            shown: plan.view.directories.iter().map(shown).collect::<Result<_, _>>()?,
            etc: tree(plan.template, fixed)?,
            worker: tree(plan.worker, fixed)?,
            workspace: tree(&plan.home.workspace(), own)?,
            agent_home: tree(&plan.home.agent_home(), own)?,
            temporary: tree(&plan.home.temporary(), own)?,
            spool: tree(&plan.home.spool(), own | NO_EXECUTION)?,
            devices: DEVICES.into_iter().map(device).collect::<Result<_, _>>()?,
        })
    }
}

/// A copy of the mount at a path, with all below it and the attributes given.
pub(super) fn tree(path: &Path, attributes: u64) -> Result<OwnedFd, Failure> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = rustix::mount::open_tree(CWD, path, flags).at_with(Step::Trees, path.display())?;
    kernel::set_mount_attributes(tree.as_fd(), attributes).at_with(Step::Trees, path.display())?;
    Ok(tree)
}

/// Hangs a tree over a path below the current directory.
pub(super) fn hang(tree: &OwnedFd, path: &Path, step: Step) -> Result<(), Failure> {
    rustix::mount::move_mount(tree, c"", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .at_with(step, path.display())
}
