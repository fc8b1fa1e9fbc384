//! Bounds of the texts in events. An event shows the start of a longer text, says the size of the whole and names the
//! blob that holds it.

use atoll_api::events::{EventData, FileEdited};
use atoll_core::bounds::MAX_EVENT_DATA_BYTES;
use atoll_protocol::EventBlob;
use serde_json::Value;

/// Maximum size of one text in an event.
const MAX_TEXT_BYTES: usize = 32 << 10;
/// Maximum size of that text as JSON: a control character needs six bytes.
const MAX_ESCAPED_BYTES: usize = 64 << 10;
/// Maximum size of a diff in an event.
const MAX_DIFF_BYTES: usize = 50_000;
/// Room for the marks of a clipped diff.
const DIFF_MARKS_BYTES: usize = 256;
/// Maximum depth of a value in an event's data.
const MAX_VALUE_DEPTH: usize = 24;

/// Returns the start of a text that fits into an event.
pub(super) fn clip_text(text: &str) -> &str {
    clip_escaped(text, MAX_TEXT_BYTES, MAX_ESCAPED_BYTES)
}

/// Returns the start of a text that is bounded as it is and as JSON.
pub(super) fn clip_escaped(text: &str, max_bytes: usize, max_escaped_bytes: usize) -> &str {
    let mut end = text.floor_char_boundary(max_bytes);
    while escaped_bytes(&text[..end]) > max_escaped_bytes {
        end = text.floor_char_boundary(end / 2);
    }
    &text[..end]
}

fn escaped_bytes(text: &str) -> usize {
    let bytes = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..0x20 => 6,
        _ => 1,
    });
    bytes.sum()
}

/// Clips a text and returns the whole one; `None` if it fits.
fn clip_string(text: &mut String) -> Option<String> {
    let end = clip_text(text).len();
    cut_at(text, end)
}

/// Cuts a text and returns the whole one; `None` if nothing is cut.
fn cut_at(text: &mut String, end: usize) -> Option<String> {
    if end == text.len() {
        return None;
    }
    let start = text[..end].to_owned();
    Some(std::mem::replace(text, start))
}

/// Replaces a value that is too large by the start of its text and returns the whole text. A value that is only nested
/// too deeply becomes its text.
fn clip_value(value: &mut Value) -> Option<String> {
    if let Value::String(text) = value {
        return clip_string(text);
    }
    let mut text = value.to_string();
    let whole = clip_string(&mut text);
    if whole.is_some() || !fits_depth(value, MAX_VALUE_DEPTH) {
        *value = Value::String(text);
    }
    whole
}

