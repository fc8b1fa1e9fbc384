//! Files as block devices.

#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const GET_FREE: libc::Ioctl = 0x4c82;
const CONFIGURE: libc::Ioctl = 0x4c0a;
const GET_STATUS: libc::Ioctl = 0x4c05;
const SET_CAPACITY: libc::Ioctl = 0x4c07;
/// Whoever uses it last lets go of the file.
const CLEARS_ITSELF: u32 = 4;

#[repr(C)]
#[derive(Clone, Copy)]
struct Information {
    device: u64,
    inode: u64,
    own_device: u64,
    offset: u64,
    size: u64,
    number: u32,
    unused: [u32; 2],
    flags: u32,
    names: [[u8; 64]; 2],
    key: [u8; 32],
    more_unused: [u64; 2],
}

#[repr(C)]
struct Configuration {
    file: u32,
    block: u32,
    information: Information,
    reserved: [u64; 8],
}

const NOTHING: Information = Information {
    device: 0,
    inode: 0,
    own_device: 0,
    offset: 0,
    size: 0,
    number: 0,
    unused: [0; 2],
    flags: 0,
    names: [[0; 64]; 2],
    key: [0; 32],
    more_unused: [0; 2],
};

/// Asks for one thing of a device. `T` is the structure that this request takes.
fn ask<T>(device: BorrowedFd<'_>, request: libc::Ioctl, arguments: &mut T) -> io::Result<i32> {
    // SAFETY: each caller in this module names the request that `T` belongs to, or one that takes none; it is valid for
    // reading and writing through the call.
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), request, std::ptr::from_mut(arguments)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// A device that stands for a file, held: without anybody who uses it, it would be none again.
pub(crate) struct Device {
    pub path: PathBuf,
    hold: File,
}

impl Device {
    /// The one that stands for a file already: there must never be two.
    pub fn find(file: &Path) -> io::Result<Option<Self>> {
        let file = fs::metadata(file)?;
        for entry in fs::read_dir("/sys/block")?.flatten() {
            // Only those that stand for something have it.
            if !entry.path().join("loop").exists() {
                continue;
            }
            let path = Path::new("/dev").join(entry.file_name());
            let Ok(hold) = open(&path) else { continue };
            let mut information = NOTHING;
            let known = ask(hold.as_fd(), GET_STATUS, &mut information).is_ok();
            if known && information.inode == file.ino() && information.device == file.dev() {
                return Ok(Some(Self { path, hold }));
            }
        }
        Ok(None)
    }

    pub fn attach(file: &Path) -> io::Result<Self> {
        let file = open(file)?;
        let control = open(Path::new("/dev/loop-control"))?;
        for _ in 0..64 {
            let number = ask(control.as_fd(), GET_FREE, &mut 0_u64)?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let hold = open(&path)?;
            let mut configuration = Configuration {
                file: u32::try_from(file.as_raw_fd()).unwrap_or(u32::MAX),
                block: 0,
                information: Information { flags: CLEARS_ITSELF, ..NOTHING },
                reserved: [0; 8],
            };
            match ask(hold.as_fd(), CONFIGURE, &mut configuration) {
                Ok(_) => return Ok(Self { path, hold }),
                // Somebody else was faster.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Takes note that its file has grown.
    pub fn grow(&self) -> io::Result<()> {
        ask(self.hold.as_fd(), SET_CAPACITY, &mut 0_u64).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernel_expects() {
        assert_eq!(size_of::<Information>(), 232);
        assert_eq!(size_of::<Configuration>(), 304);
    }
}
