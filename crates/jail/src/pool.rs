//! A file system of our own in one file, for machines whose own can't bound what a sandbox takes.
//!
//! The file is made once and grows as it is filled. While a launcher works it is mounted beside it; sandboxes hold on to
//! what they show of it, so it can be taken down under them and is found again by the device that stands for it.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};

use crate::btrfs;
use crate::error::{Errno, Error};
use crate::loops::Device;
use crate::service::private_directory;

/// Less is no room for the file system's own.
pub(crate) const LEAST: u64 = 256 << 20;
const TRIES: u32 = 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pool {
    /// Where it is mounted.
    pub directory: PathBuf,
    /// How large it is.
    pub bytes: u64,
}

fn refused(reason: impl Into<String>, remedy: &str) -> Error {
    Error::Impossible { reason: reason.into(), remedy: Some(remedy.to_owned()) }
}

impl Pool {
    /// Makes the pool of a data directory, or finds it, and mounts it. Without a size there is one only if it was made
    /// before: what lies in it isn't lost because a line of the configuration is.
    pub fn open(data: &Path, bytes: Option<u64>) -> Result<Option<Self>, Error> {
        let (file, directory) = (data.join("pool.btrfs"), data.join("pool"));
        if fs::symlink_metadata(&file).is_err() {
            let Some(bytes) = bytes else { return Ok(None) };
            may_make(data, bytes)?;
            make(&file, bytes)?;
        }
        private_directory(&directory)?;
        must_be_own(&file, &directory)?;
        let failed = |error: io::Error| Error::file("mount the pool", &file, error);
        let device = match mounted(&directory)? {
            Some(device) => device,
            None => mount(&file, &directory).map_err(failed)?,
        };
        let found = Device::find(&file).map_err(failed)?.filter(|found| found.path == device);
        let Some(found) = found else {
            let reason = format!("something else is mounted at {}", directory.display());
            return Err(refused(reason, "Unmount it, and start the server again."));
        };
        let mut size = fs::metadata(&file).map_err(failed)?.len();
        if let Some(wanted) = bytes.filter(|wanted| *wanted > size) {
            let grown = OpenOptions::new().write(true).open(&file).and_then(|file| file.set_len(wanted));
            let grown = grown.and_then(|()| found.grow()).and_then(|()| btrfs::grow(&directory));
            grown.map_err(|error| Error::file("enlarge the pool", &file, error))?;
            size = wanted;
        }
        if btrfs::quota(&directory).is_none() {
            btrfs::count(&directory).map_err(|error| Error::file("count what is taken in", &directory, error))?;
        }
        Ok(Some(Self { directory, bytes: size }))
    }

    /// Takes it down. Sandboxes that live keep what they have of it; with the last of them its device goes too.
    pub fn close(&self) {
        // The next launcher finds it mounted otherwise.
        let _ = rustix::mount::unmount(&self.directory, UnmountFlags::DETACH);
    }
}

/// A file system is mounted only out of a file, and only over a directory, that this user has made: others may have been
/// able to write beside it, and what is in a file of theirs would be whatever they like.
fn must_be_own(file: &Path, directory: &Path) -> Result<(), Error> {
    let own = rustix::process::geteuid().as_raw();
    let look = |path: &Path| fs::symlink_metadata(path).map_err(|error| Error::file("look at", path, error));
    let (of_file, of_directory) = (look(file)?, look(directory)?);
    let is_right = [
        (file, of_file.is_file() && of_file.nlink() == 1 && of_file.uid() == own),
        (directory, of_directory.is_dir() && of_directory.uid() == own),
    ];
    match is_right.iter().find(|(_, right)| !right) {
        None => Ok(()),
        Some((path, _)) => Err(refused(
            format!("{} was not made by the launcher", path.display()),
            "Look where it comes from, and move it away.",
        )),
    }
}

fn may_make(data: &Path, bytes: u64) -> Result<(), Error> {
    if !rustix::process::geteuid().is_root() {
        return Err(refused(
            "local.disk_pool_gb is set, and only root can mount a pool",
            "Run the server as root, or take that line out of the configuration.",
        ));
    }
    if bytes < LEAST {
        return Err(refused("local.disk_pool_gb is less than 0.25", "Name a larger size: all sandboxes share it."));
    }
    let layers = data.join("layers");
    if fs::read_dir(&layers).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(refused(
            format!("local.disk_pool_gb is set, and {} has files of sandboxes, snapshots or images", layers.display()),
            "Take that line out, destroy and forget them, and set it again; or name another data directory.",
        ));
    }
    Ok(())
}

