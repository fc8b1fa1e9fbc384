//! Touched paths until they settle, and the renames among them.

use crate::relative_path::{self, RelativePath};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

/// Longest chain of renames to follow.
const MAX_RENAME_CHAIN: usize = 16;
/// Maximum number of renames to remember.
const MAX_TRACKED_MOVES: usize = 10_000;

pub struct PendingPaths {
    settle_time: Duration,
    touched: BTreeMap<RelativePath, Instant>,
    deadline: Option<Instant>,
    /// First halves of renames, by their cookie.
    moved_from: HashMap<u32, RelativePath>,
    /// Maps new paths to old ones.
    moves: HashMap<RelativePath, RelativePath>,
}

impl PendingPaths {
    pub fn new(settle_time: Duration) -> Self {
        Self {
            settle_time,
            touched: BTreeMap::new(),
            deadline: None,
            moved_from: HashMap::new(),
            moves: HashMap::new(),
        }
    }

    /// When the next path may settle; `None` if nothing is pending.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub fn touched_paths(&self) -> impl Iterator<Item = &RelativePath> {
        self.touched.keys()
    }

    pub fn touch(&mut self, path: RelativePath, now: Instant) {
        self.touched.insert(path, now);
        self.deadline.get_or_insert(now + self.settle_time);
    }

    pub fn record_moved_from(&mut self, cookie: u32, path: RelativePath) {
        self.moved_from.insert(cookie, path);
    }

    pub fn record_moved_to(&mut self, cookie: u32, path: &[u8]) {
        if let Some(old) = self.moved_from.remove(&cookie) {
            self.moves.insert(path.into(), old);
        }
    }

    /// Takes the paths that have settled.
    pub fn take_settled(&mut self, now: Instant) -> Vec<RelativePath> {
        let settle = self.settle_time;
        let is_quiet = |last: Instant| last + settle <= now;
        // The old path of a file that is still being written waits with it.
        let waiting: HashSet<&RelativePath> = self
            .moves
            .iter()
            .filter(|(new, _)| self.touched.get(*new).is_some_and(|last| !is_quiet(*last)))
            .map(|(_, old)| old)
            .collect();
        let settled: Vec<RelativePath> = self
            .touched
            .iter()
            .filter(|(path, last)| is_quiet(**last) && !waiting.contains(path))
            .map(|(path, _)| path.clone())
            .collect();
        for path in &settled {
            self.touched.remove(path);
        }
        // Wait a little, so that many settled paths go together.
        self.deadline = self.touched.values().min().map(|first| (*first + settle).max(now + settle / 2));
        settled
    }

    pub fn take_all(&mut self) -> Vec<RelativePath> {
        self.deadline = None;
        std::mem::take(&mut self.touched).into_keys().collect()
    }

    /// Finds the previous path of a moved file, also if one of its directories moved.
    pub fn find_origin(&self, path: &[u8], is_origin: impl Fn(&[u8]) -> bool) -> Option<RelativePath> {
        let mut current = self.previous_path(path)?;
        for _ in 0..MAX_RENAME_CHAIN {
            if is_origin(&current) {
                return Some(current);
            }
            current = self.previous_path(&current)?;
        }
        None
    }

    /// Forgets renames once their paths are reported.
    pub fn forget_moves(&mut self) {
        if self.touched.is_empty() || self.moves.len() > MAX_TRACKED_MOVES {
            self.moves.clear();
        }
        if self.touched.is_empty() || self.moved_from.len() > MAX_TRACKED_MOVES {
            self.moved_from.clear();
        }
    }

    fn previous_path(&self, path: &[u8]) -> Option<RelativePath> {
        if let Some(old) = self.moves.get(path) {
            return Some(old.clone());
        }
        let mut directory = relative_path::parent_path(path);
        while !directory.is_empty() {
            if let Some(old) = self.moves.get(directory) {
                return Some(relative_path::join_path(old, &path[directory.len() + 1..]));
            }
            directory = relative_path::parent_path(directory);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE: Duration = Duration::from_millis(50);

    fn path(text: &str) -> RelativePath {
        text.as_bytes().into()
    }

    #[test]
    fn a_path_settles_when_it_is_quiet() {
        let mut pending = PendingPaths::new(SETTLE);
        let start = Instant::now();
        assert_eq!(pending.next_deadline(), None);
        pending.touch(path("a"), start);
        pending.touch(path("b"), start);
        pending.touch(path("b"), start + SETTLE / 2);
        assert_eq!(pending.next_deadline(), Some(start + SETTLE));
        assert_eq!(pending.take_settled(start + SETTLE), [path("a")]);
        assert_eq!(pending.next_deadline(), Some(start + SETTLE * 3 / 2));
        assert_eq!(pending.take_settled(start + SETTLE * 2), [path("b")]);
        assert_eq!(pending.next_deadline(), None);
    }

    #[test]
    fn the_old_path_of_a_rename_waits_for_the_new_one() {
        let mut pending = PendingPaths::new(SETTLE);
        let start = Instant::now();
        pending.record_moved_from(1, path("old"));
        pending.touch(path("old"), start);
        pending.record_moved_to(1, b"new");
        pending.touch(path("new"), start + SETTLE / 2);
        assert!(pending.take_settled(start + SETTLE).is_empty());
        assert_eq!(pending.take_settled(start + SETTLE * 2), [path("new"), path("old")]);
    }

    #[test]
    fn moves_are_followed_back_through_chains_and_directories() {
        let mut pending = PendingPaths::new(SETTLE);
        for (cookie, old, new) in
            [(1, "a", "b"), (2, "b", "c"), (3, "d", "e"), (4, "e/x", "e/y"), (5, "p", "q"), (6, "q", "p")]
        {
            pending.record_moved_from(cookie, path(old));
            pending.record_moved_to(cookie, new.as_bytes());
        }
        let origin = |new: &str, origin_path: &str| {
            pending
                .find_origin(new.as_bytes(), |old| old == origin_path.as_bytes())
                .map(|old| relative_path::to_display(&old))
        };
        assert_eq!(origin("c", "a").as_deref(), Some("a"));
        assert_eq!(origin("e/z/f", "d/z/f").as_deref(), Some("d/z/f"));
        assert_eq!(origin("e/y", "d/x").as_deref(), Some("d/x"));
        assert_eq!(origin("p", "nowhere"), None);
        assert_eq!(origin("unmoved", "a"), None);
    }
}
