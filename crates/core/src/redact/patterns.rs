//! Searches for many texts in one pass.

use std::collections::HashMap;

/// Length of the prefix that selects candidates.
const PREFIX_BYTES: usize = 6;
const TOKEN_PREFIX: &[u8; PREFIX_BYTES] = b"atoll_";
const TOKEN_SECRET_BYTES: usize = 43;
/// Maximum length of a matched token. Real tokens have less than a hundred characters.
const MAX_TOKEN_BYTES: usize = 256;

const FILTER_BITS: usize = 1 << 16;

#[derive(Clone)]
pub(super) struct Patterns {
    /// Patterns by their prefix, the longest first.
    by_prefix: HashMap<[u8; PREFIX_BYTES], Vec<Box<[u8]>>>,
    /// Bloom-style filter that skips most positions.
    filter: Box<[u64]>,
    longest_bytes: usize,
    count: usize,
}

fn filter_slot(bytes: [u8; 4]) -> usize {
    (u32::from_le_bytes(bytes).wrapping_mul(0x9e37_79b1) >> 16) as usize
}

impl Patterns {
    pub(super) fn new(texts: impl IntoIterator<Item = String>) -> Self {
        let mut patterns = Self {
            by_prefix: HashMap::new(),
            filter: vec![0; FILTER_BITS / 64].into(),
            longest_bytes: MAX_TOKEN_BYTES,
            count: 0,
        };
        patterns.mark_prefix(TOKEN_PREFIX);
        for text in texts {
            let bytes = text.into_bytes().into_boxed_slice();
            let Some(key) = bytes.first_chunk::<PREFIX_BYTES>().copied() else { continue };
            patterns.mark_prefix(&key);
            patterns.longest_bytes = patterns.longest_bytes.max(bytes.len());
            patterns.count += 1;
            patterns.by_prefix.entry(key).or_default().push(bytes);
        }
        for same in patterns.by_prefix.values_mut() {
            same.sort_by_key(|text| std::cmp::Reverse(text.len()));
        }
        patterns
    }

    fn mark_prefix(&mut self, key: &[u8; PREFIX_BYTES]) {
        let slot = filter_slot([key[0], key[1], key[2], key[3]]);
        self.filter[slot / 64] |= 1 << (slot % 64);
    }

    pub(super) const fn longest_bytes(&self) -> usize {
        self.longest_bytes
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Returns the length of the pattern that starts here, if any.
    fn match_length(&self, text: &[u8]) -> Option<usize> {
        let key = text.first_chunk::<PREFIX_BYTES>()?;
        let slot = filter_slot([key[0], key[1], key[2], key[3]]);
        if self.filter[slot / 64] & (1 << (slot % 64)) == 0 {
            return None;
        }
        let known = self.by_prefix.get(key).and_then(|same| same.iter().find(|it| text.starts_with(it)));
        known.map(|it| it.len()).or_else(|| if key == TOKEN_PREFIX { match_token(text) } else { None })
    }

    /// Scans `text` up to `until` and writes the part before that to `out`, with `instead` for each match. The first
    /// `covered` bytes belong to an earlier match. Returns the number of bytes after `until` that belong to a match,
    /// and whether there was a match.
    pub(super) fn replace_matches(
        &self,
        text: &[u8],
        until: usize,
        covered: usize,
        instead: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, bool) {
        // Everything before `done` is written or belongs to a match.
        let (mut done, mut found) = (covered, false);
        for at in 0..until {
            let Some(length) = self.match_length(&text[at..]) else { continue };
            if at >= done {
                out.extend_from_slice(&text[done..at]);
                out.extend_from_slice(instead);
            }
            // Redact overlapping matches entirely: half of a secret helps to guess the rest.
            done = done.max(at + length);
            found = true;
        }
        if done < until {
            out.extend_from_slice(&text[done..until]);
        }
        (done.saturating_sub(until), found)
    }
}

/// Matches Atoll's own tokens by their format: `atoll_<id>_<secret>`.
fn match_token(text: &[u8]) -> Option<usize> {
    let rest = &text[PREFIX_BYTES..text.len().min(MAX_TOKEN_BYTES)];
    let length = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_' || **b == b'-').count();
    let split = rest[..length].iter().position(|b| *b == b'_')?;
    (length - split > TOKEN_SECRET_BYTES).then_some(PREFIX_BYTES + length)
}
