//! The sessions of an agent that the configuration names: one directory below the home, packed as a whole.

use atoll_core::bounds::MAX_BLOB_BYTES;
use atoll_trees::{SymlinkPolicy, pack_tree, unpack_tree};
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path};

const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Packs the directory. A missing directory packs as nothing.
pub(super) fn print_directory(home: &Path, directory: &str, out: impl Write) -> Result<(), String> {
    let failed = |error: Errno| format!("failed to read ~/{directory}: {error}");
    let mut opened = open(home, DIRECTORY_FLAGS, Mode::empty()).map_err(failed)?;
    for part in path_parts(directory)? {
        opened = match openat(&opened, part, DIRECTORY_FLAGS | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(next) => next,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
    }
    let bounded = BoundedWriter { out, left: MAX_BLOB_BYTES };
    let packed = pack_tree(&opened, bounded, |_, _| {}, |_| {});
    packed.map(drop).map_err(|error| format!("failed to pack ~/{directory}: {error}"))
}

/// Replaces the directory by a packed one.
pub(super) fn replace_directory(home: &Path, directory: &str, input: impl BufRead) -> Result<(), String> {
    path_parts(directory)?;
    let path = home.join(directory);
    let failed = |error: io::Error| format!("failed to write ~/{directory}: {error}");
    match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed)?;
    let root: OwnedFd = open(&path, DIRECTORY_FLAGS, Mode::empty()).map_err(|error| failed(error.into()))?;
    let input = io::BufReader::new(input.take(MAX_BLOB_BYTES as u64));
    let unpacked = unpack_tree(input, root, SymlinkPolicy::Inside, |_| {});
    unpacked.map(drop).map_err(|error| format!("failed to unpack ~/{directory}: {error}"))
}

fn path_parts(directory: &str) -> Result<Vec<&Path>, String> {
    let parts = Path::new(directory).components().map(|part| match part {
        Component::Normal(name) => Ok(Path::new(name)),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
            Err(format!("`{directory}` is not a path below the home"))
        }
    });
    let parts: Vec<&Path> = parts.collect::<Result<_, _>>()?;
    if parts.is_empty() { Err("the session directory has no name".to_owned()) } else { Ok(parts) }
}

/// Fails when the transcript is larger than a blob.
struct BoundedWriter<W> {
    out: W,
    left: usize,
}

impl<W: Write> Write for BoundedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            return Err(io::Error::other(format!("the sessions exceed {MAX_BLOB_BYTES} bytes")));
        }
        let written = self.out.write(bytes)?;
        self.left -= written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_moves_to_another_home() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir_all(from.path().join(".agent/sessions/one")).unwrap();
        fs::write(from.path().join(".agent/sessions/one/log"), "hello").unwrap();
        fs::write(from.path().join(".agent/key"), "not a session").unwrap();
        let mut packed = Vec::new();
        print_directory(from.path(), ".agent/sessions", &mut packed).unwrap();
        fs::create_dir_all(to.path().join(".agent/sessions")).unwrap();
        fs::write(to.path().join(".agent/sessions/old"), "").unwrap();
        replace_directory(to.path(), ".agent/sessions", packed.as_slice()).unwrap();
        assert_eq!(fs::read_to_string(to.path().join(".agent/sessions/one/log")).unwrap(), "hello");
        assert!(!to.path().join(".agent/key").exists() && !to.path().join(".agent/sessions/old").exists());
    }

    #[test]
    fn links_and_other_paths_are_refused() {
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", home.path().join("link")).unwrap();
        assert!(print_directory(home.path(), "link", Vec::new()).is_err());
        for bad in ["", "/etc", "../x", "a/../../x", "."] {
            assert!(print_directory(home.path(), bad, Vec::new()).is_err(), "{bad}");
            assert!(replace_directory(home.path(), bad, io::empty()).is_err(), "{bad}");
        }
        let mut packed = Vec::new();
        print_directory(home.path(), "missing", &mut packed).unwrap();
        assert!(packed.is_empty());
    }
}
