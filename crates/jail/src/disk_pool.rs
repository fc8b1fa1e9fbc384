//! The disk pool: a btrfs file system in one file, for hosts whose file system has no quotas.
//!
//! The sparse file is created once. It is mounted while a launcher runs. Running sandboxes keep their mounts of it
//! after the launcher unmounts it; the next launcher finds it by its loop device.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};

use crate::btrfs;
use crate::error::{Errno, Error};
use crate::loop_devices::LoopDevice;
use crate::service::create_private_dir;

/// btrfs needs at least this much.
pub(crate) const MIN_POOL_BYTES: u64 = 256 << 20;
const MOUNT_ATTEMPTS: u32 = 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiskPool {
    /// The mount point.
    pub directory: PathBuf,
    /// The size of the pool.
    pub bytes: u64,
}

fn unsupported(reason: impl Into<String>, remedy: &str) -> Error {
    Error::Unsupported { reason: reason.into(), remedy: Some(remedy.to_owned()) }
}

impl DiskPool {
    /// Mounts the pool of a data directory and creates it if needed.
    ///
    /// Without a size it is only mounted if it exists: removing the setting must not lose the files.
    pub fn open(data: &Path, bytes: Option<u64>) -> Result<Option<Self>, Error> {
        let (file, directory) = (data.join("pool.btrfs"), data.join("pool"));
        if fs::symlink_metadata(&file).is_err() {
            let Some(bytes) = bytes else { return Ok(None) };
            check_can_create(data, bytes)?;
            create_pool_file(&file, bytes)?;
        }
        create_private_dir(&directory)?;
        check_ownership(&file, &directory)?;
        let failed = |error: io::Error| Error::file("mount the pool", &file, error);
        let device = match mounted_device(&directory)? {
            Some(device) => device,
            None => mount_pool(&file, &directory).map_err(failed)?,
        };
        let found = LoopDevice::find_attached(&file).map_err(failed)?.filter(|found| found.path == device);
        let Some(found) = found else {
            let reason = format!("something else is mounted at {}", directory.display());
            return Err(unsupported(reason, "Unmount it, and start the server again."));
        };
        let mut size = fs::metadata(&file).map_err(failed)?.len();
        if let Some(requested) = bytes.filter(|requested| *requested > size) {
            let grown = OpenOptions::new().write(true).open(&file).and_then(|file| file.set_len(requested));
            let grown = grown.and_then(|()| found.update_capacity()).and_then(|()| btrfs::grow_to_device(&directory));
            grown.map_err(|error| Error::file("grow the pool", &file, error))?;
            size = requested;
        }
        if btrfs::quota_mode(&directory).is_none() {
            btrfs::enable_quotas(&directory).map_err(|error| Error::file("enable quotas in", &directory, error))?;
        }
        Ok(Some(Self { directory, bytes: size }))
    }

    /// Unmounts the pool. Running sandboxes keep their mounts; with the last of them the loop device detaches.
    pub fn unmount(&self) {
        // If this fails, the next launcher finds it mounted.
        let _ = rustix::mount::unmount(&self.directory, UnmountFlags::DETACH);
    }
}

/// Checks that this user created the pool's file and mount point: another user's file could contain a crafted file
/// system.
fn check_ownership(file: &Path, directory: &Path) -> Result<(), Error> {
    let own = rustix::process::geteuid().as_raw();
    let look = |path: &Path| fs::symlink_metadata(path).map_err(|error| Error::file("look at", path, error));
    let (of_file, of_directory) = (look(file)?, look(directory)?);
    let is_right = [
        (file, of_file.is_file() && of_file.nlink() == 1 && of_file.uid() == own),
        (directory, of_directory.is_dir() && of_directory.uid() == own),
    ];
    match is_right.iter().find(|(_, right)| !right) {
        None => Ok(()),
        Some((path, _)) => Err(unsupported(
            format!("{} was not created by the launcher", path.display()),
            "Find out where it comes from, and move it away.",
        )),
    }
}

fn check_can_create(data: &Path, bytes: u64) -> Result<(), Error> {
    if !rustix::process::geteuid().is_root() {
        return Err(unsupported(
            "local.disk_pool_gb is set, but only root can mount a pool",
            "Run the server as root, or remove that setting.",
        ));
    }
    if bytes < MIN_POOL_BYTES {
        return Err(unsupported("local.disk_pool_gb is less than 0.25", "Set a larger size: all sandboxes share it."));
    }
    let layers = data.join("layers");
    if fs::read_dir(&layers).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(unsupported(
            format!("local.disk_pool_gb is set, but {} has files of sandboxes, snapshots or images", layers.display()),
            "Remove the setting, destroy or delete them, and set it again; or use another data directory.",
        ));
    }
    Ok(())
}

