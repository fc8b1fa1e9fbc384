//! Builds the report of a change, within limits for the whole batch: a checkout changes thousands of files at once, and
//! must not use unbounded memory or time.

use crate::Options;
use crate::change::{Change, ChangeType};
use crate::diff::{self, Side};
use crate::entry;
use crate::file_records::FileRecord;
use crate::relative_path;
use crate::text_store::TextStore;
use std::time::{Duration, Instant};

const MAX_DIFF_TIME: Duration = Duration::from_millis(200);
const MAX_BATCH_TIME: Duration = Duration::from_secs(2);
/// Size limit of all diffs of a batch; later files are reported by size and hash.
const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;

/// Size limit of what the diffs of a batch have beyond an ordinary size.
const MAX_EXTRA_BYTES: usize = 4 * 1024 * 1024;
const MAX_ORDINARY_DIFF_BYTES: usize = 50_000;

pub struct ChangeReporter<'a> {
    options: &'a Options,
    memory: &'a TextStore,
    bytes_left: usize,
    /// Room for the rest of long diffs, which must not use up the room of ordinary ones.
    extra_bytes_left: usize,
    time_left: Duration,
}

impl<'a> ChangeReporter<'a> {
    pub fn new(options: &'a Options, memory: &'a TextStore) -> Self {
        Self {
            options,
            memory,
            bytes_left: MAX_BATCH_BYTES,
            extra_bytes_left: MAX_EXTRA_BYTES,
            time_left: MAX_BATCH_TIME,
        }
    }

    pub fn report_change(
        &mut self,
        change_type: ChangeType,
        old: Option<(&[u8], &FileRecord)>,
        new: Option<(&[u8], &FileRecord)>,
    ) -> Change {
        let path = new.or(old).map_or_else(String::new, |(path, _)| relative_path::to_display(path));
        let mut change = Change {
            file_path: path,
            change_type,
            old_path: None,
            lines_added: 0,
            lines_removed: 0,
            diff_preview: String::new(),
            full_diff: None,
            full_diff_truncated: false,
            full_diff_bytes: None,
            binary: [old, new].iter().flatten().any(|(_, known)| known.is_binary),
            size: None,
            sha256: None,
        };
        match change_type {
            ChangeType::Renamed => change.old_path = old.map(|(path, _)| relative_path::to_display(path)),
            ChangeType::Created | ChangeType::Modified | ChangeType::Deleted => {}
        }
        self.add_diff(&mut change, old, new);
        if let Some((_, known)) = new.filter(|_| change.full_diff.is_none() || change.full_diff_truncated) {
            change.size = Some(known.stamp.size);
            change.sha256 = known.digest().map(entry::to_hex);
        }
        change
    }

    fn add_diff(&mut self, change: &mut Change, old: Option<(&[u8], &FileRecord)>, new: Option<(&[u8], &FileRecord)>) {
        let (Some(old_text), Some(new_text)) = (self.side_text(old), self.side_text(new)) else { return };
        let began = Instant::now();
        let ordinary = MAX_ORDINARY_DIFF_BYTES.min(self.options.max_diff_bytes).min(self.bytes_left);
        let extra = if ordinary < self.bytes_left { self.options.max_diff_bytes - ordinary } else { 0 };
        let extra = extra.min(self.extra_bytes_left);
        let diff = diff::unified_diff(
            Side { path: old.map(|(path, _)| path), text: &old_text },
            Side { path: new.map(|(path, _)| path), text: &new_text },
            ordinary + extra,
            began + MAX_DIFF_TIME.min(self.time_left),
        );
        self.time_left = self.time_left.saturating_sub(began.elapsed());
        change.lines_added = diff.added;
        change.lines_removed = diff.removed;
        change.full_diff_truncated = diff.is_truncated();
        change.full_diff_bytes = diff.is_truncated().then_some(diff.bytes);
        change.diff_preview = diff::cut_preview(&diff.text, self.options.max_preview_bytes).to_owned();
        let used = diff.text.len().min(ordinary);
        self.bytes_left = self.bytes_left.saturating_sub(used + change.diff_preview.len());
        self.extra_bytes_left -= diff.text.len() - used;
        change.full_diff = (!diff.is_truncated() || !diff.text.is_empty()).then_some(diff.text);
    }

    /// The text of one side: empty if the file is missing, `None` if the text is unavailable.
    fn side_text(&self, side: Option<(&[u8], &FileRecord)>) -> Option<String> {
        match side {
            None => Some(String::new()),
            Some((_, known)) => self.memory.get(known.digest()?),
        }
    }
}
