//! What one sandbox's log comes down to.

use crate::reading::entry::Entry;
use crate::render::line;
use atoll_core::time::Timestamp;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// One use of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Use {
    pub seq: i64,
    pub tool: String,
    pub input: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Edits {
    pub edits: u64,
    pub lines_added: i64,
    pub lines_removed: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Summary {
    pub id: String,
    pub state: String,
    pub outcome: Option<String>,
    pub reason: Option<String>,
    pub agent: Option<String>,
    pub model: Option<String>,
    /// From its making to its end, or to the last thing that happened.
    pub duration_s: f64,
    pub turns: i64,
    pub cost_usd: f64,
    /// 0 unless what was before it is no longer kept.
    #[serde(skip_serializing_if = "is_zero")]
    pub first_seq: i64,
    pub events: u64,
    pub events_by_type: BTreeMap<String, u64>,
    pub tools: BTreeMap<String, u64>,
    pub files: BTreeMap<String, Edits>,
    #[serde(skip)]
    pub sequence: Vec<Use>,
    #[serde(skip)]
    last_at: Option<Timestamp>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Of a tool's input only the beginning is kept.
const INPUT: usize = 200;

impl Summary {
    pub fn add(&mut self, entry: &Entry) {
        self.events += 1;
        *self.events_by_type.entry(entry.event_type.clone()).or_default() += 1;
        self.turns = self.turns.max(entry.turn.unwrap_or(0));
        self.last_at = self.last_at.max(entry.at.parse().ok());
        match entry.event_type.as_str() {
            "agent.tool_use" => {
                let tool = entry.text("tool").unwrap_or("?").to_owned();
                *self.tools.entry(tool.clone()).or_default() += 1;
                let input = line::input(&entry.data).chars().take(INPUT).collect();
                self.sequence.push(Use { seq: entry.seq, tool, input });
            }
            "agent.file_edited" => {
                let edits = self.files.entry(entry.text("file_path").unwrap_or("?").to_owned()).or_default();
                edits.edits += 1;
                edits.lines_added += entry.data["lines_added"].as_i64().unwrap_or(0);
                edits.lines_removed += entry.data["lines_removed"].as_i64().unwrap_or(0);
            }
            _ => {}
        }
    }

    /// What the sandbox itself says, after all of its events.
    pub fn finish(&mut self, row: &Value) {
        let said = |value: &Value| value.as_str().map(str::to_owned);
        self.id = said(&row["id"]).unwrap_or_default();
        self.state = said(&row["state"]).unwrap_or_default();
        self.outcome = said(&row["outcome"]);
        self.reason = said(&row["reason"]["code"]);
        self.agent = said(&row["agent"]);
        self.model = said(&row["settings"]["model"]);
        self.cost_usd = ["model", "compute"].iter().filter_map(|part| row["cost"][part].as_f64()).sum();
        let time = |value: &Value| value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
        if let (Some(start), Some(end)) = (time(&row["created_at"]), time(&row["ended_at"]).or(self.last_at)) {
            self.duration_s = end.elapsed_since(start).as_secs_f64();
        }
    }
}

/// Where two sequences part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Counted from 1.
    pub step: usize,
    pub left: Option<Use>,
    pub right: Option<Use>,
}

/// The first step at which another tool is used, and the first at which the same tool is given something else.
pub fn differences(left: &[Use], right: &[Use]) -> (Option<Difference>, Option<Difference>) {
    let first = |differs: fn(&Use, &Use) -> bool| {
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
    use serde_json::json;

    fn uses(tools: &[(&str, &str)]) -> Vec<Use> {
        let one = |(at, (tool, input)): (usize, &(&str, &str))| Use {
            seq: at as i64,
            tool: (*tool).into(),
            input: (*input).into(),
        };
        tools.iter().enumerate().map(one).collect()
    }

    fn steps(left: &[(&str, &str)], right: &[(&str, &str)]) -> (Option<usize>, Option<usize>) {
        let (tool, input) = differences(&uses(left), &uses(right));
        (tool.map(|found| found.step), input.map(|found| found.step))
    }

    #[test]
    fn the_first_difference_is_found() {
        assert_eq!(steps(&[], &[]), (None, None));
        assert_eq!(steps(&[("A", "1"), ("B", "2")], &[("A", "1"), ("B", "2")]), (None, None));
        assert_eq!(steps(&[("A", "1"), ("B", "2")], &[("A", "1"), ("C", "2")]), (Some(2), None));
        assert_eq!(steps(&[("A", "1"), ("B", "2")], &[("A", "9"), ("C", "2")]), (Some(2), Some(1)));
        assert_eq!(steps(&[("A", "1")], &[("A", "9")]), (None, Some(1)));
        assert_eq!(steps(&[("A", "1")], &[("A", "1"), ("B", "")]), (Some(2), None));
        assert_eq!(steps(&[("A", "1")], &[]), (Some(1), None));
    }

    #[test]
    fn a_log_is_summed_up() {
        let mut summary = Summary::default();
        let events = [
            (1, "agent.tool_use", json!({"tool": "Bash", "input": {"command": "ls"}})),
            (2, "agent.file_edited", json!({"file_path": "a", "lines_added": 2, "lines_removed": 1})),
            (3, "agent.file_edited", json!({"file_path": "a", "lines_added": 1, "lines_removed": 0})),
        ];
        for (seq, kind, data) in events {
            let event = json!({"seq": seq, "type": kind, "at": "2026-01-01T00:00:05Z", "turn": 1, "data": data});
            summary.add(&Entry::parse(&event.to_string()).unwrap());
        }
        summary.finish(&json!({
            "id": "sbx_1", "state": "running", "created_at": "2026-01-01T00:00:00Z", "cost": {"model": 1.5, "compute": 0.5},
        }));
        assert_eq!((summary.events, summary.turns, summary.duration_s, summary.cost_usd), (3, 1, 5.0, 2.0));
        assert_eq!(summary.files["a"], Edits { edits: 2, lines_added: 3, lines_removed: 1 });
        assert_eq!(summary.tools, BTreeMap::from([("Bash".to_owned(), 1)]));
        assert_eq!(summary.sequence, [Use { seq: 1, tool: "Bash".into(), input: "ls".into() }]);
    }
}