/// Creates the pool's file atomically.
fn create_pool_file(file: &Path, bytes: u64) -> Result<(), Error> {
    let Some(program) = find_mkfs() else {
        return Err(unsupported(
            "cannot create the pool of local.disk_pool_gb: mkfs.btrfs is missing",
            "Install the package btrfs-progs.",
        ));
    };
    let draft = file.with_extension("new");
    let failed = |error: io::Error| Error::file("create the pool", file, error);
    // Never write to an existing draft: it may be a link.
    let _ = fs::remove_file(&draft);
    let created = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&draft);
    created.and_then(|draft| draft.set_len(bytes)).map_err(failed)?;
    // One copy of the metadata: both copies would be on the same disk.
    let output = Command::new(program)
        .args(["--quiet", "--force", "--metadata", "single", "--data", "single", "--label", "atoll"])
        .arg(&draft)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(failed)?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let message =
            message.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no error message").to_owned();
        let _ = fs::remove_file(&draft);
        return Err(unsupported(format!("mkfs.btrfs failed: {message}"), "Fix that, and start the server again."));
    }
    fs::rename(&draft, file).map_err(failed)
}

fn find_mkfs() -> Option<PathBuf> {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/local/bin"]
        .iter()
        .map(|directory| Path::new(directory).join("mkfs.btrfs"))
        .find(|path| path.exists())
}

/// Mounts the pool by its attached loop device, else by a new one.
fn mount_pool(file: &Path, directory: &Path) -> io::Result<PathBuf> {
    let mut last = Errno(libc::EIO);
    for _ in 0..MOUNT_ATTEMPTS {
        let device = match LoopDevice::find_attached(file)? {
            Some(device) => device,
            None => LoopDevice::attach_file(file)?,
        };
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
        match rustix::mount::mount(&device.path, directory, c"btrfs", flags, c"discard=async") {
            Ok(()) => return Ok(device.path),
            // The device detached with its last user just now.
            Err(error @ (rustix::io::Errno::NXIO | rustix::io::Errno::BUSY | rustix::io::Errno::IO)) => {
                last = error.into();
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::from_raw_os_error(last.0))
}

/// Finds the device that is mounted at a directory.
fn mounted_device(directory: &Path) -> Result<Option<PathBuf>, Error> {
    let directory = fs::canonicalize(directory).map_err(|error| Error::file("resolve", directory, error))?;
    let list = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| Error::file("read", Path::new("/proc/self/mountinfo"), error))?;
    Ok(mount_source(&list, &directory))
}

/// Finds the source of the last mount at a directory in mountinfo.
fn mount_source(list: &str, directory: &Path) -> Option<PathBuf> {
    let line = list
        .lines()
        .rev()
        .find(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(&unescape_mountinfo(point)) == directory))?;
    Some(PathBuf::from(unescape_mountinfo(line.split_once(" - ")?.1.split(' ').nth(1)?)))
}

/// Decodes the octal escapes of mountinfo.
fn unescape_mountinfo(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_mount_by_its_directory() {
        let list = "\
21 1 254:0 / / rw - ext4 /dev/vda rw\n\
40 21 0:41 / /srv/my\\040data/pool rw,nosuid - btrfs /dev/loop3 rw,discard=async\n\
41 21 0:42 /a /srv/pool rw shared:7 - btrfs /dev/loop4 rw\n";
        assert_eq!(mount_source(list, Path::new("/srv/my data/pool")), Some("/dev/loop3".into()));
        assert_eq!(mount_source(list, Path::new("/srv/pool")), Some("/dev/loop4".into()));
        assert_eq!(mount_source(list, Path::new("/srv")), None);
    }

    #[test]
    fn mounts_only_a_pool_that_this_user_created() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let base = tempfile::tempdir_in("/var/tmp").unwrap();
        let (file, directory, elsewhere) =
            (base.path().join("pool.btrfs"), base.path().join("pool"), base.path().join("elsewhere"));
        let refuses = |what: &Path| {
            let message = DiskPool::open(base.path(), None).unwrap_err().to_string();
            assert!(message.contains(&format!("{} was not created by the launcher", what.display())), "{message}");
        };
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("image"), "").unwrap();
        std::os::unix::fs::symlink(elsewhere.join("image"), &file).unwrap();
        refuses(&file);
        fs::remove_file(&file).unwrap();
        fs::hard_link(elsewhere.join("image"), &file).unwrap();
        refuses(&file);
        fs::remove_file(&file).unwrap();
        fs::write(&file, "").unwrap();
        std::os::unix::fs::chown(&file, Some(54_321), None).unwrap();
        refuses(&file);
        std::os::unix::fs::chown(&file, Some(0), None).unwrap();
        fs::remove_dir(&directory).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &directory).unwrap();
        refuses(&directory);
        fs::remove_file(&directory).unwrap();
        fs::create_dir(&directory).unwrap();
        std::os::unix::fs::chown(&directory, Some(54_321), None).unwrap();
        refuses(&directory);
    }

    #[test]
    fn creates_no_pool_without_a_valid_size() {
        let base = tempfile::tempdir_in("/var/tmp").unwrap();
        assert_eq!(DiskPool::open(base.path(), None), Ok(None));
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
        if rustix::process::geteuid().is_root() {
            assert!(DiskPool::open(base.path(), Some(MIN_POOL_BYTES - 1)).is_err());
            fs::create_dir_all(base.path().join("layers/a")).unwrap();
            let message = DiskPool::open(base.path(), Some(MIN_POOL_BYTES)).unwrap_err().to_string();
            assert!(message.contains("destroy or delete them"), "{message}");
            assert!(!base.path().join("pool.btrfs").exists());
        }
    }
}
