//! btrfs subvolumes and their quotas, by ioctl: the btrfs programs are not needed.
//!
//! A subvolume is a directory with its own tree. A snapshot of it takes constant time. The kernel
//! accounts each subvolume's usage and refuses writes over its quota.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Inode number of every subvolume's root directory.
const SUBVOLUME_ROOT_INODE: u64 = 256;
const BTRFS_MAGIC: i128 = 0x9123_683e;

/// Accounting mode of the file system's quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaMode {
    /// Simple quotas: a block counts for the subvolume that wrote it first. A snapshot starts at zero.
    Simple,
    /// Full quotas: a block counts for every subvolume that refers to it. A snapshot starts with its original's usage.
    Full,
}

const SNAPSHOT_CREATE: libc::Ioctl = 0x5000_9417;
const SUBVOLUME_CREATE: libc::Ioctl = 0x5000_9418;
const SNAPSHOT_DESTROY: libc::Ioctl = 0x5000_943f;
const RESIZE: libc::Ioctl = 0x5000_9403;
const QUOTA_CONTROL: libc::Ioctl = 0xc010_9428_u32 as libc::Ioctl;
const GROUP_LIMIT: libc::Ioctl = 0x8030_942b_u32 as libc::Ioctl;
const GROUP_CREATE: libc::Ioctl = 0x4010_942a;
const TREE_SEARCH: libc::Ioctl = 0xc070_9411_u32 as libc::Ioctl;
const INODE_LOOKUP: libc::Ioctl = 0xd000_9412_u32 as libc::Ioctl;

const ENABLE: u64 = 1;
const ENABLE_SIMPLE: u64 = 4;

const QUOTA_TREE: u64 = 8;
const QGROUP_STATUS_KEY: u32 = 240;
const QGROUP_INFO_KEY: u32 = 242;
const STATUS_FLAG_ON: u64 = 1;
const STATUS_FLAG_SIMPLE: u64 = 8;
const LIMIT_REFERENCED: u64 = 1;

const MAX_NAME_BYTES: usize = 4040;

#[repr(C)]
struct VolumeArguments {
    descriptor: i64,
    transaction: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; MAX_NAME_BYTES],
}

#[repr(C)]
struct ResizeArguments {
    descriptor: i64,
    name: [u8; 4088],
}

#[repr(C)]
struct QuotaArguments {
    command: u64,
    status: u64,
}

#[repr(C)]
struct LimitArguments {
    group: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved: [u64; 2],
}

#[repr(C)]
struct GroupArguments {
    create: u64,
    group: u64,
}

#[repr(C)]
struct LookupArguments {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

/// Buffer for the items that one tree search returns.
const SEARCH_BUFFER_BYTES: usize = 4096;

#[repr(C)]
struct SearchArguments {
    tree: u64,
    objects: [u64; 2],
    offsets: [u64; 2],
    transactions: [u64; 2],
    kinds: [u32; 2],
    items: u32,
    unused: u32,
    more_unused: [u64; 4],
    room: u64,
    found: [u8; SEARCH_BUFFER_BYTES],
}

/// Runs an ioctl on an open file. `T` is the structure that the request takes.
fn run_ioctl<T>(file: BorrowedFd<'_>, request: libc::Ioctl, arguments: &mut T) -> io::Result<()> {
    // SAFETY: each caller in this module passes the request that `T` belongs to. `T` is valid for reading and writing
    // during the call, and its size equals the size in the request number (see the tests).
    let failed = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(arguments)) };
    if failed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn volume_arguments(name: &CStr) -> io::Result<VolumeArguments> {
    let mut arguments =
        VolumeArguments { descriptor: 0, transaction: 0, flags: 0, unused: [0; 4], name: [0; MAX_NAME_BYTES] };
    let bytes = name.to_bytes();
    match arguments.name.get_mut(..bytes.len()) {
        Some(slot) if bytes.len() < 256 => slot.copy_from_slice(bytes),
        Some(_) | None => return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG)),
    }
    Ok(arguments)
}

/// Opens the parent directory of a path and returns it with the path's last component.
fn open_parent(path: &Path) -> io::Result<(File, CString)> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(invalid)?;
    Ok((File::open(parent)?, CString::new(name.as_bytes()).map_err(|_| invalid())?))
}

pub(crate) fn is_btrfs(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| i128::from(found.f_type) == BTRFS_MAGIC)
}

pub(crate) fn is_subvolume(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.ino() == SUBVOLUME_ROOT_INODE)
        && is_btrfs(path)
}

