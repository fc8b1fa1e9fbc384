//! Removes trees that a stranger filled: links aren't followed, depth costs neither stack nor descriptors.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// How many directories are open at once; what lies deeper is first moved up.
const DEPTH: usize = 48;

/// Removes a directory and all in it; one that isn't there is no failure.
pub(crate) fn tree(path: &Path) -> Result<(), Errno> {
    let top = match open(CWD, path) {
        Err(Errno::NOENT) => return Ok(()),
        top => top?,
    };
    let mut moved = 0;
    // A pass can leave directories that it moved up, and entries that the file system's listing skipped.
    while empty(top.as_fd(), top.as_fd(), DEPTH, &mut moved)? {}
    match rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        outcome => outcome,
    }
}

/// Removes what is in a directory; `true` if there was something.
fn empty(directory: BorrowedFd<'_>, top: BorrowedFd<'_>, depth: usize, moved: &mut u64) -> Result<bool, Errno> {
    let mut found = false;
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        found = true;
        if entry.file_type() != FileType::Directory {
            match unlink(directory, name, AtFlags::empty()) {
                Ok(()) => continue,
                // Some file systems don't say what is a directory.
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(error) => return Err(error),
            }
        }
        if depth == 0 {
            *moved += 1;
            let up = CString::new(format!(".moved-up-{moved}")).map_err(|_| Errno::INVAL)?;
            permit(directory, name)?;
            rustix::fs::renameat(directory, name, top, up)?;
            continue;
        }
        let below = match open(directory, name) {
            // Another remover was faster.
            Err(Errno::NOENT) => continue,
            below => below?,
        };
        while empty(below.as_fd(), top, depth - 1, moved)? {}
        unlink(directory, name, AtFlags::REMOVEDIR)?;
    }
    Ok(found)
}

fn open<P: rustix::path::Arg + Copy>(directory: BorrowedFd<'_>, name: P) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(directory, name, Mode::RWXU, AtFlags::empty())?;
            rustix::fs::openat(directory, name, flags, Mode::empty())
        }
        opened => opened,
    }
}

fn unlink(directory: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<(), Errno> {
    match rustix::fs::unlinkat(directory, name, flags) {
        Err(Errno::ACCESS) => {
            rustix::fs::fchmod(directory, Mode::RWXU)?;
            rustix::fs::unlinkat(directory, name, flags)
        }
        Err(Errno::NOENT) => Ok(()),
        outcome => outcome,
    }
}

/// A directory can be moved only by who may write into it.
fn permit(directory: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let opened = open(directory, name)?;
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
    fn removes_everything_and_follows_nothing() {
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
        tree(&path).unwrap();
        assert!(!path.exists());
        assert!(outside.join("kept").exists());
        tree(&path).unwrap();
    }

    #[test]
    fn depth_is_no_obstacle() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("deep");
        fs::create_dir(&path).unwrap();
        let mut directory = open(CWD, &path).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
            rustix::fs::openat(&directory, "f", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
            directory = open(directory.as_fd(), c"d").unwrap();
        }
        tree(&path).unwrap();
        assert!(!path.exists());
    }
}
