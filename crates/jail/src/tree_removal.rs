//! Removes untrusted trees: links are not followed, and depth costs neither stack nor descriptors.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Directories open at once; deeper ones are moved up first.
const MAX_OPEN_DEPTH: usize = 48;

/// Removes a directory with its content; a missing one is no error.
pub(crate) fn remove_tree(path: &Path) -> Result<(), Errno> {
    let top = match open_dir(CWD, path) {
        Err(Errno::NOENT) => return Ok(()),
        top => top?,
    };
    let mut moved = 0;
    // One pass can leave directories that it moved up, and entries that the listing skipped.
    while empty_dir(top.as_fd(), top.as_fd(), MAX_OPEN_DEPTH, &mut moved)? {}
    match rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        outcome => outcome,
    }
}

/// Removes a directory's content; returns `true` if it had any.
fn empty_dir(directory: BorrowedFd<'_>, top: BorrowedFd<'_>, depth: usize, moved: &mut u64) -> Result<bool, Errno> {
    let mut found = false;
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        found = true;
        if entry.file_type() != FileType::Directory {
            match unlink_entry(directory, name, AtFlags::empty()) {
                Ok(()) => continue,
                // Some file systems report no file type in directory listings.
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(error) => return Err(error),
            }
        }
        if depth == 0 {
            *moved += 1;
            let up = CString::new(format!(".moved-up-{moved}")).map_err(|_| Errno::INVAL)?;
            make_writable(directory, name)?;
            rustix::fs::renameat(directory, name, top, up)?;
            continue;
        }
        let below = match open_dir(directory, name) {
            // Another remover was faster.
            Err(Errno::NOENT) => continue,
            below => below?,
        };
        while empty_dir(below.as_fd(), top, depth - 1, moved)? {}
        unlink_entry(directory, name, AtFlags::REMOVEDIR)?;
    }
    Ok(found)
}

fn open_dir<P: rustix::path::Arg + Copy>(directory: BorrowedFd<'_>, name: P) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(directory, name, Mode::RWXU, AtFlags::empty())?;
            rustix::fs::openat(directory, name, flags, Mode::empty())
        }
        opened => opened,
    }
}

fn unlink_entry(directory: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<(), Errno> {
    match rustix::fs::unlinkat(directory, name, flags) {
        Err(Errno::ACCESS) => {
            rustix::fs::fchmod(directory, Mode::RWXU)?;
            rustix::fs::unlinkat(directory, name, flags)
        }
        Err(Errno::NOENT) => Ok(()),
        outcome => outcome,
    }
}

/// Moving a directory needs write permission on it.
fn make_writable(directory: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let opened = open_dir(directory, name)?;
    match rustix::fs::fchmod(&opened, Mode::RWXU) {
        Err(Errno::PERM) => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn removes_everything_and_follows_no_links() {
        let base = tempfile::tempdir().unwrap();
        let outside = base.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        let path = base.path().join("tree");
        fs::create_dir_all(path.join("a/b")).unwrap();
        for number in 0..2000 {
            fs::write(path.join(format!("a/file{number}")), "x").unwrap();
        }
        symlink(&outside, path.join("a/link")).unwrap();
        symlink("nowhere", path.join("a/b/broken")).unwrap();
        rustix::fs::mkfifoat(CWD, path.join("a/fifo"), Mode::RUSR).unwrap();
        fs::create_dir(path.join("locked")).unwrap();
        fs::write(path.join("locked/file"), "x").unwrap();
        fs::set_permissions(path.join("locked"), Permissions::from_mode(0o000)).unwrap();
        remove_tree(&path).unwrap();
        assert!(!path.exists());
        assert!(outside.join("kept").exists());
        remove_tree(&path).unwrap();
    }

    #[test]
    fn removes_very_deep_trees() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("deep");
        fs::create_dir(&path).unwrap();
        let mut directory = open_dir(CWD, &path).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
            rustix::fs::openat(&directory, "f", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR).unwrap();
            directory = open_dir(directory.as_fd(), c"d").unwrap();
        }
        remove_tree(&path).unwrap();
        assert!(!path.exists());
    }
}
