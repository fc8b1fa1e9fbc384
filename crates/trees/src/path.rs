//! Paths in a tar, as bytes.

/// The longest that the kernel takes.
const LONGEST: usize = 4095;
const LONGEST_NAME: usize = 255;

/// For people and JSON: bytes that are not UTF-8 become `\xNN`.
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

/// An entry's path as one below the destination: no empty parts, no `.`; the destination itself is empty.
/// What would lead elsewhere is refused, with the reason.
pub(crate) fn below(path: &[u8]) -> Result<Vec<u8>, &'static str> {
    if path.starts_with(b"/") {
        return Err("its path is absolute");
    }
    if path.contains(&0) {
        return Err("its path holds a NUL");
    }
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("its path goes up with `..`"),
            part if part.len() > LONGEST_NAME => return Err("its name is too long"),
            part => parts.push(part),
        }
    }
    let path = parts.join(&b'/');
    if path.len() > LONGEST { Err("its path is too long") } else { Ok(path) }
}

/// The directory and the name in it.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

/// Whether a symbolic link at `path` leads to somewhere below the destination. It may go up first, as far as the
/// destination, and then only down: what it goes down through may be links too, of which the same holds.
pub(crate) fn stays_inside(path: &[u8], target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return false;
    }
    let mut depth = split(path).0.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).count();
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
    fn a_path_stays_below() {
        for (given, found) in [("a/b", "a/b"), ("./a//b/", "a/b"), ("./", ""), ("", ""), ("a/./b", "a/b")] {
            assert_eq!(below(given.as_bytes()).unwrap(), found.as_bytes(), "{given}");
        }
        for bad in ["/a", "//a", "..", "a/../b", "../a", "a/..", "a\0b"] {
            assert!(below(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(below(&[b'a'; 256]).is_err());
        assert!(below(&b"abcdefgh/".repeat(500)).is_err());
    }

    #[test]
    fn a_link_stays_inside_however_it_is_walked() {
        for (path, target) in [("a", "b"), ("a/b", "../c"), ("a/b/c", "../../d/e"), ("a", "."), ("a/b", "..")] {
            assert!(stays_inside(path.as_bytes(), target.as_bytes()), "{path} -> {target}");
        }
        // The last one is inside by its letters; where `s` is a link to `.`, it is not.
        for (path, target) in [("a", "/etc"), ("a", ".."), ("a/b", "../.."), ("a", "s/s/.."), ("a", "b/../../c")] {
            assert!(!stays_inside(path.as_bytes(), target.as_bytes()), "{path} -> {target}");
        }
    }

    proptest! {
        #[test]
        fn what_is_below_has_no_way_out(path in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(path) = below(&path) {
                prop_assert!(!path.starts_with(b"/") && !path.contains(&0));
                prop_assert!(path.split(|byte| *byte == b'/').all(|part| part != b".." && part != b"."));
                prop_assert_eq!(below(&path), Ok(path.clone()));
            }
        }
    }
}
