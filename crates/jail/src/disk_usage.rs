//! Measures the disk usage of sandboxes' files.
//!
//! Sandboxes are untrusted and may change the trees meanwhile: links are not followed, neither depth nor width costs
//! descriptors or stack, and no step leaves a tree.

use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::sandbox::DiskUsage;

/// Directories kept open on the way down. From deeper ones the way back is `..`, checked against the expected inode.
const MAX_OPEN_DIRS: usize = 64;

/// Unit of `st_blocks`, independent of the file system.
pub(crate) const STAT_BLOCK_BYTES: u64 = 512;

/// Minimum charge per file, for its inode and directory entry.
pub(crate) const MIN_FILE_BYTES: u64 = 4096;

/// Measures several trees; a file with several hard links counts once.
pub(crate) fn measure_trees(roots: &[PathBuf]) -> Result<DiskUsage, Errno> {
    let mut count = TreeCounter { max_files: u64::MAX, ..TreeCounter::default() };
    for root in roots {
        match open_dir(CWD.as_fd(), root.as_path()) {
            Ok(top) => count.count_tree(top)?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count.usage)
}

/// Measures a tree, but only about `most` files of it.
pub(crate) fn measure_up_to(root: &Path, most: u64) -> Result<DiskUsage, Errno> {
    let mut count = TreeCounter { max_files: most, ..TreeCounter::default() };
    match open_dir(CWD.as_fd(), root) {
        Ok(top) => count.count_tree(top)?,
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    Ok(count.usage)
}

#[derive(Default)]
struct TreeCounter {
    /// Stop at this many files.
    max_files: u64,
    usage: DiskUsage,
    /// Directories found but not entered yet.
    pending_dirs: u64,
    /// Files with several hard links.
    seen_hard_links: HashSet<(u64, u64)>,
}

/// A directory on the way down, with its subdirectories to count.
struct DirLevel {
    identity: (u64, u64),
    /// Only open in the upper levels.
    dir: Option<OwnedFd>,
    remaining: Vec<CString>,
}

fn inode_id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn open_dir<P: rustix::path::Arg>(directory: rustix::fd::BorrowedFd<'_>, name: P) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

impl TreeCounter {
    fn count_tree(&mut self, top: OwnedFd) -> Result<(), Errno> {
        let mut levels = vec![self.count_dir(&top, 0)?];
        let mut current = top;
        while let Some(level) = levels.last_mut() {
            if self.usage.files >= self.max_files {
                return Ok(());
            }
            if let Some(name) = level.remaining.pop() {
                self.pending_dirs -= 1;
                match open_dir(current.as_fd(), name.as_c_str()) {
                    Ok(below) => {
                        levels.push(self.count_dir(&below, levels.len())?);
                        current = below;
                    }
                    // Removed or replaced meanwhile; or unreadable, and then its own inode is counted already.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::PERM) => {}
                    Err(error) => return Err(error),
                }
                continue;
            }
            levels.pop();
            match reopen_parent(&current, &levels)? {
                Some(directory) => current = directory,
                // The directory was moved meanwhile: continue with the deepest open one and skip what was between.
                None => {
                    self.pending_dirs -=
                        levels.iter().skip(MAX_OPEN_DIRS).map(|level| level.remaining.len() as u64).sum::<u64>();
                    levels.truncate(MAX_OPEN_DIRS);
                    let Some(dir) = levels.last().and_then(|level| level.dir.as_ref()) else { return Ok(()) };
                    current = rustix::io::fcntl_dupfd_cloexec(dir, 3)?;
                }
            }
        }
        Ok(())
    }

    /// Counts a directory and the files in it.
    fn count_dir(&mut self, directory: &OwnedFd, depth: usize) -> Result<DirLevel, Errno> {
        let own = rustix::fs::fstat(directory)?;
        self.add_file(&own);
        let mut left = Vec::new();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if self.usage.files + self.pending_dirs >= self.max_files {
                break;
            }
            if entry.file_type() == FileType::Directory {
                left.push(name.to_owned());
                self.pending_dirs += 1;
                continue;
            }
            match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                // Some file systems report no file type in directory listings.
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                    left.push(name.to_owned());
                    self.pending_dirs += 1;
                }
                Ok(stat) => self.add_file(&stat),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        let dir = if depth < MAX_OPEN_DIRS { Some(rustix::io::fcntl_dupfd_cloexec(directory, 3)?) } else { None };
        Ok(DirLevel { identity: inode_id(&own), dir, remaining: left })
    }

    fn add_file(&mut self, stat: &Stat) {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_directory && stat.st_nlink > 1 && !self.seen_hard_links.insert(inode_id(stat)) {
            return;
        }
        self.usage.files += 1;
        self.usage.bytes += (u64::try_from(stat.st_blocks).unwrap_or(0) * STAT_BLOCK_BYTES).max(MIN_FILE_BYTES);
    }
}

/// Reopens the directory of the last level from the one below it; `None` if it moved.
fn reopen_parent(below: &OwnedFd, levels: &[DirLevel]) -> Result<Option<OwnedFd>, Errno> {
    let Some(level) = levels.last() else { return Ok(None) };
    if let Some(dir) = &level.dir {
        return Ok(Some(rustix::io::fcntl_dupfd_cloexec(dir, 3)?));
    }
    match open_dir(below.as_fd(), c"..") {
        Ok(directory) if inode_id(&rustix::fs::fstat(&directory)?) == level.identity => Ok(Some(directory)),
        Ok(_) | Err(Errno::NOENT | Errno::ACCESS) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn counted(path: &Path) -> DiskUsage {
        measure_trees(&[path.to_path_buf()]).unwrap()
    }

    #[test]
    fn counts_each_file_once_and_follows_no_links() {
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
        assert_eq!(measure_trees(&[tree.clone(), base.path().join("missing")]).unwrap(), full);
        assert_eq!(counted(&base.path().join("missing")), DiskUsage::default());
        assert_eq!(measure_up_to(&tree, u64::MAX).unwrap(), full);
        let part = measure_up_to(&tree, 4).unwrap();
        assert!((4..=5).contains(&part.files) && part.bytes <= full.bytes, "{part:?}");
    }

    #[test]
    fn stops_at_the_maximum_number_of_files() {
        let base = tempfile::tempdir_in("/var/tmp").unwrap();
        for number in 0..200 {
            fs::create_dir_all(base.path().join(format!("{number}/below"))).unwrap();
        }
        let mut count = TreeCounter { max_files: 50, ..TreeCounter::default() };
        let level = count.count_dir(&open_dir(CWD.as_fd(), base.path()).unwrap(), 0).unwrap();
        assert_eq!((level.remaining.len(), count.usage.files), (49, 1));
        assert!((50..=52).contains(&measure_up_to(base.path(), 50).unwrap().files));
        assert_eq!(measure_up_to(base.path(), u64::MAX).unwrap().files, 401);
    }

    #[test]
    fn counts_very_deep_trees() {
        let base = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = base.path().join("deep");
        fs::create_dir(&path).unwrap();
        let mut directory = open_dir(CWD.as_fd(), path.as_path()).unwrap();
        for _ in 0..300 {
            rustix::fs::mkdirat(&directory, "d", Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&directory, "e", Mode::RWXU).unwrap();
            directory = open_dir(directory.as_fd(), "d").unwrap();
        }
        let file =
            rustix::fs::openat(&directory, "f", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR).unwrap();
        rustix::io::write(&file, &vec![1; 1 << 20]).unwrap();
        let found = counted(&path);
        assert_eq!(found.files, 1 + 2 * 300 + 1);
        assert!(found.bytes >= 1 << 20);
        crate::tree_removal::remove_tree(&path).unwrap();
    }
}
