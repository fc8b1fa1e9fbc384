//! Telling one change, within bounds for the whole batch: a checkout of another branch changes thousands of files at
//! once, and neither memory nor the time of the caller may grow with it.

use super::Options;
use super::change::{Change, ChangeType};
use super::diff::{self, Side};
use super::known::Known;
use super::look;
use super::memory::Memory;
use super::path;
use std::time::{Duration, Instant};

const LONGEST_COMPARISON: Duration = Duration::from_millis(200);
const LONGEST_BATCH: Duration = Duration::from_secs(2);
/// Diffs of one batch take no more than this together; what comes after is told by size and hash.
const LARGEST_BATCH: usize = 16 * 1024 * 1024;

pub struct Teller<'a> {
    options: &'a Options,
    memory: &'a Memory,
    room: usize,
    time: Duration,
}

impl<'a> Teller<'a> {
    pub fn new(options: &'a Options, memory: &'a Memory) -> Self {
        Self { options, memory, room: LARGEST_BATCH, time: LONGEST_BATCH }
    }

    pub fn tell(
        &mut self,
        change_type: ChangeType,
        old: Option<(&[u8], &Known)>,
        new: Option<(&[u8], &Known)>,
    ) -> Change {
        let path = new.or(old).map_or_else(String::new, |(path, _)| path::shown(path));
        let mut change = Change {
            file_path: path,
            change_type,
            old_path: None,
            lines_added: 0,
            lines_removed: 0,
            diff_preview: String::new(),
            full_diff: None,
            full_diff_truncated: false,
            binary: [old, new].iter().flatten().any(|(_, known)| known.binary),
            size: None,
            sha256: None,
        };
        match change_type {
            ChangeType::Renamed => change.old_path = old.map(|(path, _)| path::shown(path)),
            ChangeType::Created | ChangeType::Modified | ChangeType::Deleted => {}
        }
        self.compare(&mut change, old, new);
        if let Some((_, known)) = new.filter(|_| change.full_diff.is_none() || change.full_diff_truncated) {
            change.size = Some(known.stamp.size);
            change.sha256 = known.digest().map(look::hexadecimal);
        }
        change
    }

    fn compare(&mut self, change: &mut Change, old: Option<(&[u8], &Known)>, new: Option<(&[u8], &Known)>) {
        let (Some(old_text), Some(new_text)) = (self.text(old), self.text(new)) else { return };
        let began = Instant::now();
        let diff = diff::unified(
            Side { path: old.map(|(path, _)| path), text: &old_text },
            Side { path: new.map(|(path, _)| path), text: &new_text },
            self.options.longest_diff.min(self.room),
            began + LONGEST_COMPARISON.min(self.time),
        );
        self.time = self.time.saturating_sub(began.elapsed());
        change.lines_added = diff.added;
        change.lines_removed = diff.removed;
        change.full_diff_truncated = diff.truncated;
        change.diff_preview = diff::beginning(&diff.text, self.options.preview).to_owned();
        self.room = self.room.saturating_sub(diff.text.len() + change.diff_preview.len());
        change.full_diff = (!diff.truncated || !diff.text.is_empty()).then_some(diff.text);
    }

    /// A side that is not there is empty; one that nobody has, or that is not text, is not to be compared.
    fn text(&self, side: Option<(&[u8], &Known)>) -> Option<String> {
        match side {
            None => Some(String::new()),
            Some((_, known)) => self.memory.get(known.digest()?),
        }
    }
}
