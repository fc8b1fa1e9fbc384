//! A server that isn't who its launcher is: how it becomes that user, and what of a sandbox's files it may reach.
//!
//! All that the launcher keeps belongs to root and stays where it is. The server may pass through a sandbox's directory to
//! the worker's socket, which is its own; and it gets the spool of a worker that is dead.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

use crate::kernel;
use crate::record::Home;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub user: u32,
    pub group: u32,
}

impl Owner {
    /// Makes this process that user's, for good: no other groups, no capabilities, no way back. Call it before any
    /// thread starts.
    pub fn assume(self) -> io::Result<()> {
        let signal = rustix::process::parent_process_death_signal()?;
        rustix::thread::clear_ambient_capability_set()?;
        for number in 0..64 {
            match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
                // The kernel knows no more.
                Err(rustix::io::Errno::INVAL) => break,
                outcome => outcome?,
            }
        }
        kernel::become_user(self.user, self.group)?;
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets)?;
        rustix::thread::set_no_new_privs(true)?;
        // Whoever started it wants to be outlived no longer than before; the kernel forgets that with the ids.
        rustix::process::set_parent_process_death_signal(signal)?;
        self.is_all_there_is()
    }

    fn is_all_there_is(self) -> io::Result<()> {
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.group));
        let is_it = rustix::process::getuid() == user
            && rustix::process::geteuid() == user
            && rustix::process::getgid() == group
            && rustix::process::getegid() == group
            && rustix::process::getgroups()?.is_empty();
        let returned = rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).is_ok();
        if is_it && !returned { Ok(()) } else { Err(io::Error::other("something of root is left")) }
    }

    /// Lets the server pass through a directory, or with `look` also see what is in it. Nobody else may.
    pub(crate) fn admit(self, directory: &Path, look: bool) -> io::Result<()> {
        chown(directory, None, Some(self.group))?;
        fs::set_permissions(directory, fs::Permissions::from_mode(if look { 0o750 } else { 0o710 }))
    }

    /// The way to a sandbox's worker. All of it lies in directories of root's, so that nothing can be put in its place.
    pub(crate) fn admit_to(self, home: &Home) -> io::Result<()> {
        self.admit(&home.directory, false)?;
        self.admit(&home.link(), true)?;
        match lchown(home.link().join("sock"), Some(self.user), None) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Gives a spool with the files in it to somebody. It is no agent's, and nobody writes there now.
pub(crate) fn give_spool(spool: &Path, user: u32, group: u32) -> io::Result<()> {
    // From the outside in: who had it can't add to it any more.
    if fs::symlink_metadata(spool)?.uid() != user {
        lchown(spool, Some(0), Some(0))?;
        for entry in fs::read_dir(spool)? {
            give_file(&entry?.path(), user, group)?;
        }
        lchown(spool, Some(user), Some(group))?;
    }
    Ok(())
}

/// Whoever had the directory could have put anything there. A file that has another name elsewhere may be somebody's; what
/// is none is nobody's use. Both stay as they are.
fn give_file(path: &Path, user: u32, group: u32) -> io::Result<()> {
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
    fn only_files_of_the_spools_own_are_given() {
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
        give_spool(&spool, 54_321, 54_321).unwrap();
        let owner = |name: &str| fs::symlink_metadata(base.path().join(name)).unwrap().uid();
        assert_eq!(["spool", "spool/segment"].map(owner), [54_321; 2]);
        assert_eq!(["elsewhere", "spool/linked", "spool/link"].map(owner), [0; 3]);
    }
}
