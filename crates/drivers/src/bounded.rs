//! Bounds on memory that an agent's lines can make a driver use.
//!
//! The worker has 64 MB. An agent controls every byte of its output, so a driver bounds the parsed size of each line
//! ([`check_line_size`]) and the number and size of the entries that it remembers ([`BoundedMap`]).

use serde_json::Value;
use std::collections::BTreeMap;

/// Maximum number of entries in one map.
const MAX_ENTRIES: usize = 1024;
/// Maximum size of all entries of one map. One entry may be larger; it is then the only one.
const MAX_BYTES: usize = 2 << 20;
/// Maximum memory for the structure of one line: arrays and objects need much more memory than text.
const MAX_LINE_STRUCTURE_BYTES: usize = 8 << 20;

/// Memory of one value in an array or object.
const VALUE_BYTES: usize = size_of::<Value>();
/// Memory of the smallest object that is not empty: a node of its B-tree.
const OBJECT_BYTES: usize = 640;
/// Memory of a map's entry besides its key and value.
const ENTRY_BYTES: usize = 128;
/// Maximum length of an id that the driver passes on.
const MAX_ID_BYTES: usize = 1024;

/// Estimates the heap memory that a value holds.
pub(super) trait HeldSize {
    fn held_bytes(&self) -> usize;
}

impl HeldSize for () {
    fn held_bytes(&self) -> usize {
        0
    }
}

impl HeldSize for String {
    fn held_bytes(&self) -> usize {
        self.len()
    }
}

impl<T: HeldSize> HeldSize for Option<T> {
    fn held_bytes(&self) -> usize {
        self.as_ref().map_or(0, T::held_bytes)
    }
}

impl HeldSize for Value {
    fn held_bytes(&self) -> usize {
        match self {
            Self::Null | Self::Bool(_) | Self::Number(_) => 0,
            Self::String(text) => text.len(),
            Self::Array(items) => items.iter().map(|item| VALUE_BYTES + item.held_bytes()).sum(),
            Self::Object(fields) => {
                let nodes = fields.len().div_ceil(5) * OBJECT_BYTES;
                fields.iter().map(|(name, value)| name.len() + value.held_bytes()).sum::<usize>() + nodes
            }
        }
    }
}

/// Estimates the heap memory of a JSON value, such as a request's input.
pub fn held_value_bytes(value: &Value) -> usize {
    value.held_bytes()
}

/// A map that drops its oldest entries when it holds too many or too much.
#[derive(Debug)]
pub(super) struct BoundedMap<V> {
    entries: BTreeMap<String, Entry<V>>,
    /// Keys by age.
    order: BTreeMap<u64, String>,
    bytes: usize,
    next_number: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    number: u64,
    bytes: usize,
}

/// A set with the same bounds.
pub(super) type BoundedSet = BoundedMap<()>;

impl<V> Default for BoundedMap<V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), order: BTreeMap::new(), bytes: 0, next_number: 0 }
    }
}

impl<V: HeldSize> BoundedMap<V> {
    /// Inserts an entry as the newest one, and returns the entries that it displaces.
    pub(super) fn insert(&mut self, key: &str, value: V) -> Vec<(String, V)> {
        self.remove(key);
        let bytes = entry_bytes(key, &value);
        let number = self.next_number;
        self.next_number += 1;
        self.order.insert(number, key.to_owned());
        self.entries.insert(key.to_owned(), Entry { value, number, bytes });
        self.bytes += bytes;
        self.drop_oldest()
    }

    /// Inserts an entry if it fits; otherwise returns false and leaves the map as it is.
    pub(super) fn try_insert(&mut self, key: &str, value: V) -> bool {
        let replaced = self.entries.get(key).map_or(0, |entry| entry.bytes);
        let is_full = self.entries.len() >= MAX_ENTRIES && !self.entries.contains_key(key);
        if is_full || self.bytes - replaced + entry_bytes(key, &value) > MAX_BYTES {
            return false;
        }
        self.insert(key, value);
        true
    }

    /// Changes an entry, which becomes the newest one, and returns the entries that it displaces.
    pub(super) fn update(&mut self, key: &str, change: impl FnOnce(&mut V)) -> Vec<(String, V)> {
        match self.remove(key) {
            Some(mut value) => {
                change(&mut value);
                self.insert(key, value)
            }
            None => Vec::new(),
        }
    }

