//! Contents that events name by their hash, because they do not fit into an event.

use atoll_core::bounds::MAX_WHOLE_TEXT_BYTES;
use sha2::{Digest, Sha256};

/// The whole of a text that an event shows in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventBlob {
    /// The hash of the content, which the event names.
    pub sha256: String,
    pub content: String,
}

impl EventBlob {
    /// Keeps at most [`MAX_WHOLE_TEXT_BYTES`].
    pub fn new(mut content: String) -> Self {
        content.truncate(content.floor_char_boundary(MAX_WHOLE_TEXT_BYTES));
        Self { sha256: hash_content(content.as_bytes()), content }
    }
}

/// The name of a blob: its SHA-256 in lower-case hexadecimal digits.
pub fn hash_content(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// True for 64 lower-case hexadecimal digits, which are also safe as a file name.
pub fn is_blob_name(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_is_named_by_its_hash_and_bounded() {
        let blob = EventBlob::new("hello".to_owned());
        assert_eq!(blob.sha256, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
        assert!(is_blob_name(&blob.sha256) && !is_blob_name("../../etc/passwd"));
        assert_eq!(EventBlob::new("ä".repeat(MAX_WHOLE_TEXT_BYTES)).content.len(), MAX_WHOLE_TEXT_BYTES);
    }
}
