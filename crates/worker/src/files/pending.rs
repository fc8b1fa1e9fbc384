//! Paths that something happened to, until they are quiet, and which of them were moved from where.

use super::path::{self, Relative};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

/// A chain of renames longer than this is no longer followed.
const LONGEST_CHAIN: usize = 16;
/// More renames than this are not remembered at once.
const MOST_MOVES: usize = 10_000;

pub struct Pending {
    settle: Duration,
    touched: BTreeMap<Relative, Instant>,
    due: Option<Instant>,
    /// First halves of renames, by their cookie.
    leaving: HashMap<u32, Relative>,
    /// New path to old one.
    moves: HashMap<Relative, Relative>,
}

impl Pending {
    pub fn new(settle: Duration) -> Self {
        Self { settle, touched: BTreeMap::new(), due: None, leaving: HashMap::new(), moves: HashMap::new() }
    }

    /// When the next path may be quiet; nothing is pending without a time.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    pub fn paths(&self) -> impl Iterator<Item = &Relative> {
        self.touched.keys()
    }

    pub fn touch(&mut self, path: Relative, now: Instant) {
        self.touched.insert(path, now);
        self.due.get_or_insert(now + self.settle);
    }

    pub fn left(&mut self, cookie: u32, path: Relative) {
        self.leaving.insert(cookie, path);
    }

    pub fn arrived(&mut self, cookie: u32, path: &[u8]) {
        if let Some(old) = self.leaving.remove(&cookie) {
            self.moves.insert(path.into(), old);
        }
    }

    /// Takes the paths that have been quiet for long enough.
    pub fn take_settled(&mut self, now: Instant) -> Vec<Relative> {
        let settle = self.settle;
        let is_quiet = |last: Instant| last + settle <= now;
        // What was renamed and is still being written is one story: its old path waits with it.
        let waiting: HashSet<&Relative> = self
            .moves
            .iter()
            .filter(|(new, _)| self.touched.get(*new).is_some_and(|last| !is_quiet(*last)))
            .map(|(_, old)| old)
            .collect();
        let settled: Vec<Relative> = self
            .touched
            .iter()
            .filter(|(path, last)| is_quiet(**last) && !waiting.contains(path))
            .map(|(path, _)| path.clone())
            .collect();
        for path in &settled {
            self.touched.remove(path);
        }
        // Not too soon again: where much happens, the paths that are ready go together.
        self.due = self.touched.values().min().map(|first| (*first + settle).max(now + settle / 2));
        settled
    }

    pub fn take_all(&mut self) -> Vec<Relative> {
        self.due = None;
        std::mem::take(&mut self.touched).into_keys().collect()
    }

    /// Where a file was before it was moved to `path`, by itself or with a directory above it, as far as `wanted` knows.
    pub fn origin(&self, path: &[u8], wanted: impl Fn(&[u8]) -> bool) -> Option<Relative> {
        let mut current = self.step_back(path)?;
        for _ in 0..LONGEST_CHAIN {
            if wanted(&current) {
                return Some(current);
            }
            current = self.step_back(&current)?;
        }
        None
    }

    /// Forgets renames once all that they concern was told.
    pub fn forget_moves(&mut self) {
        if self.touched.is_empty() || self.moves.len() > MOST_MOVES {
            self.moves.clear();
        }
        if self.touched.is_empty() || self.leaving.len() > MOST_MOVES {
            self.leaving.clear();
        }
    }

    fn step_back(&self, path: &[u8]) -> Option<Relative> {
        if let Some(old) = self.moves.get(path) {
            return Some(old.clone());
        }
        let mut directory = path::parent(path);
        while !directory.is_empty() {
            if let Some(old) = self.moves.get(directory) {
                return Some(path::join(old, &path[directory.len() + 1..]));
            }
            directory = path::parent(directory);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE: Duration = Duration::from_millis(50);

    fn path(text: &str) -> Relative {
        text.as_bytes().into()
    }

    #[test]
    fn a_path_settles_when_it_is_quiet() {
        let mut pending = Pending::new(SETTLE);
        let start = Instant::now();
        assert_eq!(pending.due(), None);
        pending.touch(path("a"), start);
        pending.touch(path("b"), start);
        pending.touch(path("b"), start + SETTLE / 2);
        assert_eq!(pending.due(), Some(start + SETTLE));
        assert_eq!(pending.take_settled(start + SETTLE), [path("a")]);
        assert_eq!(pending.due(), Some(start + SETTLE * 3 / 2));
        assert_eq!(pending.take_settled(start + SETTLE * 2), [path("b")]);
        assert_eq!(pending.due(), None);
    }

    #[test]
    fn the_old_path_of_a_rename_waits_for_the_new_one() {
        let mut pending = Pending::new(SETTLE);
        let start = Instant::now();
        pending.left(1, path("old"));
        pending.touch(path("old"), start);
        pending.arrived(1, b"new");
        pending.touch(path("new"), start + SETTLE / 2);
        assert!(pending.take_settled(start + SETTLE).is_empty());
        assert_eq!(pending.take_settled(start + SETTLE * 2), [path("new"), path("old")]);
    }

    #[test]
    fn moves_are_followed_back_through_chains_and_directories() {
        let mut pending = Pending::new(SETTLE);
        for (cookie, old, new) in
            [(1, "a", "b"), (2, "b", "c"), (3, "d", "e"), (4, "e/x", "e/y"), (5, "p", "q"), (6, "q", "p")]
        {
            pending.left(cookie, path(old));
            pending.arrived(cookie, new.as_bytes());
        }
        let origin = |new: &str, wanted: &str| {
            pending.origin(new.as_bytes(), |old| old == wanted.as_bytes()).map(|old| path::shown(&old))
        };
        assert_eq!(origin("c", "a").as_deref(), Some("a"));
        assert_eq!(origin("e/z/f", "d/z/f").as_deref(), Some("d/z/f"));
        assert_eq!(origin("e/y", "d/x").as_deref(), Some("d/x"));
        assert_eq!(origin("p", "nowhere"), None);
        assert_eq!(origin("unmoved", "a"), None);
    }
}