fn fits_depth(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(all) => levels > 0 && all.iter().all(|one| fits_depth(one, levels - 1)),
        Value::Object(all) => levels > 0 && all.values().all(|one| fits_depth(one, levels - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Bounds a value of a field that has no marks, such as the name of a mode.
pub(super) fn clip_short_value(value: &Value) -> Value {
    let mut value = value.clone();
    if clip_value(&mut value).is_some()
        && let Value::String(text) = &mut value
    {
        text.push('…');
    }
    value
}

/// Clips the text of an event and returns the blob with the whole one, if it is too long.
pub fn clip_event(data: &mut EventData) -> Option<EventBlob> {
    match data {
        EventData::AgentMessage(it) | EventData::AgentThinking(it) => {
            mark_clipped(clip_string(&mut it.text), &mut it.truncated, &mut it.text_bytes, &mut it.text_blob)
        }
        EventData::AgentToolUse(it) => {
            mark_clipped(clip_value(&mut it.input), &mut it.truncated, &mut it.input_bytes, &mut it.input_blob)
        }
        EventData::AgentToolCompleted(it) => {
            mark_clipped(clip_value(&mut it.output), &mut it.truncated, &mut it.output_bytes, &mut it.output_blob)
        }
        EventData::AgentSubagentCompleted(it) | EventData::AgentSkillCompleted(it) => {
            mark_clipped(clip_string(&mut it.output), &mut it.truncated, &mut it.output_bytes, &mut it.output_blob)
        }
        EventData::AgentError(it) => {
            mark_clipped(clip_string(&mut it.error), &mut it.truncated, &mut it.error_bytes, &mut it.error_blob)
        }
        EventData::AgentPlan(it) => {
            mark_clipped(clip_value(&mut it.items), &mut it.truncated, &mut it.items_bytes, &mut it.items_blob)
        }
        EventData::AgentSystemMessage(it) => {
            let whole = it.data.as_mut().and_then(clip_value);
            mark_clipped(whole, &mut it.truncated, &mut it.data_bytes, &mut it.data_blob)
        }
        EventData::AgentFileEdited(edit) => clip_diff(edit),
        _ => None,
    }
}

/// Clips a diff so that the event fits. A diff that the watcher truncated has the size of the whole already.
fn clip_diff(edit: &mut FileEdited) -> Option<EventBlob> {
    let mut diff = edit.full_diff.take()?;
    let others = serde_json::to_string(edit).map_or(0, |json| json.len());
    let room = MAX_EVENT_DATA_BYTES.saturating_sub(others + DIFF_MARKS_BYTES);
    let end = clip_escaped(&diff, MAX_DIFF_BYTES, room).len();
    let whole = cut_at(&mut diff, end);
    edit.full_diff = Some(diff);
    mark_clipped(whole, &mut edit.full_diff_truncated, &mut edit.full_diff_bytes, &mut edit.full_diff_blob)
}

/// Sets the marks of a clipped text. An agent that clipped the text itself has given the size of the whole.
fn mark_clipped(
    whole: Option<String>,
    truncated: &mut bool,
    bytes: &mut Option<u64>,
    name: &mut Option<String>,
) -> Option<EventBlob> {
    let whole = whole?;
    *truncated = true;
    bytes.get_or_insert(whole.len() as u64);
    let blob = EventBlob::new(whole);
    *name = Some(blob.sha256.clone());
    Some(blob)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_api::events::{AgentError, AgentPlan, DelegationCompleted, ToolCompleted, ToolUse};
    use atoll_core::bounds;
    use serde_json::json;

    #[test]
    fn a_long_text_names_the_blob_with_the_whole() {
        let long = "ä".repeat(20 << 10);
        let nested = json!({"command": long});
        let whole_input = nested.to_string();
        let cases = [
            (
                EventData::AgentToolCompleted(ToolCompleted {
                    output: long.as_str().into(),
                    ..ToolCompleted::default()
                }),
                "output",
                &long,
            ),
            (EventData::AgentToolUse(ToolUse { input: nested, ..ToolUse::default() }), "input", &whole_input),
            (EventData::AgentError(AgentError { error: long.clone(), ..AgentError::default() }), "error", &long),
            (
                EventData::AgentSubagentCompleted(DelegationCompleted {
                    output: long.clone(),
                    ..DelegationCompleted::default()
                }),
                "output",
                &long,
            ),
            (EventData::AgentPlan(AgentPlan { items: long.as_str().into(), ..AgentPlan::default() }), "items", &long),
        ];
        for (mut data, field, whole) in cases {
            let blob = clip_event(&mut data).unwrap();
            let json: Value = serde_json::from_str(data.to_json().get()).unwrap();
            assert_eq!(json["truncated"], true, "{field}");
            assert_eq!(json[format!("{field}_bytes")], whole.len(), "{field}");
            assert_eq!(json[format!("{field}_blob")], blob.sha256, "{field}");
            assert!(whole.starts_with(json[field].as_str().unwrap()), "{field}");
            assert_eq!(&blob.content, whole, "{field}");
        }
    }

    #[test]
    fn a_text_that_fits_has_no_marks() {
        let output = "x".repeat(MAX_TEXT_BYTES);
        let mut data =
            EventData::AgentToolCompleted(ToolCompleted { output: output.into(), ..ToolCompleted::default() });
        assert!(clip_event(&mut data).is_none());
        assert!(!data.to_json().get().contains("truncated"));
    }

    #[test]
    fn an_escaped_text_fits_into_an_event() {
        let output = "\u{1}".repeat(MAX_TEXT_BYTES);
        let mut data =
            EventData::AgentToolCompleted(ToolCompleted { output: output.into(), ..ToolCompleted::default() });
        assert_eq!(clip_event(&mut data).unwrap().content.len(), MAX_TEXT_BYTES);
        bounds::check_event_data(data.to_json().get()).unwrap();
    }

    #[test]
    fn a_long_diff_names_its_blob() {
        let edit = |diff: String| -> EventData {
            let edit = json!({"file_path": "a\u{1}".repeat(2_000), "change_type": "modified", "lines_added": 1,
                "lines_removed": 0, "diff_preview": "", "full_diff": diff});
            EventData::AgentFileEdited(serde_json::from_value(edit).unwrap())
        };
        assert!(clip_event(&mut edit("+x\n".repeat(1_000))).is_none());
        for diff in ["+x\n".repeat(100_000), "\u{1}".repeat(50_000)] {
            let mut data = edit(diff.clone());
            let blob = clip_event(&mut data).unwrap();
            bounds::check_event_data(data.to_json().get()).unwrap();
            let EventData::AgentFileEdited(edit) = data else { panic!() };
            assert!(edit.full_diff_truncated && diff.starts_with(&edit.full_diff.unwrap()));
            assert_eq!((edit.full_diff_bytes, edit.full_diff_blob), (Some(diff.len() as u64), Some(blob.sha256)));
            assert_eq!(blob.content, diff);
        }
    }

    #[test]
    fn a_deep_value_becomes_its_text() {
        let mut deep = json!(1);
        for _ in 0..MAX_VALUE_DEPTH + 1 {
            deep = json!([deep]);
        }
        let text = deep.to_string();
        assert_eq!((clip_value(&mut deep), deep), (None, Value::String(text)));
    }

    #[test]
    fn the_size_of_an_agent_that_clipped_itself_stays() {
        let tool = ToolCompleted {
            output: "x".repeat(MAX_TEXT_BYTES + 1).into(),
            output_bytes: Some(1 << 30),
            ..ToolCompleted::default()
        };
        let mut data = EventData::AgentToolCompleted(tool);
        assert!(clip_event(&mut data).is_some());
        assert!(data.to_json().get().contains("\"output_bytes\":1073741824"));
    }
}
