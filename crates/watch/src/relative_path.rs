//! Paths in the workspace: bytes relative to the root, separated by `/`. The root is empty.
//!
//! Plain bytes instead of `Path`: in a sorted map, everything below a directory is one range.

use std::ffi::OsStr;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub type RelativePath = Box<[u8]>;

pub fn join_path(directory: &[u8], name: &[u8]) -> RelativePath {
    if directory.is_empty() { name.into() } else { [directory, b"/", name].concat().into() }
}

pub fn parent_path(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |slash| &path[..slash])
}

pub fn file_name(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(path, |slash| &path[slash + 1..])
}

/// The directories above a path, outermost first, without the root.
pub fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(slash, _)| &path[..slash])
}

pub fn to_absolute(root: &Path, path: &[u8]) -> PathBuf {
    if path.is_empty() { root.to_path_buf() } else { root.join(OsStr::from_bytes(path)) }
}

/// Converts a path for display and JSON: bytes that are not UTF-8 become `\xNN`.
pub fn to_display(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// The range of keys below a directory.
pub struct PathsUnder {
    bounds: Option<(Vec<u8>, Vec<u8>)>,
}

impl PathsUnder {
    pub fn new(directory: &[u8]) -> Self {
        // `0` is the byte after `/`.
        let bounds = (!directory.is_empty()).then(|| ([directory, b"/"].concat(), [directory, b"0"].concat()));
        Self { bounds }
    }

    pub fn key_range(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
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
        assert_eq!(parent_path(b"a/b/c"), b"a/b");
        assert_eq!(parent_path(b"a"), b"");
        assert_eq!(file_name(b"a/b"), b"b");
        assert_eq!(file_name(b"a"), b"a");
        assert_eq!(ancestors(b"a/b/c").collect::<Vec<_>>(), [b"a".as_slice(), b"a/b"]);
        assert_eq!(&*join_path(b"", b"x"), b"x");
        assert_eq!(&*join_path(b"d", b"x"), b"d/x");
    }

    #[test]
    fn a_directory_is_a_range() {
        let all: BTreeSet<RelativePath> =
            ["a", "a-b", "a/b", "a/c/d", "a0", "b"].iter().map(|path| path.as_bytes().into()).collect();
        let under = PathsUnder::new(b"a");
        let found: Vec<_> = all.range::<[u8], _>(under.key_range()).map(|path| to_display(path)).collect();
        assert_eq!(found, ["a/b", "a/c/d"]);
        assert_eq!(all.range::<[u8], _>(PathsUnder::new(b"").key_range()).count(), 6);
    }

    #[test]
    fn names_that_are_not_utf8() {
        assert_eq!(to_display(b"caf\xe9/\xff\xfe.txt"), "caf\\xe9/\\xff\\xfe.txt");
        assert_eq!(to_display("café".as_bytes()), "café");
    }
}
