//! What a sandbox's log must be. Pure.

use super::promise::Verdict;
use crate::reading::entry::Entry;

/// Every seq from the first to the last, once and in order.
pub fn is_whole(entries: &[Entry], last_seq: i64) -> Verdict {
    let gap = (1..).zip(entries).find(|(expected, entry)| entry.seq != *expected);
    match gap {
        Some((expected, entry)) => Verdict::Broken(format!("event {expected} should come, and {} did", entry.seq)),
        None if i64::try_from(entries.len()).unwrap_or(-1) != last_seq => {
            Verdict::Broken(format!("there are {} events, and the last one has number {last_seq}", entries.len()))
        }
        None => Verdict::Held(format!("{} events, none missing, none twice", entries.len())),
    }
}

/// Every edit that was asked for, with a diff that has the new line in it.
pub fn edits(entries: &[Entry], file: &str, lines: &[&str]) -> Verdict {
    let edited = entries.iter().filter(|entry| entry.event_type == "agent.file_edited");
    let edited: Vec<&Entry> = edited.filter(|entry| entry.text("file_path") == Some(file)).collect();
    for line in lines {
        let added = format!("+{line}");
        let seen = edited
            .iter()
            .any(|entry| entry.text("full_diff").is_some_and(|diff| diff.lines().any(|in_diff| in_diff == added)));
        if !seen {
            return Verdict::Broken(format!("no edit of {file} with `{added}` among {}", edited.len()));
        }
    }
    Verdict::Held(format!("{} edits of {file}", edited.len()))
}

/// What the agent's own command said of its user.
pub fn agent_is_nobody_special(entries: &[Entry]) -> Result<(), String> {
    let done =
        entries.iter().find(|entry| entry.event_type == "agent.tool_completed" && entry.text("tool") == Some("Bash"));
    match done.and_then(|entry| entry.text("output")).map(str::trim) {
        Some(uid) if uid != "0" && uid.parse::<u32>().is_ok() => Ok(()),
        said => Err(format!("the agent's own `id -u` said {said:?}")),
    }
}

/// A message that was sent in the middle of a turn got into it.
pub fn steered(acknowledged: &Entry, milliseconds: u128) -> Verdict {
    let how = acknowledged.text("how").unwrap_or("not said how");
    match (acknowledged.event_type.as_str(), acknowledged.turn) {
        ("message.acknowledged", Some(turn)) if how == "injected" => {
            Verdict::Held(format!("injected into turn {turn} after {milliseconds} ms"))
        }
        (kind, turn) => Verdict::Broken(format!("{kind}: {how}, turn {turn:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn entry(seq: i64, kind: &str, data: &Value) -> Entry {
        let event = json!({ "seq": seq, "type": kind, "at": "2026-01-31T12:00:00Z", "turn": 1, "data": data });
        Entry::parse(&event.to_string()).unwrap()
    }

    #[test]
    fn a_gap_a_repeat_and_a_missing_end_are_seen() {
        let log = |seqs: &[i64]| seqs.iter().map(|seq| entry(*seq, "x", &json!({}))).collect::<Vec<_>>();
        assert!(matches!(is_whole(&log(&[1, 2, 3]), 3), Verdict::Held(_)));
        for (seqs, last) in [(&[1, 3][..], 3), (&[1, 2, 2], 3), (&[2, 3], 3), (&[1, 2], 3), (&[2, 1], 2), (&[], 1)] {
            assert!(matches!(is_whole(&log(seqs), last), Verdict::Broken(_)), "{seqs:?}");
        }
    }

    #[test]
    fn an_edit_counts_by_its_diff() {
        let edit = |diff: &str| entry(1, "agent.file_edited", &json!({"file_path": "a", "full_diff": diff}));
        assert!(matches!(edits(&[edit("@@\n+one\n"), edit("-one\n+two\n")], "a", &["one", "two"]), Verdict::Held(_)));
        assert!(matches!(edits(&[edit("@@\n+one\n")], "a", &["one", "two"]), Verdict::Broken(_)));
        assert!(matches!(edits(&[edit("@@\n+one\n")], "b", &["one"]), Verdict::Broken(_)));
    }

    #[test]
    fn an_agent_that_is_root_is_seen() {
        let ran = |output: &str| [entry(1, "agent.tool_completed", &json!({"tool": "Bash", "output": output}))];
        assert!(agent_is_nobody_special(&ran("1000\n")).is_ok());
        assert!(agent_is_nobody_special(&ran("0\n")).is_err() && agent_is_nobody_special(&ran("")).is_err());
        assert!(agent_is_nobody_special(&[]).is_err());
    }

    #[test]
    fn only_injected_is_steered() {
        let held = |kind, how| matches!(steered(&entry(1, kind, &json!({"how": how})), 3), Verdict::Held(_));
        assert!(held("message.acknowledged", "injected"));
        assert!(!held("message.acknowledged", "new_turn") && !held("message.undeliverable", "injected"));
    }
}
