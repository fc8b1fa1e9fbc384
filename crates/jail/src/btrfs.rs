//! Volumes of btrfs and their bounds, asked of the kernel itself: no program of btrfs is needed for it.
//!
//! A volume is a directory with a tree of its own, which can be copied in one step however large it is. The kernel counts
//! what each takes and refuses what goes over its bound.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The number that every volume's own directory has.
const ROOT: u64 = 256;
const MAGIC: i128 = 0x9123_683e;

/// How the kernel counts what a volume takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quota {
    /// By who wrote it first: a copy begins with nothing.
    Simple,
    /// By all that it refers to: a copy begins with what its original has.
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
const STATUS: u32 = 240;
const INFORMATION: u32 = 242;
const IS_ON: u64 = 1;
const IS_SIMPLE: u64 = 8;
const BY_REFERENCE: u64 = 1;

const NAME: usize = 4040;

#[repr(C)]
struct VolumeArguments {
    descriptor: i64,
    transaction: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; NAME],
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
    most_referred: u64,
    most_exclusive: u64,
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

/// Room for many answers.
const ROOM: usize = 4096;

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
    found: [u8; ROOM],
}

/// Asks for one thing of an open file. `T` is the structure that this request takes.
fn ask<T>(file: BorrowedFd<'_>, request: libc::Ioctl, arguments: &mut T) -> io::Result<()> {
    // SAFETY: each caller in this module names the request that `T` belongs to; it is valid for reading and writing
    // through the call, and its size is what the request's number says (see the tests).
    let failed = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(arguments)) };
    if failed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn volume_arguments(name: &CStr) -> io::Result<VolumeArguments> {
    let mut arguments = VolumeArguments { descriptor: 0, transaction: 0, flags: 0, unused: [0; 4], name: [0; NAME] };
    let bytes = name.to_bytes();
    match arguments.name.get_mut(..bytes.len()) {
        Some(place) if bytes.len() < 256 => place.copy_from_slice(bytes),
        Some(_) | None => return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG)),
    }
    Ok(arguments)
}

/// The directory that holds a path, and the path's last name.
fn split(path: &Path) -> io::Result<(File, CString)> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(invalid)?;
    Ok((File::open(parent)?, CString::new(name.as_bytes()).map_err(|_| invalid())?))
}

pub(crate) fn is_here(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| i128::from(found.f_type) == MAGIC)
}

pub(crate) fn is_volume(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.ino() == ROOT) && is_here(path)
}

pub(crate) fn create(path: &Path) -> io::Result<()> {
    let (parent, name) = split(path)?;
    ask(parent.as_fd(), SUBVOLUME_CREATE, &mut volume_arguments(&name)?)
}

/// Another volume with all that `original` has now.
pub(crate) fn copy(original: &Path, path: &Path) -> io::Result<()> {
    let (parent, name) = split(path)?;
    let original = File::open(original)?;
    let mut arguments = volume_arguments(&name)?;
    arguments.descriptor = i64::from(original.as_raw_fd());
    ask(parent.as_fd(), SNAPSHOT_CREATE, &mut arguments)
}

/// Removes a volume with all in it; the kernel gives its room back soon after. On a full file system even that needs
/// room, which what was deleted before gives only with the next commit.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match destroy(path) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
            rustix::fs::syncfs(File::open(path)?)?;
            destroy(path)
        }
        outcome => outcome,
    }
}

fn destroy(path: &Path) -> io::Result<()> {
    let (parent, name) = split(path)?;
    ask(parent.as_fd(), SNAPSHOT_DESTROY, &mut volume_arguments(&name)?)
}

/// Grows a file system to the size of its device.
pub(crate) fn grow(path: &Path) -> io::Result<()> {
    let mut arguments = ResizeArguments { descriptor: 0, name: [0; 4088] };
    arguments.name[..3].copy_from_slice(b"max");
    ask(File::open(path)?.as_fd(), RESIZE, &mut arguments)
}

/// The number of a volume, which is also that of its quota group.
fn group(volume: BorrowedFd<'_>) -> io::Result<u64> {
    let mut arguments = LookupArguments { tree: 0, object: ROOT, name: [0; 4080] };
    ask(volume, INODE_LOOKUP, &mut arguments)?;
    Ok(arguments.tree)
}

/// How the file system at a path counts, if it does.
pub(crate) fn quota(path: &Path) -> Option<Quota> {
    if !is_here(path) {
        return None;
    }
    let status = search(File::open(path).ok()?.as_fd(), STATUS, 0, 0).ok()?.into_iter().next()?.1;
    let flags = number(&status, 2)?;
    if flags & IS_ON == 0 {
        return None;
    }
    Some(if flags & IS_SIMPLE == 0 { Quota::Full } else { Quota::Simple })
}

/// Lets the file system at a path count: the cheap way where the kernel knows it.
pub(crate) fn count(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let enable = |command| ask(file.as_fd(), QUOTA_CONTROL, &mut QuotaArguments { command, status: 0 });
    enable(ENABLE_SIMPLE).or_else(|_| enable(ENABLE))
}

