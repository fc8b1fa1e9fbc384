//! Programs of the host that are mounted besides the sandbox's root: the agent's own.
//!
//! Only the named file or directory is mounted, read-only, so it may be in a private home directory. Links are not
//! followed. An unprivileged server gets nothing mounted that it could not reach itself.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno as Error;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};
use serde::{Deserialize, Serialize};

use super::imported_root;
use crate::error::{AtStep, LaunchStep, StepFailure};
use crate::kernel::{self, NO_DEVICES, NO_SUID, READ_ONLY};
use crate::server_user::ServerUser;

/// Mount point in every sandbox, relative to its root.
pub(crate) const AGENTS_MOUNT_POINT: &str = "opt/atoll/agents";

/// A file or directory of the host to mount in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostProgram {
    /// Absolute, without links.
    pub from: PathBuf,
    /// Relative to `/opt/atoll/agents`.
    pub at: String,
}

/// A detached clone of a mount.
pub(crate) struct ProgramMount {
    tree: OwnedFd,
    is_directory: bool,
}

impl ProgramMount {
    pub fn try_clone(&self) -> Result<Self, StepFailure> {
        Ok(Self { tree: self.tree.try_clone().at(LaunchStep::CloneMounts)?, is_directory: self.is_directory })
    }
}

pub(crate) fn clone_program_mount(path: &Path, owner: Option<ServerUser>) -> Result<ProgramMount, StepFailure> {
    let (found, is_directory) = open_without_links(path, owner).at_with(LaunchStep::CloneMounts, path.display())?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(&found, c"", flags).at_with(LaunchStep::CloneMounts, path.display())?;
    let fixed = READ_ONLY | NO_SUID | NO_DEVICES;
    kernel::set_mount_attributes(tree.as_fd(), fixed).at_with(LaunchStep::CloneMounts, path.display())?;
    Ok(ProgramMount { tree, is_directory })
}

/// Opens a path without following links; returns whether it is a directory.
fn open_without_links(path: &Path, owner: Option<ServerUser>) -> Result<(OwnedFd, bool), Error> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut here = rustix::fs::openat(CWD, "/", flags | OFlags::DIRECTORY, Mode::empty())?;
    for part in path.components() {
        let name = match part {
            Component::RootDir => continue,
            Component::Normal(name) => name,
            Component::Prefix(_) | Component::CurDir | Component::ParentDir => return Err(Error::INVAL),
        };
        if let Some(owner) = owner
            && !can_traverse(&rustix::fs::fstat(&here)?, owner)
        {
            return Err(Error::ACCESS);
        }
        here = rustix::fs::openat(&here, name, flags, Mode::empty())?;
    }
    match FileType::from_raw_mode(rustix::fs::fstat(&here)?.st_mode) {
        FileType::RegularFile => Ok((here, false)),
        FileType::Directory => Ok((here, true)),
        FileType::Symlink => Err(Error::LOOP),
        _ => Err(Error::INVAL),
    }
}

/// True if a user may traverse a directory, by its mode bits.
fn can_traverse(directory: &Stat, owner: ServerUser) -> bool {
    let bit = match (directory.st_uid == owner.uid, directory.st_gid == owner.gid) {
        (true, _) => 0o100,
        (false, true) => 0o010,
        (false, false) => 0o001,
    };
    directory.st_mode & bit != 0
}

/// Mounts the programs over a fresh directory in the given root.
pub(super) fn mount_programs(programs: &[(ProgramMount, &str)], root: &Path) -> Result<(), StepFailure> {
    if programs.is_empty() {
        return Ok(());
    }
    let agents_dir = create_tmpfs().at_with(LaunchStep::Root, AGENTS_MOUNT_POINT)?;
    mount_agents_dir(&agents_dir, root)?;
    for (program, at) in programs {
        let target = create_mount_target(&agents_dir, at, program.is_directory).at_with(LaunchStep::Root, at)?;
        move_mount_onto(&program.tree, &target).at_with(LaunchStep::Root, at)?;
    }
    kernel::set_one_mount_attributes(agents_dir.as_fd(), READ_ONLY).at_with(LaunchStep::Root, AGENTS_MOUNT_POINT)
}

/// Mounts the directory of all programs at its fixed path.
pub(crate) fn mount_agents_dir(agents_dir: &OwnedFd, root: &Path) -> Result<(), StepFailure> {
    let target = imported_root::open_agents_dir(root).at_with(LaunchStep::Root, AGENTS_MOUNT_POINT)?;
    move_mount_onto(agents_dir, &target).at_with(LaunchStep::Root, AGENTS_MOUNT_POINT)
}

fn move_mount_onto(tree: &OwnedFd, target: &OwnedFd) -> rustix::io::Result<()> {
    let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, c"", target, c"", empty)
}

/// Creates a small tmpfs, which hides what the root has at the mount point.
fn create_tmpfs() -> rustix::io::Result<OwnedFd> {
    let system = rustix::mount::fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [(c"mode", c"755"), (c"size", c"64k"), (c"nr_inodes", c"256")] {
        rustix::mount::fsconfig_set_string(&system, key, value)?;
    }
    rustix::mount::fsconfig_create(&system)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    rustix::mount::fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Creates a mount target in the fresh tmpfs.
fn create_mount_target(agents_dir: &OwnedFd, at: &str, is_directory: bool) -> rustix::io::Result<OwnedFd> {
    let (parents, name) = at.rsplit_once('/').unwrap_or(("", at));
    let mut here = agents_dir.try_clone().map_err(|_| Error::MFILE)?;
    let open = |directory: &OwnedFd, name: &str| {
        rustix::fs::openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    };
    let make = |directory: &OwnedFd, name: &str| match rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(0o755))
    {
        Ok(()) | Err(Error::EXIST) => open(directory, name),
        Err(error) => Err(error),
    };
    for parent in parents.split('/').filter(|part| !part.is_empty()) {
        here = make(&here, parent)?;
    }
    if is_directory {
        return make(&here, name);
    }
    let fresh = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&here, name, fresh, Mode::from_raw_mode(0o644))?;
    open(&here, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn follows_no_links_and_respects_the_users_rights() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let home = base.join("home");
        fs::create_dir_all(home.join("bin")).unwrap();
        fs::write(home.join("bin/agent"), "x").unwrap();
        symlink(home.join("bin"), base.join("link")).unwrap();
        symlink(home.join("bin/agent"), home.join("last")).unwrap();
        assert!(!open_without_links(&home.join("bin/agent"), None).unwrap().1);
        assert!(open_without_links(&home.join("bin"), None).unwrap().1);
        for link in [base.join("link/agent"), home.join("last")] {
            assert!(open_without_links(&link, None).is_err(), "{}", link.display());
        }
        assert!(open_without_links(&home.join("bin/../bin/agent"), None).is_err());

        fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
        let found = fs::metadata(&home).unwrap();
        let stranger = ServerUser { uid: found.uid() + 1, gid: found.gid() + 1 };
        assert_eq!(open_without_links(&home.join("bin/agent"), Some(stranger)).unwrap_err(), Error::ACCESS);
        let itself = ServerUser { uid: found.uid(), gid: found.gid() };
        assert!(open_without_links(&home.join("bin/agent"), Some(itself)).is_ok());
    }
}
