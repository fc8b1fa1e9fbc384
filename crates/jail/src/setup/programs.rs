//! Programs of the host that a sandbox is shown beside its root: the agent's own, wherever it is installed.
//!
//! Only what is named is shown, read-only, and nothing beside it, so that one may lie in a home that nobody else can
//! enter. Each is reached part by part without following a link. A server that isn't who its launcher is gets nothing
//! shown that lies where it could not go itself.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno as Error;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};
use serde::{Deserialize, Serialize};

use super::system;
use crate::error::{AtStep, Failure, Step};
use crate::kernel::{self, NO_DEVICES, NO_SUID, READ_ONLY};
use crate::owner::Owner;

/// Where they are in every sandbox, below its root.
pub(crate) const PLACE: &str = "opt/atoll/agents";

/// A file or directory of the host that a sandbox is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Absolute, and without links.
    pub from: PathBuf,
    /// Below `/opt/atoll/agents`.
    pub at: String,
}

/// A copy of the mount at its path, which hangs nowhere yet.
pub(crate) struct Held {
    tree: OwnedFd,
    is_directory: bool,
}

impl Held {
    pub fn copy(&self) -> Result<Self, Failure> {
        Ok(Self { tree: self.tree.try_clone().at(Step::Trees)?, is_directory: self.is_directory })
    }
}

pub(crate) fn take(path: &Path, owner: Option<Owner>) -> Result<Held, Failure> {
    let (found, is_directory) = reach(path, owner).at_with(Step::Trees, path.display())?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(&found, c"", flags).at_with(Step::Trees, path.display())?;
    let fixed = READ_ONLY | NO_SUID | NO_DEVICES;
    kernel::set_mount_attributes(tree.as_fd(), fixed).at_with(Step::Trees, path.display())?;
    Ok(Held { tree, is_directory })
}

/// What is at a path, and whether it is a directory.
fn reach(path: &Path, owner: Option<Owner>) -> Result<(OwnedFd, bool), Error> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut here = rustix::fs::openat(CWD, "/", flags | OFlags::DIRECTORY, Mode::empty())?;
    for part in path.components() {
        let name = match part {
            Component::RootDir => continue,
            Component::Normal(name) => name,
            Component::Prefix(_) | Component::CurDir | Component::ParentDir => return Err(Error::INVAL),
        };
        if let Some(owner) = owner
            && !may_pass(&rustix::fs::fstat(&here)?, owner)
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

/// Whether somebody may go through a directory, by its mode alone.
fn may_pass(directory: &Stat, owner: Owner) -> bool {
    let bit = match (directory.st_uid == owner.user, directory.st_gid == owner.group) {
        (true, _) => 0o100,
        (false, true) => 0o010,
        (false, false) => 0o001,
    };
    directory.st_mode & bit != 0
}

/// Hangs them over a directory of their own in the root that `root` leads to.
pub(super) fn hang(programs: &[(Held, &str)], root: &Path) -> Result<(), Failure> {
    if programs.is_empty() {
        return Ok(());
    }
    let place = emptiness().at_with(Step::Root, PLACE)?;
    hang_place(&place, root)?;
    for (held, at) in programs {
        let target = make_target(&place, at, held.is_directory).at_with(Step::Root, at)?;
        over(&held.tree, &target).at_with(Step::Root, at)?;
    }
    kernel::set_attributes_of_one(place.as_fd(), READ_ONLY).at_with(Step::Root, PLACE)
}

/// Hangs the directory with all of them where it always is.
pub(crate) fn hang_place(place: &OwnedFd, root: &Path) -> Result<(), Failure> {
    let target = system::directory_for_agents(root).at_with(Step::Root, PLACE)?;
    over(place, &target).at_with(Step::Root, PLACE)
}

fn over(tree: &OwnedFd, target: &OwnedFd) -> rustix::io::Result<()> {
    let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, c"", target, c"", empty)
}

/// A small file system in memory: whatever the root has at the place is not looked at.
fn emptiness() -> rustix::io::Result<OwnedFd> {
    let system = rustix::mount::fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [(c"mode", c"755"), (c"size", c"64k"), (c"nr_inodes", c"256")] {
        rustix::mount::fsconfig_set_string(&system, key, value)?;
    }
    rustix::mount::fsconfig_create(&system)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    rustix::mount::fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// All of it is fresh and ours.
fn make_target(place: &OwnedFd, at: &str, is_directory: bool) -> rustix::io::Result<OwnedFd> {
    let (parents, name) = at.rsplit_once('/').unwrap_or(("", at));
    let mut here = place.try_clone().map_err(|_| Error::MFILE)?;
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
    fn no_link_is_followed_and_nobody_gets_further_than_their_rights() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let home = base.join("home");
        fs::create_dir_all(home.join("bin")).unwrap();
        fs::write(home.join("bin/agent"), "x").unwrap();
        symlink(home.join("bin"), base.join("link")).unwrap();
        symlink(home.join("bin/agent"), home.join("last")).unwrap();
        assert!(!reach(&home.join("bin/agent"), None).unwrap().1);
        assert!(reach(&home.join("bin"), None).unwrap().1);
        for link in [base.join("link/agent"), home.join("last")] {
            assert!(reach(&link, None).is_err(), "{}", link.display());
        }
        assert!(reach(&home.join("bin/../bin/agent"), None).is_err());

        fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
        let found = fs::metadata(&home).unwrap();
        let stranger = Owner { user: found.uid() + 1, group: found.gid() + 1 };
        assert_eq!(reach(&home.join("bin/agent"), Some(stranger)).unwrap_err(), Error::ACCESS);
        let itself = Owner { user: found.uid(), group: found.gid() };
        assert!(reach(&home.join("bin/agent"), Some(itself)).is_ok());
    }
}
