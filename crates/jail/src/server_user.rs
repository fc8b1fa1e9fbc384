//! The unprivileged user of a server whose launcher runs as root.
//!
//! The launcher's files belong to root. The server may only traverse a sandbox's directory to the worker's socket,
//! which it owns, and it gets the spool of a dead worker.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

use crate::kernel;
use crate::record::SandboxDir;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerUser {
    pub uid: u32,
    pub gid: u32,
}

impl ServerUser {
    /// Switches this process to that user for good: no supplementary groups, no capabilities. Call it before any thread
    /// starts.
    pub fn switch_to(self) -> io::Result<()> {
        let signal = rustix::process::parent_process_death_signal()?;
        rustix::thread::clear_ambient_capability_set()?;
        for number in 0..64 {
            match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
                // The kernel has no more capabilities.
                Err(rustix::io::Errno::INVAL) => break,
                outcome => outcome?,
            }
        }
        kernel::set_user(self.uid, self.gid)?;
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets)?;
        rustix::thread::set_no_new_privs(true)?;
        // The kernel clears the parent-death signal when ids change; restore it.
        rustix::process::set_parent_process_death_signal(signal)?;
        self.verify_switched()
    }

    fn verify_switched(self) -> io::Result<()> {
        let (user, group) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let is_it = rustix::process::getuid() == user
            && rustix::process::geteuid() == user
            && rustix::process::getgid() == group
            && rustix::process::getegid() == group
            && rustix::process::getgroups()?.is_empty();
        let returned = rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).is_ok();
        if is_it && !returned { Ok(()) } else { Err(io::Error::other("the process still has root's ids or groups")) }
    }

    /// Lets the server's group traverse a directory, or with `can_list` also list it.
    pub(crate) fn grant_access(self, directory: &Path, can_list: bool) -> io::Result<()> {
        chown(directory, None, Some(self.gid))?;
        fs::set_permissions(directory, fs::Permissions::from_mode(if can_list { 0o750 } else { 0o710 }))
    }

    /// Grants access to a worker's socket. All directories above it belong to root, so that nothing can replace it.
    pub(crate) fn grant_socket_access(self, dir: &SandboxDir) -> io::Result<()> {
        self.grant_access(&dir.directory, false)?;
        self.grant_access(&dir.socket_dir(), true)?;
        match lchown(dir.socket_dir().join("sock"), Some(self.uid), None) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Changes the owner of a spool and its files. The agent has no access to the spool, and its worker is dead.
pub(crate) fn chown_spool(spool: &Path, user: u32, group: u32) -> io::Result<()> {
    // The directory first, so that the old owner cannot add files.
    if fs::symlink_metadata(spool)?.uid() != user {
        lchown(spool, Some(0), Some(0))?;
        for entry in fs::read_dir(spool)? {
            chown_file(&entry?.path(), user, group)?;
        }
        lchown(spool, Some(user), Some(group))?;
    }
    Ok(())
}

/// Changes the owner of a plain file with one link. The old owner of the directory may have put anything there: a file
/// with other hard links may belong to another user, so it stays as it is.
fn chown_file(path: &Path, user: u32, group: u32) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_nlink == 1 {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        rustix::fs::chownat(&file, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_the_owner_of_plain_spool_files_only() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let base = tempfile::tempdir_in("/var/tmp").unwrap();
        let spool = base.path().join("spool");
        fs::create_dir(&spool).unwrap();
        for name in ["elsewhere", "spool/segment"] {
            fs::write(base.path().join(name), "").unwrap();
        }
        fs::hard_link(base.path().join("elsewhere"), spool.join("linked")).unwrap();
        std::os::unix::fs::symlink(base.path().join("elsewhere"), spool.join("link")).unwrap();
        chown_spool(&spool, 54_321, 54_321).unwrap();
        let owner = |name: &str| fs::symlink_metadata(base.path().join(name)).unwrap().uid();
        assert_eq!(["spool", "spool/segment"].map(owner), [54_321; 2]);
        assert_eq!(["elsewhere", "spool/linked", "spool/link"].map(owner), [0; 3]);
    }
}
