//! Paths in a tar, as bytes.

/// The kernel's limits.
const MAX_PATH_BYTES: usize = 4095;
const MAX_NAME_BYTES: usize = 255;

/// Formats a path for display and JSON: bytes that are not UTF-8 become `\xNN`.
pub fn display_path(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Normalizes an entry's path relative to the destination: no empty components, no `.`; the destination itself is empty.
/// Rejects a path that leaves the destination and returns the reason.
pub(crate) fn normalize_path(path: &[u8]) -> Result<Vec<u8>, &'static str> {
    if path.starts_with(b"/") {
        return Err("its path is absolute");
    }
    if path.contains(&0) {
        return Err("its path contains NUL");
    }
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("its path contains `..`"),
            part if part.len() > MAX_NAME_BYTES => return Err("its name is too long"),
            part => parts.push(part),
        }
    }
    let path = parts.join(&b'/');
    if path.len() > MAX_PATH_BYTES { Err("its path is too long") } else { Ok(path) }
}

/// Splits a path into its directory and its name.
pub(crate) fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

pub(crate) fn join_path(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

/// Returns true if a symbolic link at `path` stays inside the destination. The target may ascend to the destination at
/// most, and only before it descends: directories it descends through may be links, for which the same holds.
pub(crate) fn link_stays_inside(path: &[u8], target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return false;
    }
    let mut depth = split_path(path).0.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).count();
    let mut went_down = false;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if went_down || depth == 0 => return false,
            b".." => depth -= 1,
            _ => went_down = true,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn normalizes_paths_below_the_destination() {
        for (input, found) in [("a/b", "a/b"), ("./a//b/", "a/b"), ("./", ""), ("", ""), ("a/./b", "a/b")] {
            assert_eq!(normalize_path(input.as_bytes()).unwrap(), found.as_bytes(), "{input}");
        }
        for bad in ["/a", "//a", "..", "a/../b", "../a", "a/..", "a\0b"] {
            assert!(normalize_path(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(normalize_path(&[b'a'; 256]).is_err());
        assert!(normalize_path(&b"abcdefgh/".repeat(500)).is_err());
    }

    #[test]
    fn rejects_links_that_can_leave_the_destination() {
        for (path, target) in [("a", "b"), ("a/b", "../c"), ("a/b/c", "../../d/e"), ("a", "."), ("a/b", "..")] {
            assert!(link_stays_inside(path.as_bytes(), target.as_bytes()), "{path} -> {target}");
        }
        // `s/s/..` looks safe, but not if `s` is a link to `.`.
        for (path, target) in [("a", "/etc"), ("a", ".."), ("a/b", "../.."), ("a", "s/s/.."), ("a", "b/../../c")] {
            assert!(!link_stays_inside(path.as_bytes(), target.as_bytes()), "{path} -> {target}");
        }
    }

    proptest! {
        #[test]
        fn normalized_paths_have_no_parent_components(path in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(path) = normalize_path(&path) {
                prop_assert!(!path.starts_with(b"/") && !path.contains(&0));
                prop_assert!(path.split(|byte| *byte == b'/').all(|part| part != b".." && part != b"."));
                prop_assert_eq!(normalize_path(&path), Ok(path.clone()));
            }
        }
    }
}
