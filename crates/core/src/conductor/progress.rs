//! What one agent does, built from its events.

use super::anomaly::AnomalyStreak;
use super::latency::LatencyBaseline;
use super::phase::{Phase, call_phase};
use crate::event::{Event, kind};
use crate::observation::is_progress;
use crate::sandbox::Activity;
use crate::string_enum;
use crate::time::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// The newest steps decide the phase.
const PHASE_STEPS: usize = 8;
/// Tool calls without a result that are remembered.
const MAX_OPEN_CALLS: usize = 64;
/// Results that the error rate covers.
const MAX_RESULTS: usize = 20;
/// Edited files that are remembered.
pub const MAX_FILES: usize = 64;
/// Longest path that is remembered.
const MAX_PATH_BYTES: usize = 500;
/// An agent that says it works and sends no work event for this long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(15 * 60);
/// The same call with the same outcome this often in a row.
const STUCK_REPEATS: u32 = 5;
/// Errors in a row.
const STUCK_ERRORS: usize = 6;

string_enum! {
    /// Why an agent counts as stuck.
    "stuck reason"
    StuckReason {
        /// It says that it works and sends no work event.
        NoProgress = "no_progress",
        /// It makes the same call again and again.
        RepeatedCall = "repeated_call",
        /// Its newest calls all failed.
        RepeatedErrors = "repeated_errors",
    }
}

#[derive(Debug, Clone, PartialEq)]
struct OpenCall {
    id: String,
    call: u64,
    at: Timestamp,
}

/// The state of one agent. Its size is bounded, whatever the agent sends.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentProgress {
    last_seq: i64,
    last_progress: Option<Timestamp>,
    steps: VecDeque<Phase>,
    open_calls: VecDeque<OpenCall>,
    /// For each of the newest results, whether it is an error.
    results: VecDeque<bool>,
    /// Hash of the last call with its outcome, and how often it came in a row.
    streak: Option<(u64, u32)>,
    latency: LatencyBaseline,
    /// The newest edited files, without repeats.
    files: VecDeque<String>,
    pub anomalies: AnomalyStreak,
}

#[derive(Deserialize)]
struct CallData {
    #[serde(default)]
    tool: String,
    tool_use_id: String,
    #[serde(default)]
    input: Value,
}

#[derive(Deserialize)]
struct ResultData {
    tool_use_id: String,
    #[serde(default)]
    is_error: bool,
}

#[derive(Deserialize)]
struct EditData {
    file_path: String,
}

fn push_bounded<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(item);
}

impl AgentProgress {
    /// The newest event that the state includes.
    pub const fn last_seq(&self) -> i64 {
        self.last_seq
    }

    /// Adds an event. Events are in the order of `seq`; one that is included already changes nothing.
    pub fn observe_event(&mut self, event: &Event) {
        if event.seq <= self.last_seq {
            return;
        }
        self.last_seq = event.seq;
        let (event_type, data) = (event.event_type.as_str(), event.data.get());
        if is_progress(event_type) {
            self.last_progress = Some(event.received_at);
        }
        match event_type {
            kind::AGENT_STARTED => {
                self.last_progress = Some(event.received_at);
                self.steps.clear();
                self.open_calls.clear();
                self.streak = None;
            }
            kind::AGENT_TOOL_USE => {
                if let Ok(call) = serde_json::from_str::<CallData>(data) {
                    self.record_call(call, event.at);
                }
            }
            kind::AGENT_TOOL_COMPLETED => {
                if let Ok(result) = serde_json::from_str::<ResultData>(data) {
                    self.record_result(&result, event.at);
                }
            }
            kind::AGENT_FILE_EDITED => {
                if let Ok(edit) = serde_json::from_str::<EditData>(data) {
                    self.record_edit(edit.file_path);
                }
            }
            kind::AGENT_PLAN => push_bounded(&mut self.steps, Phase::Planning, PHASE_STEPS),
            _ => {}
        }
    }

