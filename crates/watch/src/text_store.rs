//! The last reported texts, for the old side of the next diff. Equal texts are stored once.

use crate::entry::{self, Digest};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Size limits. Texts beyond `in_memory_bytes` go to an unnamed temporary file; beyond `spilled_bytes` they are dropped,
/// and their files are reported without a diff.
#[derive(Clone, Copy)]
pub struct TextStoreLimits {
    pub in_memory_bytes: usize,
    pub spilled_bytes: u64,
}

pub const DEFAULT_LIMITS: TextStoreLimits =
    TextStoreLimits { in_memory_bytes: 16 * 1024 * 1024, spilled_bytes: 256 * 1024 * 1024 };

pub struct TextStore {
    limits: TextStoreLimits,
    texts: HashMap<Digest, StoredText>,
    bytes_in_memory: usize,
    spill: Option<SpillFile>,
}

struct StoredText {
    users: u32,
    location: TextLocation,
}

enum TextLocation {
    InMemory(Box<str>),
    Spilled { start: u64, length: usize },
}

struct SpillFile {
    file: File,
    end: u64,
    used_bytes: u64,
}

impl TextStore {
    pub fn new(limits: TextStoreLimits) -> Self {
        Self { limits, texts: HashMap::new(), bytes_in_memory: 0, spill: None }
    }

    /// Stores a text for one more user, until that user releases it.
    pub fn retain(&mut self, digest: Digest, text: String) {
        if let Some(stored) = self.texts.get_mut(&digest) {
            stored.users += 1;
        } else if let Some(place) = self.store(text) {
            self.texts.insert(digest, StoredText { users: 1, location: place });
        }
    }

    pub fn get(&self, digest: &Digest) -> Option<String> {
        match &self.texts.get(digest)?.location {
            TextLocation::InMemory(text) => Some(text.to_string()),
            TextLocation::Spilled { start, length } => {
                let mut bytes = vec![0; *length];
                self.spill.as_ref()?.file.read_exact_at(&mut bytes, *start).ok()?;
                (entry::hash_bytes(&bytes) == *digest).then(|| String::from_utf8(bytes).ok())?
            }
        }
    }

    /// Releases a text; does nothing if it was dropped.
    pub fn release(&mut self, digest: &Digest) {
        let Some(text) = self.texts.get_mut(digest) else { return };
        text.users -= 1;
        if text.users > 0 {
            return;
        }
        match self.texts.remove(digest).map(|text| text.location) {
            Some(TextLocation::InMemory(text)) => self.bytes_in_memory -= text.len(),
            Some(TextLocation::Spilled { start, length }) => {
                if let Some(spill) = &mut self.spill {
                    spill.free(start, length);
                }
            }
            None => {}
        }
    }

    fn store(&mut self, text: String) -> Option<TextLocation> {
        if self.bytes_in_memory + text.len() <= self.limits.in_memory_bytes {
            self.bytes_in_memory += text.len();
            return Some(TextLocation::InMemory(text.into_boxed_str()));
        }
        if self.spill.is_none() {
            self.spill = tempfile::tempfile().ok().map(|file| SpillFile { file, end: 0, used_bytes: 0 });
        }
        let start = self.spill.as_mut()?.write(text.as_bytes(), self.limits.spilled_bytes)?;
        Some(TextLocation::Spilled { start, length: text.len() })
    }
}

impl SpillFile {
    fn write(&mut self, bytes: &[u8], most: u64) -> Option<u64> {
        let length = u64::try_from(bytes.len()).ok()?;
        if self.used_bytes + length > most {
            return None;
        }
        // Nothing in use: start over, so that the file does not grow.
        let start = if self.used_bytes == 0 { 0 } else { self.end };
        self.file.write_all_at(bytes, start).ok()?;
        self.end = start + length;
        self.used_bytes += length;
        Some(start)
    }

    /// Frees the blocks, if the file system supports it.
    fn free(&mut self, start: u64, length: usize) {
        let length = u64::try_from(length).unwrap_or(0);
        self.used_bytes -= length;
        if length > 0 {
            let how = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&self.file, how, start, length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(memory: &mut TextStore, text: &str) -> Digest {
        let digest = entry::hash_bytes(text.as_bytes());
        memory.retain(digest, text.to_owned());
        digest
    }

    #[test]
    fn stores_in_memory_then_spills_then_releases() {
        let mut memory = TextStore::new(TextStoreLimits { in_memory_bytes: 10, spilled_bytes: 10 });
        let first = put(&mut memory, "12345678");
        let spilled = put(&mut memory, "abcdefgh");
        let forgotten = put(&mut memory, "ABCDEFGH");
        assert_eq!(memory.get(&first).as_deref(), Some("12345678"));
        assert_eq!(memory.get(&spilled).as_deref(), Some("abcdefgh"));
        assert_eq!(memory.get(&forgotten), None);
        memory.release(&forgotten);
        memory.release(&spilled);
        assert_eq!(memory.get(&spilled), None);
        let again = put(&mut memory, "ABCDEFGH");
        assert_eq!(memory.get(&again).as_deref(), Some("ABCDEFGH"));
        memory.release(&first);
        let within = put(&mut memory, "xyz");
        assert!(matches!(memory.texts[&within].location, TextLocation::InMemory(_)));
    }

    #[test]
    fn stores_equal_texts_once() {
        let mut memory = TextStore::new(DEFAULT_LIMITS);
        let first = put(&mut memory, "same");
        put(&mut memory, "same");
        assert_eq!(memory.bytes_in_memory, 4);
        memory.release(&first);
        assert_eq!(memory.get(&first).as_deref(), Some("same"));
        memory.release(&first);
        assert_eq!((memory.get(&first), memory.bytes_in_memory), (None, 0));
    }
}
