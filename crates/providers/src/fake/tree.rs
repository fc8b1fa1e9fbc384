//! A workspace in memory: paths below `/workspace` and their bytes.

use bytes::Bytes;
use std::collections::BTreeMap;

pub(super) const ROOT: &str = "/workspace";
/// Limit per sandbox, to protect the server's memory.
pub(super) const MAX_BYTES: usize = 64 << 20;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TreeError {
    #[error("`{0}` is not a file below {ROOT}")]
    Outside(String),
    #[error("there is no file `{0}`")]
    NoSuchFile(String),
    #[error("the sandbox's {MAX_BYTES} bytes are used up")]
    Full,
}

/// Cheap to copy: the bytes are shared, so a fork costs its list of names.
#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    files: BTreeMap<String, Bytes>,
    bytes: usize,
}

impl Tree {
    pub(super) fn read(&self, path: &str) -> Result<Bytes, TreeError> {
        let name = relative_path(path)?;
        self.files.get(&name).cloned().ok_or(TreeError::NoSuchFile(name))
    }

    pub(super) fn write(&mut self, path: &str, data: Bytes) -> Result<(), TreeError> {
        let name = relative_path(path)?;
        let other_bytes = self.bytes - self.files.get(&name).map_or(0, Bytes::len);
        if other_bytes + data.len() > MAX_BYTES {
            return Err(TreeError::Full);
        }
        self.bytes = other_bytes + data.len();
        self.files.insert(name, data);
        Ok(())
    }

    /// Iterates over the files below a directory (empty for the root) with their relative paths.
    pub(super) fn files_below<'a>(&'a self, directory: &str) -> impl Iterator<Item = (&'a str, &'a Bytes)> {
        let start = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        self.files.iter().filter_map(move |(name, data)| Some((name.strip_prefix(&start)?, data)))
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Bytes> {
        let removed = self.files.remove(name)?;
        self.bytes -= removed.len();
        Some(removed)
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Normalizes a path relative to the workspace.
pub(super) fn relative_path(path: &str) -> Result<String, TreeError> {
    let outside = || TreeError::Outside(path.to_owned());
    let relative = match path.strip_prefix(ROOT) {
        Some(rest) => rest.strip_prefix('/').ok_or_else(outside)?,
        None if path.starts_with('/') => return Err(outside()),
        None => path,
    };
    let mut parts = Vec::new();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop().ok_or_else(outside)?),
            part => parts.push(part),
        }
    }
    if parts.is_empty() { Err(outside()) } else { Ok(parts.join("/")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalizes_paths_and_rejects_escapes() {
        for path in ["a/b", "/workspace/a/b", "./a//b", "a/c/../b"] {
            assert_eq!(relative_path(path).as_deref(), Ok("a/b"), "{path}");
        }
        for path in ["", "/", "/etc/passwd", "/workspace", "/workspaces/a", "../a", "a/../../b", "/workspace/../a"] {
            assert!(relative_path(path).is_err(), "{path}");
        }
    }

    #[test]
    fn copies_are_independent_and_bounded() {
        let mut tree = Tree::default();
        tree.write("a", Bytes::from_static(b"12345")).unwrap();
        let mut copy = tree.clone();
        copy.write("a", Bytes::from_static(b"1")).unwrap();
        assert_eq!((tree.bytes(), copy.bytes()), (5, 1));
        assert_eq!(tree.read("/workspace/a").unwrap(), "12345");
        assert_eq!(tree.write("b", vec![0; MAX_BYTES].into()), Err(TreeError::Full));
        assert_eq!(tree.read("b"), Err(TreeError::NoSuchFile("b".into())));
    }
}
