//! The summary of one sandbox's log.

use crate::event_log::log_event::LogEvent;
use crate::render::tool_input::describe_input;
use atoll_api::Sandbox;
use atoll_api::events::EventData;
use atoll_core::time::Timestamp;
use serde::Serialize;
use std::collections::BTreeMap;

/// One tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolStep {
    pub seq: i64,
    pub tool: String,
    pub input: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FileEdits {
    pub edits: u64,
    pub lines_added: u64,
    pub lines_removed: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SandboxSummary {
    pub id: String,
    pub state: String,
    pub outcome: Option<String>,
    pub reason: Option<String>,
    pub agent: Option<String>,
    pub model: Option<String>,
    /// From the sandbox's creation to its end, or to its last event.
    pub duration_s: f64,
    pub turns: i64,
    /// Absent if it is unknown.
    pub cost_usd: Option<f64>,
    /// The first stored event, if retention has removed older ones.
    #[serde(skip_serializing_if = "is_zero")]
    pub first_seq: i64,
    pub events: u64,
    pub events_by_type: BTreeMap<String, u64>,
    pub tools: BTreeMap<String, u64>,
    pub files: BTreeMap<String, FileEdits>,
    #[serde(skip)]
    pub sequence: Vec<ToolStep>,
    #[serde(skip)]
    last_at: Option<Timestamp>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Limit on the characters of a tool's input.
const MAX_INPUT_CHARS: usize = 200;

impl SandboxSummary {
    pub fn add_event(&mut self, event: &LogEvent) {
        self.events += 1;
        *self.events_by_type.entry(event.event_type().to_owned()).or_default() += 1;
        self.turns = self.turns.max(event.event.turn.unwrap_or(0));
        self.last_at = self.last_at.max(Some(event.event.at));
        match &event.data {
            EventData::AgentToolUse(call) => {
                *self.tools.entry(call.tool.clone()).or_default() += 1;
                let input = describe_input(&call.input).chars().take(MAX_INPUT_CHARS).collect();
                self.sequence.push(ToolStep { seq: event.event.seq, tool: call.tool.clone(), input });
            }
            EventData::AgentFileEdited(edit) => {
                let edits = self.files.entry(edit.file_path.clone()).or_default();
                edits.edits += 1;
                edits.lines_added += edit.lines_added;
                edits.lines_removed += edit.lines_removed;
            }
            _ => {}
        }
    }

    /// Adds the sandbox's own fields, after all of its events.
    pub fn add_sandbox(&mut self, sandbox: &Sandbox) {
        self.id = sandbox.id.to_string();
        self.state = sandbox.state.to_string();
        self.outcome = sandbox.outcome.map(|outcome| outcome.to_string());
        self.reason = sandbox.reason.as_ref().map(|reason| reason.code.clone());
        self.agent = sandbox.agent.clone();
        self.model = sandbox.settings.model.clone();
        self.cost_usd = sandbox.cost.model.map(|model| model + sandbox.cost.compute);
        if let Some(end) = sandbox.ended_at.or(self.last_at) {
            self.duration_s = end.elapsed_since(sandbox.created_at).as_secs_f64();
        }
    }
}

/// The first step at which two sequences differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Counted from 1.
    pub step: usize,
    pub left: Option<ToolStep>,
    pub right: Option<ToolStep>,
}

/// The first step with a different tool, and the first step with the same tool and a different input.
pub fn find_differences(left: &[ToolStep], right: &[ToolStep]) -> (Option<Difference>, Option<Difference>) {
    let first = |differs: fn(&ToolStep, &ToolStep) -> bool| {
        let common = left.iter().zip(right).position(|(left, right)| differs(left, right));
        let at = common.or_else(|| (left.len() != right.len()).then(|| left.len().min(right.len())))?;
        Some(Difference { step: at + 1, left: left.get(at).cloned(), right: right.get(at).cloned() })
    };
    let tool = first(|left, right| left.tool != right.tool);
    let input = first(|left, right| left.tool != right.tool || left.input != right.input);
    let input = input.filter(|found| tool.as_ref().is_none_or(|tool| tool.step != found.step));
    (tool, input)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::log_event::testing::event;
    use serde_json::json;

    fn sequence(tools: &[(&str, &str)]) -> Vec<ToolStep> {
        let one = |(at, (tool, input)): (usize, &(&str, &str))| ToolStep {
            seq: at as i64,
            tool: (*tool).into(),
            input: (*input).into(),
        };
        tools.iter().enumerate().map(one).collect()
    }

    fn steps(left: &[(&str, &str)], right: &[(&str, &str)]) -> (Option<usize>, Option<usize>) {
        let (tool, input) = find_differences(&sequence(left), &sequence(right));
        (tool.map(|found| found.step), input.map(|found| found.step))
    }

    #[test]
    fn finds_the_first_difference() {
        assert_eq!(steps(&[], &[]), (None, None));
        assert_eq!(steps(&[("A", "1"), ("B", "2")], &[("A", "1"), ("B", "2")]), (None, None));
        assert_eq!(steps(&[("A", "1"), ("B", "2")], &[("A", "1"), ("C", "2")]), (Some(2), None));
        assert_eq!(steps(&[("A", "1"), ("B", "2")], &[("A", "9"), ("C", "2")]), (Some(2), Some(1)));
        assert_eq!(steps(&[("A", "1")], &[("A", "9")]), (None, Some(1)));
        assert_eq!(steps(&[("A", "1")], &[("A", "1"), ("B", "")]), (Some(2), None));
        assert_eq!(steps(&[("A", "1")], &[]), (Some(1), None));
    }

    #[test]
    fn sums_up_a_log() {
        let mut summary = SandboxSummary::default();
        let events = [
            ("agent.tool_use", json!({"tool": "Bash", "input": {"command": "ls"}})),
            ("agent.file_edited", json!({"file_path": "a", "lines_added": 2, "lines_removed": 1})),
            ("agent.file_edited", json!({"file_path": "a", "lines_added": 1, "lines_removed": 0})),
        ];
        for (event_type, data) in events {
            summary.add_event(&event(event_type, Some(1), &data));
        }
        assert_eq!((summary.events, summary.turns), (3, 1));
        assert_eq!(summary.files["a"], FileEdits { edits: 2, lines_added: 3, lines_removed: 1 });
        assert_eq!(summary.tools, BTreeMap::from([("Bash".to_owned(), 1)]));
        assert_eq!(summary.sequence, [ToolStep { seq: 7, tool: "Bash".into(), input: "ls".into() }]);
    }
}
