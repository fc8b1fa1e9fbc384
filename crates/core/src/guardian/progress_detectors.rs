//! Detectors of work without progress: talking without acting, and work that changes no file.

use super::{Detector, Finding, MAX_EVIDENCE};
use crate::time::Timestamp;
use std::collections::VecDeque;
use std::time::Duration;

/// A longer pause between two events is no work: the agent waits for a person, a model or a long command.
const MAX_WORK_GAP: Duration = Duration::from_secs(5 * 60);
/// Fewer tool calls without a change are no sign of anything.
const MIN_CALLS_WITHOUT_CHANGE: u32 = 20;

/// Counts the agent's texts since it last acted. A person's message starts over: a conversation is no trouble.
#[derive(Debug, Default)]
pub(super) struct TalkDetector {
    texts: u32,
    seqs: VecDeque<i64>,
}

impl TalkDetector {
    pub fn record_text(&mut self, seq: i64, at: u32) -> Option<Finding> {
        self.texts = self.texts.saturating_add(1);
        if self.seqs.len() >= MAX_EVIDENCE {
            self.seqs.pop_front();
        }
        self.seqs.push_back(seq);
        self.texts.is_multiple_of(at.max(1)).then(|| Finding {
            times: Some(self.texts),
            ..Finding::new(Detector::Talking, seq, "texts", self.seqs.iter().copied())
        })
    }

    pub fn record_action(&mut self) {
        self.texts = 0;
        self.seqs.clear();
    }

    pub const fn texts(&self) -> u32 {
        self.texts
    }
}

/// Measures the time that the agent worked since a file last changed.
#[derive(Debug, Default)]
pub(super) struct ChangeDetector {
    worked: Duration,
    calls: u32,
    last_event: Option<Timestamp>,
    first_seq: Option<i64>,
    /// Minutes of the last finding.
    reported: u32,
}

impl ChangeDetector {
    /// Records an event of the agent's turn.
    pub fn record_work(&mut self, seq: i64, now: Timestamp, is_call: bool, at: u32) -> Option<Finding> {
        let gap = self.last_event.map_or(Duration::ZERO, |last| now.elapsed_since(last));
        self.last_event = Some(now);
        self.worked += gap.min(MAX_WORK_GAP);
        self.calls += u32::from(is_call);
        let first = *self.first_seq.get_or_insert(seq);
        let minutes = self.minutes();
        let is_due = minutes >= self.reported.saturating_add(at.max(1)) && self.calls >= MIN_CALLS_WITHOUT_CHANGE;
        is_due.then(|| {
            self.reported = minutes;
            Finding { times: Some(minutes), ..Finding::new(Detector::NoFileChange, seq, "files", [first, seq]) }
        })
    }

    pub fn record_change(&mut self, now: Timestamp) {
        *self = Self { last_event: Some(now), ..Self::default() };
    }

    /// Time between turns is no work.
    pub fn end_turn(&mut self) {
        self.last_event = None;
    }

    pub fn minutes(&self) -> u32 {
        u32::try_from(self.worked.as_secs() / 60).unwrap_or(u32::MAX)
    }
}