/// From now on a volume takes so much at most.
pub(crate) fn bound(volume: &Path, bytes: u64) -> io::Result<()> {
    let file = File::open(volume)?;
    let mut arguments = LimitArguments {
        group: group(file.as_fd())?,
        flags: BY_REFERENCE,
        most_referred: bytes,
        most_exclusive: 0,
        reserved: [0; 2],
    };
    ask(file.as_fd(), GROUP_LIMIT, &mut arguments)
}

/// What a volume takes, as of the kernel's last commit.
pub(crate) fn taken(volume: &Path) -> io::Result<u64> {
    let file = File::open(volume)?;
    let group = group(file.as_fd())?;
    let found = search(file.as_fd(), INFORMATION, group, group)?;
    let item = found.into_iter().next().ok_or(io::ErrorKind::NotFound)?.1;
    number(&item, 1).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Forgets the counts of volumes that are gone and that take nothing any more.
pub(crate) fn forget_gone(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let mut from = ROOT;
    loop {
        let found = search(file.as_fd(), INFORMATION, from, u64::MAX)?;
        let Some((last, _)) = found.last() else { return Ok(()) };
        from = last.saturating_add(1);
        for (group, _) in found.iter().filter(|(_, item)| number(item, 1) == Some(0)) {
            // The kernel refuses for those that are there.
            let _ = ask(file.as_fd(), GROUP_CREATE, &mut GroupArguments { create: 0, group: *group });
        }
    }
}

/// Items of the tree of quotas, with their offsets.
fn search(file: BorrowedFd<'_>, kind: u32, first: u64, last: u64) -> io::Result<Vec<(u64, Vec<u8>)>> {
    let mut arguments = SearchArguments {
        tree: QUOTA_TREE,
        objects: [0, 0],
        offsets: [first, last],
        transactions: [0, u64::MAX],
        kinds: [kind, kind],
        items: 32,
        unused: 0,
        more_unused: [0; 4],
        room: ROOM as u64,
        found: [0; ROOM],
    };
    ask(file, TREE_SEARCH, &mut arguments)?;
    Ok(items(&arguments.found, arguments.items))
}

/// The answers of a search: each a head of 32 bytes with the offset at 16 and the length at 28, and that many bytes.
fn items(mut found: &[u8], count: u32) -> Vec<(u64, Vec<u8>)> {
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

/// One of the numbers of an item, as they are stored on disk.
fn number(item: &[u8], index: usize) -> Option<u64> {
    Some(u64::from_le_bytes(item.get(index * 8..index * 8 + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of its structure is part of a request's number.
    fn size_in(request: libc::Ioctl) -> usize {
        (u64::from(request as u32) >> 16 & 0x3fff) as usize
    }

    #[test]
    fn structures_are_as_long_as_the_kernel_expects() {
        for request in [SNAPSHOT_CREATE, SUBVOLUME_CREATE, SNAPSHOT_DESTROY] {
            assert_eq!(size_in(request), size_of::<VolumeArguments>());
        }
        assert_eq!(size_in(RESIZE), size_of::<ResizeArguments>());
        assert_eq!(size_in(QUOTA_CONTROL), size_of::<QuotaArguments>());
        assert_eq!(size_in(GROUP_LIMIT), size_of::<LimitArguments>());
        assert_eq!(size_in(GROUP_CREATE), size_of::<GroupArguments>());
        assert_eq!(size_in(INODE_LOOKUP), size_of::<LookupArguments>());
        // Behind the part with a fixed size comes the room for answers.
        assert_eq!(size_in(TREE_SEARCH) + ROOM, size_of::<SearchArguments>());
    }

    #[test]
    fn answers_of_a_search_are_taken_apart_and_nonsense_ends_them() {
        let item = |offset: u64, numbers: &[u64]| {
            let mut bytes = vec![0; 32];
            bytes[16..24].copy_from_slice(&offset.to_ne_bytes());
            bytes[28..32].copy_from_slice(&u32::try_from(numbers.len() * 8).unwrap().to_ne_bytes());
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            bytes
        };
        let both = [item(7, &[1, 2, 3]), item(9, &[4])].concat();
        let found = items(&both, 2);
        assert_eq!(found.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [7, 9]);
        assert_eq!((number(&found[0].1, 1), number(&found[0].1, 3)), (Some(2), None));
        assert_eq!(items(&both, 1).len(), 1);
        assert_eq!(items(&both[..40], 2).len(), 0, "cut off");
        assert_eq!(items(&both, 9).len(), 2, "fewer than said");
    }

    #[test]
    fn a_name_must_fit() {
        assert!(volume_arguments(&CString::new("a".repeat(255)).unwrap()).is_ok());
        assert!(volume_arguments(&CString::new("a".repeat(256)).unwrap()).is_err());
    }
}
