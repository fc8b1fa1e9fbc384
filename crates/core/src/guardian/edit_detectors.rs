//! Detectors of changed files: edits that undo each other, files outside the task's, protected paths.

use super::agent_signal::{DeniedCall, FileChange, ToolUse};
use super::detectors::WatchedTask;
use super::{Detector, Finding, hash_parts};
use crate::policy::{AnalysedCall, PROTECTED_PATHS_RULE, matches_path};
use std::collections::{BTreeSet, VecDeque};

const MAX_FILES: usize = 64;
/// Edits of a file that a later one may undo.
const MAX_EDITS: usize = 6;
/// Edits in a row that undo nothing and end the back and forth.
const MAX_PLAIN_EDITS: u32 = 3;
const MAX_OUTSIDE_FILES: usize = 32;
const MAX_REPORTED_CALLS: usize = 32;

#[derive(Debug, Clone, Copy)]
struct Edit {
    forward: u64,
    backward: u64,
}

#[derive(Debug)]
struct EditedFile {
    path: String,
    edits: VecDeque<Edit>,
    undone: VecDeque<i64>,
    undone_count: u32,
    plain_edits: u32,
}

#[derive(Debug, Default)]
pub(super) struct EditDetectors {
    files: VecDeque<EditedFile>,
    outside: BTreeSet<String>,
    outside_seqs: VecDeque<i64>,
    /// Calls that were reported for a protected path.
    reported_calls: VecDeque<String>,
}

impl EditDetectors {
    pub fn record_change(&mut self, seq: i64, change: &FileChange, at: u32) -> Option<Finding> {
        let edit = change.hash_edit()?;
        let file = self.file(&change.file_path);
        let undoes = file.edits.iter().any(|earlier| earlier.backward == edit.forward);
        if file.edits.len() >= MAX_EDITS {
            file.edits.pop_front();
        }
        file.edits.push_back(edit);
        if !undoes {
            file.plain_edits += 1;
            if file.plain_edits >= MAX_PLAIN_EDITS {
                file.undone_count = 0;
                file.undone.clear();
            }
            return None;
        }
        file.plain_edits = 0;
        file.undone_count += 1;
        if file.undone.len() >= super::MAX_EVIDENCE {
            file.undone.pop_front();
        }
        file.undone.push_back(seq);
        (file.undone_count.is_multiple_of(at.max(1))).then(|| Finding {
            path: Some(file.path.clone()),
            times: Some(file.undone_count),
            ..Finding::new(Detector::BackAndForth, seq, file.path.clone(), file.undone.iter().copied())
        })
    }

    /// Checks a change against the files of the task.
    pub fn check_files(&mut self, seq: i64, change: &FileChange, task: &WatchedTask, at: u32) -> Option<Finding> {
        if task.files.is_empty() {
            return None;
        }
        let paths = [Some(&change.file_path), change.old_path.as_ref()];
        let is_outside = |path: &&String| !task.files.iter().any(|pattern| matches_path(pattern, path));
        let path = paths.into_iter().flatten().find(is_outside)?;
        let is_new = self.outside.len() < MAX_OUTSIDE_FILES && self.outside.insert(path.clone());
        if is_new {
            self.outside_seqs.push_back(seq);
        }
        let count = u32::try_from(self.outside.len()).unwrap_or(u32::MAX);
        (is_new && count.is_multiple_of(at.max(1))).then(|| Finding {
            path: Some(path.clone()),
            times: Some(count),
            ..Finding::new(Detector::OutsideFiles, seq, "files", self.outside_seqs.iter().copied())
        })
    }

    /// Checks whether a call would change a protected path.
    pub fn check_call(&mut self, seq: i64, call: &ToolUse, task: &WatchedTask) -> Option<Finding> {
        self.check_protected(seq, &call.tool_use_id, (&call.tool, &call.input), task)
    }

    /// Checks a denied call, which has the complete input.
    pub fn check_denial(&mut self, seq: i64, denied: &DeniedCall, task: &WatchedTask) -> Option<Finding> {
        if denied.rule != PROTECTED_PATHS_RULE {
            return None;
        }
        let id = denied.tool_use_id.clone().unwrap_or_else(|| format!("event {seq}"));
        self.check_protected(seq, &id, (&denied.tool, &denied.input), task)
    }

    fn check_protected(
        &mut self,
        seq: i64,
        id: &str,
        (tool, input): (&str, &serde_json::Value),
        task: &WatchedTask,
    ) -> Option<Finding> {
        if task.protected.is_empty() || self.reported_calls.iter().any(|known| known == id) {
            return None;
        }
        let call = AnalysedCall::from_input(tool, input, &task.workspace);
        let path = call.changed_protected_path(&task.protected)?.to_owned();
        if self.reported_calls.len() >= MAX_REPORTED_CALLS {
            self.reported_calls.pop_front();
        }
        self.reported_calls.push_back(id.to_owned());
        Some(Finding {
            tool: Some(tool.to_owned()),
            path: Some(path.clone()),
            ..Finding::new(Detector::ProtectedPath, seq, path, [seq])
        })
    }

    fn file(&mut self, path: &str) -> &mut EditedFile {
        let known = self.files.iter().position(|file| file.path == path);
        let file = known.and_then(|at| self.files.remove(at)).unwrap_or_else(|| EditedFile {
            path: path.to_owned(),
            edits: VecDeque::new(),
            undone: VecDeque::new(),
            undone_count: 0,
            plain_edits: 0,
        });
        if self.files.len() >= MAX_FILES {
            self.files.pop_front();
        }
        self.files.push_back(file);
        let last = self.files.len() - 1;
        &mut self.files[last]
    }

    /// The highest number of undone edits of a file.
    pub fn undone_edits(&self) -> u32 {
        self.files.iter().map(|file| file.undone_count).max().unwrap_or(0)
    }

    pub fn is_undoing(&self, path: &str) -> bool {
        self.files.iter().any(|file| file.path == path && file.undone_count > 0 && file.plain_edits == 0)
    }

    pub fn outside_files(&self) -> u32 {
        u32::try_from(self.outside.len()).unwrap_or(u32::MAX)
    }
}

impl FileChange {
    /// The edit's lines; `None` without a complete diff.
    fn hash_edit(&self) -> Option<Edit> {
        if self.full_diff_truncated {
            return None;
        }
        let diff = self.full_diff.as_deref().unwrap_or(&self.diff_preview);
        let (mut removed, mut added) = (String::new(), String::new());
        // The lines before the first hunk are the header.
        for line in diff.lines().skip_while(|line| !line.starts_with("@@")) {
            if let Some(line) = line.strip_prefix('-') {
                removed.extend([line, "\n"]);
            } else if let Some(line) = line.strip_prefix('+') {
                added.extend([line, "\n"]);
            }
        }
        let is_empty = removed.is_empty() && added.is_empty();
        (!is_empty && removed != added)
            .then(|| Edit { forward: hash_parts(&[&removed, &added]), backward: hash_parts(&[&added, &removed]) })
    }

    /// The text that the change added.
    pub fn added_text(&self) -> String {
        let diff = self.full_diff.as_deref().unwrap_or(&self.diff_preview);
        let mut text = String::new();
        for line in diff.lines().skip_while(|line| !line.starts_with("@@")).filter_map(|line| line.strip_prefix('+')) {
            text.extend([line, "\n"]);
        }
        text
    }
}
