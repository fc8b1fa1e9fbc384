//! Checks of a sandbox's event log.

use super::promise::PromiseVerdict;
use crate::event_log::log_event::LogEvent;
use crate::render::plain_value::describe_output;
use atoll_api::events::{EventData, FileEdited};
use atoll_core::message::DeliveryMethod;

/// Requires every seq from 1 to the last, once and in order.
pub fn check_sequence(seqs: &[i64], last_seq: i64) -> PromiseVerdict {
    let gap = (1..).zip(seqs).find(|(expected, seq)| *seq != expected);
    match gap {
        Some((expected, seq)) => PromiseVerdict::Broken(format!("expected event {expected}, found {seq}")),
        None if i64::try_from(seqs.len()).unwrap_or(-1) != last_seq => {
            PromiseVerdict::Broken(format!("the log has {} events, but its last seq is {last_seq}", seqs.len()))
        }
        None => PromiseVerdict::Held(format!("{} events without gaps or repeats", seqs.len())),
    }
}

/// Requires an edit event with a diff for every expected line.
pub fn check_edits(events: &[LogEvent], file: &str, lines: &[&str]) -> PromiseVerdict {
    let edits = events.iter().filter_map(|event| match &event.data {
        EventData::AgentFileEdited(edit) if edit.file_path == file => Some(edit),
        _ => None,
    });
    let edits: Vec<&FileEdited> = edits.collect();
    for line in lines {
        let added = format!("+{line}");
        let has_line =
            |edit: &&FileEdited| edit.full_diff.iter().flat_map(|diff| diff.lines()).any(|line| line == added);
        if !edits.iter().any(has_line) {
            return PromiseVerdict::Broken(format!("no edit of {file} with `{added}` among {}", edits.len()));
        }
    }
    PromiseVerdict::Held(format!("{} edits of {file}", edits.len()))
}

/// Requires that the agent's `id -u` printed a uid other than 0.
pub fn check_agent_uid(events: &[LogEvent]) -> Result<(), String> {
    let output = events.iter().find_map(|event| match &event.data {
        EventData::AgentToolCompleted(call) if call.tool == "Bash" => Some(describe_output(&call.output)),
        _ => None,
    });
    match output.as_deref().map(str::trim) {
        Some(uid) if uid != "0" && uid.parse::<u32>().is_ok() => Ok(()),
        other => Err(format!("the agent's `id -u` printed {other:?}")),
    }
}

/// Requires that the agent got the message during its turn.
pub fn check_steered(report: &LogEvent, milliseconds: u128) -> PromiseVerdict {
    match (&report.data, report.event.turn) {
        (EventData::MessageAcknowledged(message), Some(turn)) if message.how == Some(DeliveryMethod::Injected) => {
            PromiseVerdict::Held(format!("injected into turn {turn} after {milliseconds} ms"))
        }
        (EventData::MessageAcknowledged(message), turn) => {
            PromiseVerdict::Broken(format!("acknowledged: {:?}, turn {turn:?}", message.how))
        }
        (_, turn) => PromiseVerdict::Broken(format!("{}, turn {turn:?}", report.event_type())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::log_event::testing::event;
    use atoll_core::id::MessageId;
    use serde_json::json;

    #[test]
    fn detects_gaps_repeats_and_a_missing_end() {
        assert!(matches!(check_sequence(&[1, 2, 3], 3), PromiseVerdict::Held(_)));
        for (seqs, last) in [(&[1, 3][..], 3), (&[1, 2, 2], 3), (&[2, 3], 3), (&[1, 2], 3), (&[2, 1], 2), (&[], 1)] {
            assert!(matches!(check_sequence(seqs, last), PromiseVerdict::Broken(_)), "{seqs:?}");
        }
    }

    #[test]
    fn an_edit_is_matched_by_its_diff() {
        let edit = |diff: &str| event("agent.file_edited", None, &json!({"file_path": "a", "full_diff": diff}));
        let both = [edit("@@\n+one\n"), edit("-one\n+two\n")];
        assert!(matches!(check_edits(&both, "a", &["one", "two"]), PromiseVerdict::Held(_)));
        assert!(matches!(check_edits(&[edit("@@\n+one\n")], "a", &["one", "two"]), PromiseVerdict::Broken(_)));
        assert!(matches!(check_edits(&[edit("@@\n+one\n")], "b", &["one"]), PromiseVerdict::Broken(_)));
    }

    #[test]
    fn detects_an_agent_that_is_root() {
        let ran = |output: &str| [event("agent.tool_completed", None, &json!({"tool": "Bash", "output": output}))];
        assert!(check_agent_uid(&ran("1000\n")).is_ok());
        assert!(check_agent_uid(&ran("0\n")).is_err() && check_agent_uid(&ran("")).is_err());
        assert!(check_agent_uid(&[]).is_err());
    }

    #[test]
    fn only_injected_counts_as_steered() {
        let holds = |event_type: &str, state: &str, how: &str| {
            let data = json!({"message_id": MessageId::new(), "state": state, "how": how, "reason": null});
            matches!(check_steered(&event(event_type, Some(1), &data), 3), PromiseVerdict::Held(_))
        };
        assert!(holds("message.acknowledged", "acknowledged", "injected"));
        assert!(!holds("message.acknowledged", "acknowledged", "new_turn"));
        assert!(!holds("message.undeliverable", "undeliverable", "injected"));
    }
}
