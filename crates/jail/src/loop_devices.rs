//! Loop devices.

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
/// The device detaches from its file with its last user.
const AUTOCLEAR_FLAG: u32 = 4;

#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
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
struct LoopConfig {
    file: u32,
    block: u32,
    information: LoopInfo,
    reserved: [u64; 8],
}

const EMPTY_INFO: LoopInfo = LoopInfo {
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

/// Runs an ioctl on a device. `T` is the structure that the request takes.
fn run_ioctl<T>(device: BorrowedFd<'_>, request: libc::Ioctl, arguments: &mut T) -> io::Result<i32> {
    // SAFETY: each caller in this module passes the request that `T` belongs to, or one that takes none; `T` is valid
    // for reading and writing during the call.
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), request, std::ptr::from_mut(arguments)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn open_read_write(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// An attached loop device, held open: it would detach without a user.
pub(crate) struct LoopDevice {
    pub path: PathBuf,
    device_file: File,
}

impl LoopDevice {
    /// Finds the device that is attached to a file: a second one would corrupt it.
    pub fn find_attached(file: &Path) -> io::Result<Option<Self>> {
        let file = fs::metadata(file)?;
        for entry in fs::read_dir("/sys/block")?.flatten() {
            // Only attached devices have this directory.
            if !entry.path().join("loop").exists() {
                continue;
            }
            let path = Path::new("/dev").join(entry.file_name());
            let Ok(device_file) = open_read_write(&path) else { continue };
            let mut information = EMPTY_INFO;
            let known = run_ioctl(device_file.as_fd(), GET_STATUS, &mut information).is_ok();
            if known && information.inode == file.ino() && information.device == file.dev() {
                return Ok(Some(Self { path, device_file }));
            }
        }
        Ok(None)
    }

    pub fn attach_file(file: &Path) -> io::Result<Self> {
        let file = open_read_write(file)?;
        let control = open_read_write(Path::new("/dev/loop-control"))?;
        for _ in 0..64 {
            let number = run_ioctl(control.as_fd(), GET_FREE, &mut 0_u64)?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device_file = open_read_write(&path)?;
            let mut configuration = LoopConfig {
                file: u32::try_from(file.as_raw_fd()).unwrap_or(u32::MAX),
                block: 0,
                information: LoopInfo { flags: AUTOCLEAR_FLAG, ..EMPTY_INFO },
                reserved: [0; 8],
            };
            match run_ioctl(device_file.as_fd(), CONFIGURE, &mut configuration) {
                Ok(_) => return Ok(Self { path, device_file }),
                // Another process was faster.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Updates the device's size after its file has grown.
    pub fn update_capacity(&self) -> io::Result<()> {
        run_ioctl(self.device_file.as_fd(), SET_CAPACITY, &mut 0_u64).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_structures_have_the_kernels_size() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
}