pub(crate) fn create_subvolume(path: &Path) -> io::Result<()> {
    let (parent, name) = open_parent(path)?;
    run_ioctl(parent.as_fd(), SUBVOLUME_CREATE, &mut volume_arguments(&name)?)
}

/// Creates a writable snapshot of `original`.
pub(crate) fn snapshot_subvolume(original: &Path, path: &Path) -> io::Result<()> {
    let (parent, name) = open_parent(path)?;
    let original = File::open(original)?;
    let mut arguments = volume_arguments(&name)?;
    arguments.descriptor = i64::from(original.as_raw_fd());
    run_ioctl(parent.as_fd(), SNAPSHOT_CREATE, &mut arguments)
}

/// Deletes a subvolume with its content; the kernel frees the space soon after.
///
/// On a full file system the deletion itself needs space, which earlier deletions free only with the next commit.
pub(crate) fn delete_subvolume(path: &Path) -> io::Result<()> {
    match delete_once(path) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
            rustix::fs::syncfs(File::open(path)?)?;
            delete_once(path)
        }
        outcome => outcome,
    }
}

fn delete_once(path: &Path) -> io::Result<()> {
    let (parent, name) = open_parent(path)?;
    run_ioctl(parent.as_fd(), SNAPSHOT_DESTROY, &mut volume_arguments(&name)?)
}

/// Grows the file system to the size of its device.
pub(crate) fn grow_to_device(path: &Path) -> io::Result<()> {
    let mut arguments = ResizeArguments { descriptor: 0, name: [0; 4088] };
    arguments.name[..3].copy_from_slice(b"max");
    run_ioctl(File::open(path)?.as_fd(), RESIZE, &mut arguments)
}

/// Reads a subvolume's id, which is also the id of its quota group.
fn quota_group_id(volume: BorrowedFd<'_>) -> io::Result<u64> {
    let mut arguments = LookupArguments { tree: 0, object: SUBVOLUME_ROOT_INODE, name: [0; 4080] };
    run_ioctl(volume, INODE_LOOKUP, &mut arguments)?;
    Ok(arguments.tree)
}

/// Reads the quota mode of the file system at a path; `None` without quotas.
pub(crate) fn quota_mode(path: &Path) -> Option<QuotaMode> {
    if !is_btrfs(path) {
        return None;
    }
    let status = search_quota_tree(File::open(path).ok()?.as_fd(), QGROUP_STATUS_KEY, 0, 0).ok()?.into_iter().next()?.1;
    let flags = read_u64_field(&status, 2)?;
    if flags & STATUS_FLAG_ON == 0 {
        return None;
    }
    Some(if flags & STATUS_FLAG_SIMPLE == 0 { QuotaMode::Full } else { QuotaMode::Simple })
}

/// Enables quotas on the file system at a path: simple quotas where the kernel has them, else full ones.
pub(crate) fn enable_quotas(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let enable = |command| run_ioctl(file.as_fd(), QUOTA_CONTROL, &mut QuotaArguments { command, status: 0 });
    enable(ENABLE_SIMPLE).or_else(|_| enable(ENABLE))
}

/// Limits the bytes that a subvolume may refer to.
pub(crate) fn set_quota(volume: &Path, bytes: u64) -> io::Result<()> {
    let file = File::open(volume)?;
    let mut arguments = LimitArguments {
        group: quota_group_id(file.as_fd())?,
        flags: LIMIT_REFERENCED,
        max_referenced: bytes,
        max_exclusive: 0,
        reserved: [0; 2],
    };
    run_ioctl(file.as_fd(), GROUP_LIMIT, &mut arguments)
}

