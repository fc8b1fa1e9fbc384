//! The texts last told, so that the next diff has an old side. Kept by content: the same text is kept once.

use super::look::{self, Digest};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Beyond `held` bytes texts go to a file without a name under the directory for temporary files, beyond `spilled` bytes they are forgotten:
/// what they belong to is then told without a diff.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub held: usize,
    pub spilled: u64,
}

pub const BOUNDS: Bounds = Bounds { held: 16 * 1024 * 1024, spilled: 256 * 1024 * 1024 };

pub struct Memory {
    bounds: Bounds,
    texts: HashMap<Digest, Text>,
    held: usize,
    spill: Option<Spill>,
}

struct Text {
    users: u32,
    place: Place,
}

enum Place {
    Held(Box<str>),
    Spilled { start: u64, length: usize },
}

struct Spill {
    file: File,
    end: u64,
    used: u64,
}

impl Memory {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, texts: HashMap::new(), held: 0, spill: None }
    }

    /// Remembers a text for one more user, until that user releases it.
    pub fn keep(&mut self, digest: Digest, text: String) {
        if let Some(kept) = self.texts.get_mut(&digest) {
            kept.users += 1;
        } else if let Some(place) = self.place(text) {
            self.texts.insert(digest, Text { users: 1, place });
        }
    }

    pub fn get(&self, digest: &Digest) -> Option<String> {
        match &self.texts.get(digest)?.place {
            Place::Held(text) => Some(text.to_string()),
            Place::Spilled { start, length } => {
                let mut bytes = vec![0; *length];
                self.spill.as_ref()?.file.read_exact_at(&mut bytes, *start).ok()?;
                (look::digest(&bytes) == *digest).then(|| String::from_utf8(bytes).ok())?
            }
        }
    }

    /// A text that was forgotten, or never kept, is released without harm.
    pub fn release(&mut self, digest: &Digest) {
        let Some(text) = self.texts.get_mut(digest) else { return };
        text.users -= 1;
        if text.users > 0 {
            return;
        }
        match self.texts.remove(digest).map(|text| text.place) {
            Some(Place::Held(text)) => self.held -= text.len(),
            Some(Place::Spilled { start, length }) => {
                if let Some(spill) = &mut self.spill {
                    spill.free(start, length);
                }
            }
            None => {}
        }
    }

    fn place(&mut self, text: String) -> Option<Place> {
        if self.held + text.len() <= self.bounds.held {
            self.held += text.len();
            return Some(Place::Held(text.into_boxed_str()));
        }
        if self.spill.is_none() {
            self.spill = tempfile::tempfile().ok().map(|file| Spill { file, end: 0, used: 0 });
        }
        let start = self.spill.as_mut()?.write(text.as_bytes(), self.bounds.spilled)?;
        Some(Place::Spilled { start, length: text.len() })
    }
}

impl Spill {
    fn write(&mut self, bytes: &[u8], most: u64) -> Option<u64> {
        let length = u64::try_from(bytes.len()).ok()?;
        if self.used + length > most {
            return None;
        }
        // Nothing in use: begin anew, so that the file does not grow for ever.
        let start = if self.used == 0 { 0 } else { self.end };
        self.file.write_all_at(bytes, start).ok()?;
        self.end = start + length;
        self.used += length;
        Some(start)
    }

    /// Gives the blocks back where the file system can; elsewhere they stay until all texts are released.
    fn free(&mut self, start: u64, length: usize) {
        let length = u64::try_from(length).unwrap_or(0);
        self.used -= length;
        if length > 0 {
            let how = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&self.file, how, start, length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(memory: &mut Memory, text: &str) -> Digest {
        let digest = look::digest(text.as_bytes());
        memory.keep(digest, text.to_owned());
        digest
    }

    #[test]
    fn held_then_spilled_then_forgotten() {
        let mut memory = Memory::new(Bounds { held: 10, spilled: 10 });
        let held = put(&mut memory, "12345678");
        let spilled = put(&mut memory, "abcdefgh");
        let forgotten = put(&mut memory, "ABCDEFGH");
        assert_eq!(memory.get(&held).as_deref(), Some("12345678"));
        assert_eq!(memory.get(&spilled).as_deref(), Some("abcdefgh"));
        assert_eq!(memory.get(&forgotten), None);
        memory.release(&forgotten);
        memory.release(&spilled);
        assert_eq!(memory.get(&spilled), None);
        let again = put(&mut memory, "ABCDEFGH");
        assert_eq!(memory.get(&again).as_deref(), Some("ABCDEFGH"));
        memory.release(&held);
        let within = put(&mut memory, "xyz");
        assert!(matches!(memory.texts[&within].place, Place::Held(_)));
    }

    #[test]
    fn the_same_text_is_kept_once_for_all_its_users() {
        let mut memory = Memory::new(BOUNDS);
        let first = put(&mut memory, "same");
        put(&mut memory, "same");
        assert_eq!(memory.held, 4);
        memory.release(&first);
        assert_eq!(memory.get(&first).as_deref(), Some("same"));
        memory.release(&first);
        assert_eq!((memory.get(&first), memory.held), (None, 0));
    }
}
