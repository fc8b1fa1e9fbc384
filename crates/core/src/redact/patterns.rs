//! Many texts looked for at once, in one pass.

use std::collections::HashMap;

/// How many bytes a text is recognised by before it is compared as a whole.
const KEY: usize = 6;
const TOKEN_PREFIX: &[u8; KEY] = b"atoll_";
const TOKEN_SECRET: usize = 43;
/// How far a token is followed. They have less than a hundred characters.
const TOKEN_LONGEST: usize = 256;

const FILTER_BITS: usize = 1 << 16;

#[derive(Clone)]
pub(super) struct Patterns {
    /// By their first bytes, the longest first.
    by_key: HashMap<[u8; KEY], Vec<Box<[u8]>>>,
    /// Most places in a text are passed over by one look at this.
    filter: Box<[u64]>,
    longest: usize,
    count: usize,
}

fn slot(bytes: [u8; 4]) -> usize {
    (u32::from_le_bytes(bytes).wrapping_mul(0x9e37_79b1) >> 16) as usize
}

impl Patterns {
    pub(super) fn new(texts: impl IntoIterator<Item = String>) -> Self {
        let mut patterns =
            Self { by_key: HashMap::new(), filter: vec![0; FILTER_BITS / 64].into(), longest: TOKEN_LONGEST, count: 0 };
        patterns.mark(TOKEN_PREFIX);
        for text in texts {
            let bytes = text.into_bytes().into_boxed_slice();
            let Some(key) = bytes.first_chunk::<KEY>().copied() else { continue };
            patterns.mark(&key);
            patterns.longest = patterns.longest.max(bytes.len());
            patterns.count += 1;
            patterns.by_key.entry(key).or_default().push(bytes);
        }
        for same in patterns.by_key.values_mut() {
            same.sort_by_key(|text| std::cmp::Reverse(text.len()));
        }
        patterns
    }

    fn mark(&mut self, key: &[u8; KEY]) {
        let slot = slot([key[0], key[1], key[2], key[3]]);
        self.filter[slot / 64] |= 1 << (slot % 64);
    }

    pub(super) const fn longest(&self) -> usize {
        self.longest
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// How long the text is that begins here, if it is one that is looked for.
    fn begins(&self, text: &[u8]) -> Option<usize> {
        let key = text.first_chunk::<KEY>()?;
        let slot = slot([key[0], key[1], key[2], key[3]]);
        if self.filter[slot / 64] & (1 << (slot % 64)) == 0 {
            return None;
        }
        let known = self.by_key.get(key).and_then(|same| same.iter().find(|it| text.starts_with(it)));
        known.map(|it| it.len()).or_else(|| if key == TOKEN_PREFIX { token(text) } else { None })
    }

    /// Looks at the places of `text` up to `until` and writes what is before that to `out`, `instead` in the place
    /// of what is found; the first `covered` bytes belong to what was found before. Says how many bytes beyond
    /// `until` belong to what was found, and whether anything was.
    pub(super) fn pass(
        &self,
        text: &[u8],
        until: usize,
        covered: usize,
        instead: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, bool) {
        // All before `done` is written or belongs to what was found.
        let (mut done, mut found) = (covered, false);
        for at in 0..until {
            let Some(length) = self.begins(&text[at..]) else { continue };
            if at >= done {
                out.extend_from_slice(&text[done..at]);
                out.extend_from_slice(instead);
            }
            // What overlaps goes too: half of a secret is a clue to the rest.
            done = done.max(at + length);
            found = true;
        }
        if done < until {
            out.extend_from_slice(&text[done..until]);
        }
        (done.saturating_sub(until), found)
    }
}

/// Atoll's own tokens are known by their form: `atoll_<id>_<secret>`.
fn token(text: &[u8]) -> Option<usize> {
    let rest = &text[KEY..text.len().min(TOKEN_LONGEST)];
    let length = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_' || **b == b'-').count();
    let split = rest[..length].iter().position(|b| *b == b'_')?;
    (length - split > TOKEN_SECRET).then_some(KEY + length)
}