    fn record_call(&mut self, call: CallData, at: Timestamp) {
        push_bounded(&mut self.steps, call_phase(&call.tool, &call.input), PHASE_STEPS);
        let hash = hash_value(&(call.tool, call.input.to_string()));
        push_bounded(&mut self.open_calls, OpenCall { id: call.tool_use_id, call: hash, at }, MAX_OPEN_CALLS);
    }

    fn record_result(&mut self, result: &ResultData, at: Timestamp) {
        push_bounded(&mut self.results, result.is_error, MAX_RESULTS);
        let Some(position) = self.open_calls.iter().position(|call| call.id == result.tool_use_id) else { return };
        let Some(call) = self.open_calls.remove(position) else { return };
        self.latency.record_call(at.elapsed_since(call.at).as_secs_f64());
        let this = hash_value(&(call.call, result.is_error));
        self.streak = match self.streak {
            Some((last, times)) if last == this => Some((this, times.saturating_add(1))),
            Some(_) | None => Some((this, 1)),
        };
    }

    fn record_edit(&mut self, mut path: String) {
        push_bounded(&mut self.steps, Phase::Editing, PHASE_STEPS);
        // The same command after a change is no repetition.
        self.streak = None;
        path.truncate(path.floor_char_boundary(MAX_PATH_BYTES));
        self.files.retain(|known| *known != path);
        push_bounded(&mut self.files, path, MAX_FILES);
    }

    /// The phase of an agent with this activity: the most frequent one of its newest steps, and of equals the newest.
    pub fn phase(&self, activity: Activity) -> Phase {
        match activity {
            Activity::Starting => Phase::Starting,
            Activity::Working | Activity::Stalled | Activity::Unreachable => {
                let count = |phase: Phase| self.steps.iter().filter(|step| **step == phase).count();
                self.steps.iter().copied().max_by_key(|phase| count(*phase)).unwrap_or(Phase::Planning)
            }
            Activity::WaitingApproval
            | Activity::WaitingMessage
            | Activity::RateLimited
            | Activity::Paused
            | Activity::LimitPaused => Phase::Waiting,
            Activity::TakingResults | Activity::Ended => Phase::Finishing,
        }
    }

    /// Why the agent counts as stuck, if it does. `since` is when its sandbox entered its state.
    pub fn stuck_reason(&self, activity: Activity, since: Timestamp, now: Timestamp) -> Option<StuckReason> {
        match activity {
            Activity::Stalled => return Some(StuckReason::NoProgress),
            Activity::Working => {}
            Activity::Starting
            | Activity::WaitingApproval
            | Activity::WaitingMessage
            | Activity::RateLimited
            | Activity::Paused
            | Activity::LimitPaused
            | Activity::Unreachable
            | Activity::TakingResults
            | Activity::Ended => return None,
        }
        let errors = self.results.iter().rev().take_while(|is_error| **is_error).count();
        if self.streak.is_some_and(|(_, times)| times >= STUCK_REPEATS) {
            Some(StuckReason::RepeatedCall)
        } else if errors >= STUCK_ERRORS {
            Some(StuckReason::RepeatedErrors)
        } else if now.elapsed_since(self.last_progress.unwrap_or(since).max(since)) >= STUCK_AFTER {
            Some(StuckReason::NoProgress)
        } else {
            None
        }
    }

    /// When the newest work event came.
    pub const fn last_progress(&self) -> Option<Timestamp> {
        self.last_progress
    }

    /// The newest edited files, oldest first.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(String::as_str)
    }

    pub fn latency_z(&self) -> f64 {
        self.latency.z_score()
    }

    /// The share of errors among the newest results.
    pub fn error_rate(&self) -> f64 {
        let count = |all: usize| f64::from(u32::try_from(all).unwrap_or(u32::MAX));
        // Fewer results say little.
        let all = self.results.len().max(STUCK_ERRORS);
        count(self.results.iter().filter(|is_error| **is_error).count()) / count(all)
    }
}

fn hash_value(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
