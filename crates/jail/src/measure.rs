//! What a sandbox's files take on disk. The trees are a stranger's, who may change them while they are counted: links
//! aren't followed, neither depth nor width costs descriptors or stack, and no step leads out of a tree.

use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::place::DiskUse;

/// How many directories are held on the way down. From deeper ones the way back is `..`, which is trusted only as long
/// as it leads where it came from.
const HELD: usize = 64;

/// What a unit of `st_blocks` is, whatever the file system's own.
pub(crate) const BLOCK: u64 = 512;

/// What a file takes at least, however empty: its entry and what the file system keeps of it.
pub(crate) const LEAST: u64 = 4096;

/// Counts trees together, a file with several names once.
pub(crate) fn trees(roots: &[PathBuf]) -> Result<DiskUse, Errno> {
    let mut count = Count { most: u64::MAX, ..Count::default() };
    for root in roots {
        match open(CWD.as_fd(), root.as_path()) {
            Ok(top) => count.tree(top)?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count.found)
}

/// Counts a tree, but no more than about so many files of it.
pub(crate) fn some(root: &Path, most: u64) -> Result<DiskUse, Errno> {
    let mut count = Count { most, ..Count::default() };
    match open(CWD.as_fd(), root) {
        Ok(top) => count.tree(top)?,
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    Ok(count.found)
}

#[derive(Default)]
struct Count {
    /// Enough is known then.
    most: u64,
    found: DiskUse,
    /// Directories that are known by their names only.
    named: u64,
    /// Files with more than one name.
    seen: HashSet<(u64, u64)>,
}

/// A directory on the way down, with those below it that are still to be counted.
struct Level {
    identity: (u64, u64),
    /// Kept in the upper levels only.
    held: Option<OwnedFd>,
    left: Vec<CString>,
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn open<P: rustix::path::Arg>(directory: rustix::fd::BorrowedFd<'_>, name: P) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

impl Count {
    fn tree(&mut self, top: OwnedFd) -> Result<(), Errno> {
        let mut levels = vec![self.level(&top, 0)?];
        let mut current = top;
        while let Some(level) = levels.last_mut() {
            if self.found.files >= self.most {
                return Ok(());
            }
            if let Some(name) = level.left.pop() {
                self.named -= 1;
                match open(current.as_fd(), name.as_c_str()) {
                    Ok(below) => {
                        levels.push(self.level(&below, levels.len())?);
                        current = below;
                    }
                    // It is gone, or something else by now; or closed to us, and then counted by itself already.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::PERM) => {}
                    Err(error) => return Err(error),
                }
                continue;
            }
            levels.pop();
            match up(&current, &levels)? {
                Some(directory) => current = directory,
                // It was moved while this was in it: on from what is held, less what was between.
                None => {
                    self.named -= levels.iter().skip(HELD).map(|level| level.left.len() as u64).sum::<u64>();
                    levels.truncate(HELD);
                    let Some(held) = levels.last().and_then(|level| level.held.as_ref()) else { return Ok(()) };
                    current = rustix::io::fcntl_dupfd_cloexec(held, 3)?;
                }
            }
        }
        Ok(())
    }

    /// Counts a directory with the files in it.
    fn level(&mut self, directory: &OwnedFd, depth: usize) -> Result<Level, Errno> {
        let own = rustix::fs::fstat(directory)?;
        self.add(&own);
        let mut left = Vec::new();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if self.found.files + self.named >= self.most {
                break;
            }
            if entry.file_type() == FileType::Directory {
                left.push(name.to_owned());
                self.named += 1;
                continue;
            }
            match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                // Some file systems don't say in the list what is a directory.
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                    left.push(name.to_owned());
                    self.named += 1;
                }
                Ok(stat) => self.add(&stat),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        let held = if depth < HELD { Some(rustix::io::fcntl_dupfd_cloexec(directory, 3)?) } else { None };
        Ok(Level { identity: identity(&own), held, left })
    }

    fn add(&mut self, stat: &Stat) {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_directory && stat.st_nlink > 1 && !self.seen.insert(identity(stat)) {
            return;
        }
        self.found.files += 1;
        self.found.bytes += (u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK).max(LEAST);
    }
}

/// The directory of the last level, from the one below it; `None` if that isn't there any more.
fn up(below: &OwnedFd, levels: &[Level]) -> Result<Option<OwnedFd>, Errno> {
    let Some(level) = levels.last() else { return Ok(None) };
    if let Some(held) = &level.held {
        return Ok(Some(rustix::io::fcntl_dupfd_cloexec(held, 3)?));
    }
    match open(below.as_fd(), c"..") {
        Ok(directory) if identity(&rustix::fs::fstat(&directory)?) == level.identity => Ok(Some(directory)),
        Ok(_) | Err(Errno::NOENT | Errno::ACCESS) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn counted(path: &Path) -> DiskUse {
        trees(&[path.to_path_buf()]).unwrap()
    }

    #[test]
    fn what_takes_space_is_counted_once_and_nothing_outside() {
        let base = tempfile::tempdir_in("/var/tmp").unwrap();
        let (tree, outside) = (base.path().join("tree"), base.path().join("outside"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("large"), vec![1; 3 << 20]).unwrap();
        let empty = counted(&tree);
        assert_eq!(empty.files, 3);
        fs::write(tree.join("a/b/file"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(tree.join("a/b/file"), tree.join("a/again")).unwrap();
        symlink(&outside, tree.join("link")).unwrap();
        symlink(outside.join("large"), tree.join("a/link")).unwrap();
        rustix::fs::mkfifoat(CWD, tree.join("fifo"), Mode::RUSR).unwrap();
        fs::File::create(tree.join("sparse")).unwrap().set_len(1 << 30).unwrap();
        let full = counted(&tree);
        assert_eq!(full.files, 3 + 1 + 2 + 1 + 1);
        let grown = full.bytes - empty.bytes;
        assert!((1 << 20..(1 << 20) + (64 << 10)).contains(&grown), "{grown}");
        assert_eq!(trees(&[tree.clone(), base.path().join("missing")]).unwrap(), full);
        assert_eq!(counted(&base.path().join("missing")), DiskUse::default());
        assert_eq!(some(&tree, u64::MAX).unwrap(), full);
        let part = some(&tree, 4).unwrap();
        assert!((4..=5).contains(&part.files) && part.bytes <= full.bytes, "{part:?}");
    }

    #[test]
    fn no_more_names_are_kept_than_are_wanted() {
        let base = tempfile::tempdir_in("/var/tmp").unwrap();
        for number in 0..200 {
            fs::create_dir_all(base.path().join(format!("{number}/below"))).unwrap();
        }
        let mut count = Count { most: 50, ..Count::default() };
        let level = count.level(&open(CWD.as_fd(), base.path()).unwrap(), 0).unwrap();
        assert_eq!((level.left.len(), count.found.files), (49, 1));
        assert!((50..=52).contains(&some(base.path(), 50).unwrap().files));
        assert_eq!(some(base.path(), u64::MAX).unwrap().files, 401);
    }

    #[test]
    fn depth_is_no_obstacle_and_nothing_is_hidden_by_it() {
        let base = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = base.path().join("deep");
        fs::create_dir(&path).unwrap();
        let mut directory = open(CWD.as_fd(), path.as_path()).unwrap();
        for _ in 0..300 {
            rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&directory, "e", Mode::RWXU).unwrap();
            directory = open(directory.as_fd(), "d").unwrap();
        }
        let file = rustix::fs::openat(&directory, "f", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
        rustix::io::write(&file, &vec![1; 1 << 20]).unwrap();
        let found = counted(&path);
        assert_eq!(found.files, 1 + 2 * 300 + 1);
        assert!(found.bytes >= 1 << 20);
        crate::remove::tree(&path).unwrap();
    }
}