    fn drop_oldest(&mut self) -> Vec<(String, V)> {
        let mut dropped = Vec::new();
        while self.entries.len() > MAX_ENTRIES || (self.bytes > MAX_BYTES && self.entries.len() > 1) {
            let Some((_, key)) = self.order.first_key_value() else { break };
            let key = key.clone();
            dropped.extend(self.remove(&key).map(|value| (key, value)));
        }
        dropped
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<V> {
        let Entry { value, number, bytes } = self.entries.remove(key)?;
        self.order.remove(&number);
        self.bytes -= bytes;
        Some(value)
    }
}

impl<V> BoundedMap<V> {
    pub(super) fn get(&self, key: &str) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    pub(super) fn contains_key(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries in the order of their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.entries.iter().map(|(key, entry)| (key.as_str(), &entry.value))
    }

    pub(super) fn clear(&mut self) {
        *self = Self { next_number: self.next_number, ..Self::default() };
    }

    /// Empties the map and returns its values in the order of their keys.
    pub(super) fn take_values(&mut self) -> Vec<V> {
        let entries = std::mem::take(self).entries;
        entries.into_values().map(|entry| entry.value).collect()
    }
}

fn entry_bytes(key: &str, value: &impl HeldSize) -> usize {
    2 * key.len() + ENTRY_BYTES + value.held_bytes()
}

/// Rejects a line whose parsed structure would need too much memory. Text counts as it is: lines are bounded.
pub(super) fn check_line_size(line: &[u8]) -> Result<(), String> {
    let (mut in_string, mut is_escaped, mut bytes) = (false, false, 0);
    for &byte in line {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' => bytes += OBJECT_BYTES,
            b',' | b'[' | b':' => bytes += 2 * VALUE_BYTES,
            _ => {}
        }
    }
    if bytes > MAX_LINE_STRUCTURE_BYTES {
        return Err(format!("the line's structure needs {bytes} bytes; the limit is {MAX_LINE_STRUCTURE_BYTES}"));
    }
    Ok(())
}

/// Bounds an id that the agent chose.
pub(super) fn clip_id(id: &str) -> &str {
    &id[..id.floor_char_boundary(MAX_ID_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn drops_the_oldest_entries_beyond_the_count() {
        let mut map = BoundedMap::default();
        for number in 0..MAX_ENTRIES {
            assert!(map.insert(&number.to_string(), number.to_string()).is_empty());
        }
        assert!(!map.try_insert("more", String::new()));
        assert!(map.try_insert("7", "again".to_owned()), "an entry can be replaced");
        assert_eq!(map.insert("more", String::new()), [("0".to_owned(), "0".to_owned())]);
        assert!(!map.contains_key("0") && map.contains_key("more"));
        map.clear();
        assert!(map.is_empty() && map.try_insert("0", String::new()));
    }

    #[test]
    fn drops_the_oldest_entries_beyond_the_size() {
        let mut map = BoundedMap::default();
        let half = "x".repeat(MAX_BYTES / 2 - ENTRY_BYTES - 2);
        assert!(map.insert("a", half.clone()).is_empty() && map.insert("b", half.clone()).is_empty());
        assert!(!map.try_insert("c", String::new()));
        assert_eq!(map.insert("c", String::new()).len(), 1, "a goes");
        assert_eq!(map.update("b", |text| *text = half.repeat(3)), [("c".to_owned(), String::new())]);
    }

    #[test]
    fn one_entry_may_be_larger_than_the_limit() {
        let mut map = BoundedMap::default();
        assert!(map.insert("a", String::new()).is_empty());
        assert_eq!(map.insert("b", "x".repeat(2 * MAX_BYTES)).len(), 1);
        assert_eq!(map.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["b"]);
        assert!(map.remove("b").is_some() && map.bytes == 0);
    }

    #[test]
    fn counts_structure_and_not_text() {
        assert_eq!(check_line_size(format!("{{\"text\": \"{}\"}}", "[{,".repeat(300_000)).as_bytes()), Ok(()));
        assert_eq!(check_line_size(format!("{{\"text\": \"\\\"{}\"}}", "{".repeat(300_000)).as_bytes()), Ok(()));
        assert!(check_line_size(format!("[{}0]", "0,".repeat(500_000)).as_bytes()).is_err());
        assert!(check_line_size(format!("[{}0]", r#"{"a":0},"#.repeat(100_000)).as_bytes()).is_err());
    }

    #[test]
    fn the_estimate_of_a_line_covers_its_parsed_value() {
        let object = json!({"a": 1, "b": [1, 2, {"c": "text"}], "d": {"e": {}}});
        for value in [json!([[], [[1, 2], "x"]]), object, json!([{"a": 0}, {"a": 0}])] {
            let line = value.to_string();
            let mut estimated = 0;
            for byte in line.bytes() {
                estimated += match byte {
                    b'{' => OBJECT_BYTES,
                    b',' | b'[' | b':' => 2 * VALUE_BYTES,
                    _ => 0,
                };
            }
            assert!(value.held_bytes() <= estimated + line.len(), "{line}");
        }
    }
}