/// Whole or not at all.
fn make(file: &Path, bytes: u64) -> Result<(), Error> {
    let Some(program) = program() else {
        return Err(refused(
            "the pool of local.disk_pool_gb can't be made: there is no mkfs.btrfs",
            "Install the package btrfs-progs.",
        ));
    };
    let draft = file.with_extension("new");
    let failed = |error: io::Error| Error::file("make the pool", file, error);
    // One that was left, or that somebody put there, is never written to: it might lead elsewhere.
    let _ = fs::remove_file(&draft);
    let made = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&draft);
    made.and_then(|draft| draft.set_len(bytes)).map_err(failed)?;
    // One copy of what it keeps of its own: the disk below it is the same.
    let output = Command::new(program)
        .args(["--quiet", "--force", "--metadata", "single", "--data", "single", "--label", "atoll"])
        .arg(&draft)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").to_owned();
        let _ = fs::remove_file(&draft);
        return Err(refused(format!("mkfs.btrfs failed: {said}"), "Mend that, and start the server again."));
    }
    fs::rename(&draft, file).map_err(failed)
}

fn program() -> Option<PathBuf> {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/local/bin"]
        .iter()
        .map(|directory| Path::new(directory).join("mkfs.btrfs"))
        .find(|path| path.exists())
}

/// Mounts it by the device that stands for it already, else by a new one.
fn mount(file: &Path, directory: &Path) -> io::Result<PathBuf> {
    let mut last = Errno(libc::EIO);
    for _ in 0..TRIES {
        let device = match Device::find(file)? {
            Some(device) => device,
            None => Device::attach(file)?,
        };
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
        match rustix::mount::mount(&device.path, directory, c"btrfs", flags, c"discard=async") {
            Ok(()) => return Ok(device.path),
            // The last one who used the device has just gone, and the device with it.
            Err(error @ (rustix::io::Errno::NXIO | rustix::io::Errno::BUSY | rustix::io::Errno::IO)) => {
                last = error.into();
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::from_raw_os_error(last.0))
}

/// What is mounted at a directory, if something is.
fn mounted(directory: &Path) -> Result<Option<PathBuf>, Error> {
    let directory = fs::canonicalize(directory).map_err(|error| Error::file("find", directory, error))?;
    let list = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| Error::file("read", Path::new("/proc/self/mountinfo"), error))?;
    Ok(source(&list, &directory))
}

/// The source of the last mount at a directory, by the kernel's list.
fn source(list: &str, directory: &Path) -> Option<PathBuf> {
    let line = list
        .lines()
        .rev()
        .find(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(&plain(point)) == directory))?;
    Some(PathBuf::from(plain(line.split_once(" - ")?.1.split(' ').nth(1)?)))
}

/// The kernel writes spaces and the like as three octal digits.
fn plain(text: &str) -> String {
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
    fn a_mount_is_found_by_its_directory() {
        let list = "\
21 1 254:0 / / rw - ext4 /dev/vda rw\n\
40 21 0:41 / /srv/my\\040data/pool rw,nosuid - btrfs /dev/loop3 rw,discard=async\n\
41 21 0:42 /a /srv/pool rw shared:7 - btrfs /dev/loop4 rw\n";
        assert_eq!(source(list, Path::new("/srv/my data/pool")), Some("/dev/loop3".into()));
        assert_eq!(source(list, Path::new("/srv/pool")), Some("/dev/loop4".into()));
        assert_eq!(source(list, Path::new("/srv")), None);
    }

    #[test]
    fn only_what_is_ones_own_is_mounted() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let base = tempfile::tempdir_in("/var/tmp").unwrap();
        let (file, directory, elsewhere) =
            (base.path().join("pool.btrfs"), base.path().join("pool"), base.path().join("elsewhere"));
        let refuses = |what: &Path| {
            let said = Pool::open(base.path(), None).unwrap_err().to_string();
            assert!(said.contains(&format!("{} was not made by the launcher", what.display())), "{said}");
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
    fn nothing_is_made_that_was_not_asked_for() {
        let base = tempfile::tempdir_in("/var/tmp").unwrap();
        assert_eq!(Pool::open(base.path(), None), Ok(None));
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
        if rustix::process::geteuid().is_root() {
            assert!(Pool::open(base.path(), Some(LEAST - 1)).is_err());
            fs::create_dir_all(base.path().join("layers/a")).unwrap();
            let said = Pool::open(base.path(), Some(LEAST)).unwrap_err().to_string();
            assert!(said.contains("destroy and forget them"), "{said}");
            assert!(!base.path().join("pool.btrfs").exists());
        }
    }
}
