//! Paths inside the workspace: bytes, relative to its root, parts separated by `/`; the root itself is empty.
//!
//! Plain bytes and not `Path`, because maps of them are kept in order: everything under a directory is one range.

use std::ffi::OsStr;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub type Relative = Box<[u8]>;

pub fn join(directory: &[u8], name: &[u8]) -> Relative {
    if directory.is_empty() { name.into() } else { [directory, b"/", name].concat().into() }
}

pub fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |slash| &path[..slash])
}

pub fn name(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(path, |slash| &path[slash + 1..])
}

/// The directories above a path, the outermost first, without the root.
pub fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(slash, _)| &path[..slash])
}

pub fn absolute(root: &Path, path: &[u8]) -> PathBuf {
    if path.is_empty() { root.to_path_buf() } else { root.join(OsStr::from_bytes(path)) }
}

/// A path for people and JSON: bytes that are not UTF-8 become `\xNN`.
pub fn shown(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// All that is under a directory, as a range of keys.
pub struct Under {
    bounds: Option<(Vec<u8>, Vec<u8>)>,
}

impl Under {
    pub fn new(directory: &[u8]) -> Self {
        // `0` is the byte after `/`.
        let bounds = (!directory.is_empty()).then(|| ([directory, b"/"].concat(), [directory, b"0"].concat()));
        Self { bounds }
    }

    pub fn range(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        match &self.bounds {
            Some((low, high)) => (Bound::Included(low), Bound::Excluded(high)),
            None => (Bound::Unbounded, Bound::Unbounded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn parts() {
        assert_eq!(parent(b"a/b/c"), b"a/b");
        assert_eq!(parent(b"a"), b"");
        assert_eq!(name(b"a/b"), b"b");
        assert_eq!(name(b"a"), b"a");
        assert_eq!(above(b"a/b/c").collect::<Vec<_>>(), [b"a".as_slice(), b"a/b"]);
        assert_eq!(&*join(b"", b"x"), b"x");
        assert_eq!(&*join(b"d", b"x"), b"d/x");
    }

    #[test]
    fn a_directory_is_a_range() {
        let all: BTreeSet<Relative> =
            ["a", "a-b", "a/b", "a/c/d", "a0", "b"].iter().map(|path| path.as_bytes().into()).collect();
        let under = Under::new(b"a");
        let found: Vec<_> = all.range::<[u8], _>(under.range()).map(|path| shown(path)).collect();
        assert_eq!(found, ["a/b", "a/c/d"]);
        assert_eq!(all.range::<[u8], _>(Under::new(b"").range()).count(), 6);
    }

    #[test]
    fn names_that_are_not_utf8() {
        assert_eq!(shown(b"caf\xe9/\xff\xfe.txt"), "caf\\xe9/\\xff\\xfe.txt");
        assert_eq!(shown("café".as_bytes()), "café");
    }
}