/// Reads the usage of a subvolume, as of the kernel's last commit.
pub(crate) fn used_bytes(volume: &Path) -> io::Result<u64> {
    let file = File::open(volume)?;
    let group = quota_group_id(file.as_fd())?;
    let found = search_quota_tree(file.as_fd(), QGROUP_INFO_KEY, group, group)?;
    let item = found.into_iter().next().ok_or(io::ErrorKind::NotFound)?.1;
    read_u64_field(&item, 1).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Deletes the quota groups of deleted subvolumes once their usage is zero.
pub(crate) fn delete_stale_quota_groups(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let mut from = SUBVOLUME_ROOT_INODE;
    loop {
        let found = search_quota_tree(file.as_fd(), QGROUP_INFO_KEY, from, u64::MAX)?;
        let Some((last, _)) = found.last() else { return Ok(()) };
        from = last.saturating_add(1);
        for (group, _) in found.iter().filter(|(_, item)| read_u64_field(item, 1) == Some(0)) {
            // The kernel refuses this for existing subvolumes.
            let _ = run_ioctl(file.as_fd(), GROUP_CREATE, &mut GroupArguments { create: 0, group: *group });
        }
    }
}

/// Searches the quota tree for items of one kind; returns their offsets and contents.
fn search_quota_tree(file: BorrowedFd<'_>, kind: u32, first: u64, last: u64) -> io::Result<Vec<(u64, Vec<u8>)>> {
    let mut arguments = SearchArguments {
        tree: QUOTA_TREE,
        objects: [0, 0],
        offsets: [first, last],
        transactions: [0, u64::MAX],
        kinds: [kind, kind],
        items: 32,
        unused: 0,
        more_unused: [0; 4],
        room: SEARCH_BUFFER_BYTES as u64,
        found: [0; SEARCH_BUFFER_BYTES],
    };
    run_ioctl(file, TREE_SEARCH, &mut arguments)?;
    Ok(parse_search_items(&arguments.found, arguments.items))
}

/// Parses the result of a tree search: each item has a header of 32 bytes (offset at 16, length at 28), then its
/// content.
fn parse_search_items(mut found: &[u8], count: u32) -> Vec<(u64, Vec<u8>)> {
    let mut items = Vec::new();
    for _ in 0..count {
        let Some((head, rest)) = found.split_at_checked(32) else { break };
        let (Some(offset), Some(length)) = (head.get(16..24), head.get(28..32)) else { break };
        let length = length.try_into().map(u32::from_ne_bytes).unwrap_or(0) as usize;
        let Some((item, rest)) = rest.split_at_checked(length) else { break };
        items.push((offset.try_into().map(u64::from_ne_bytes).unwrap_or(0), item.to_vec()));
        found = rest;
    }
    items
}

/// Reads a little-endian number of an on-disk item.
fn read_u64_field(item: &[u8], index: usize) -> Option<u64> {
    Some(u64::from_le_bytes(item.get(index * 8..index * 8 + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ioctl number contains the size of its structure.
    fn size_in(request: libc::Ioctl) -> usize {
        (u64::from(request as u32) >> 16 & 0x3fff) as usize
    }

    #[test]
    fn ioctl_structures_have_the_kernels_size() {
        for request in [SNAPSHOT_CREATE, SUBVOLUME_CREATE, SNAPSHOT_DESTROY] {
            assert_eq!(size_in(request), size_of::<VolumeArguments>());
        }
        assert_eq!(size_in(RESIZE), size_of::<ResizeArguments>());
        assert_eq!(size_in(QUOTA_CONTROL), size_of::<QuotaArguments>());
        assert_eq!(size_in(GROUP_LIMIT), size_of::<LimitArguments>());
        assert_eq!(size_in(GROUP_CREATE), size_of::<GroupArguments>());
        assert_eq!(size_in(INODE_LOOKUP), size_of::<LookupArguments>());
        // The search buffer follows the part with a fixed size.
        assert_eq!(size_in(TREE_SEARCH) + SEARCH_BUFFER_BYTES, size_of::<SearchArguments>());
    }

    #[test]
    fn parses_search_items_and_stops_at_garbage() {
        let item = |offset: u64, numbers: &[u64]| {
            let mut bytes = vec![0; 32];
            bytes[16..24].copy_from_slice(&offset.to_ne_bytes());
            bytes[28..32].copy_from_slice(&u32::try_from(numbers.len() * 8).unwrap().to_ne_bytes());
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            bytes
        };
        let both = [item(7, &[1, 2, 3]), item(9, &[4])].concat();
        let found = parse_search_items(&both, 2);
        assert_eq!(found.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [7, 9]);
        assert_eq!((read_u64_field(&found[0].1, 1), read_u64_field(&found[0].1, 3)), (Some(2), None));
        assert_eq!(parse_search_items(&both, 1).len(), 1);
        assert_eq!(parse_search_items(&both[..40], 2).len(), 0, "truncated");
        assert_eq!(parse_search_items(&both, 9).len(), 2, "fewer items than announced");
    }

    #[test]
    fn rejects_names_that_are_too_long() {
        assert!(volume_arguments(&CString::new("a".repeat(255)).unwrap()).is_ok());
        assert!(volume_arguments(&CString::new("a".repeat(256)).unwrap()).is_err());
    }
}
