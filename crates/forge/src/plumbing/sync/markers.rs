//! Empty directories in trees: git has none, so a tree contains a marker file in each.

/// The name of the marker file. It exists only in trees, never in a directory.
pub const EMPTY_DIRECTORY_MARKER: &[u8] = b".atoll-empty-directory";

/// True if a path of a tree is a marker.
pub fn is_marker(path: &[u8]) -> bool {
    marked_directory(path).is_some()
}

/// The empty directory that a marker stands for.
pub fn marked_directory(path: &[u8]) -> Option<&[u8]> {
    path.strip_suffix(EMPTY_DIRECTORY_MARKER)?.strip_suffix(b"/").filter(|directory| !directory.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_names_its_directory() {
        assert_eq!(marked_directory(b"a/b/.atoll-empty-directory"), Some(b"a/b".as_slice()));
        assert_eq!(marked_directory(b".atoll-empty-directory"), None);
        assert_eq!(marked_directory(b"a/x.atoll-empty-directory"), None);
        assert!(!is_marker(b"a/b"));
    }
}
