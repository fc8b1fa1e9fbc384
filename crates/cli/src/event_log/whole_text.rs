//! Texts that an event shows in part: their marks, and the blobs with the whole.

use super::log_event::LogEvent;
use crate::connect::ConnectedClient;
use crate::failure::Result;
use atoll_api::ErrorCode;
use atoll_api::events::EventData;
use atoll_core::id::SandboxId;
use atoll_core::size::format_bytes;

/// The mark of a text that an event shows in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TruncatedText {
    /// Size of the whole text.
    pub bytes: Option<u64>,
    /// Name of the blob with the whole text.
    pub blob: Option<String>,
}

impl TruncatedText {
    /// The mark of an event's text; `None` if the event shows all of it.
    pub fn of(data: &EventData) -> Option<Self> {
        let (truncated, bytes, blob) = match data {
            EventData::AgentMessage(it) | EventData::AgentThinking(it) => (it.truncated, it.text_bytes, &it.text_blob),
            EventData::AgentToolUse(it) => (it.truncated, it.input_bytes, &it.input_blob),
            EventData::AgentToolCompleted(it) => (it.truncated, it.output_bytes, &it.output_blob),
            EventData::AgentSubagentCompleted(it) | EventData::AgentSkillCompleted(it) => {
                (it.truncated, it.output_bytes, &it.output_blob)
            }
            EventData::AgentError(it) => (it.truncated, it.error_bytes, &it.error_blob),
            EventData::AgentPlan(it) => (it.truncated, it.items_bytes, &it.items_blob),
            EventData::AgentSystemMessage(it) => (it.truncated, it.data_bytes, &it.data_blob),
            EventData::AgentFileEdited(it) => (it.full_diff_truncated, it.full_diff_bytes, &it.full_diff_blob),
            EventData::ApprovalRequested(it) => (it.input_truncated, it.input_bytes, &it.sha256),
            _ => return None,
        };
        truncated.then(|| Self { bytes, blob: blob.clone() })
    }

    /// Says how to get the whole text.
    pub fn describe(&self, sandbox: SandboxId) -> String {
        let size = self.bytes.map(|bytes| format!(": the whole has {}", format_bytes(bytes))).unwrap_or_default();
        match &self.blob {
            Some(blob) => format!("truncated{size}; print it with `atoll sandbox blob {sandbox} {blob}`"),
            None => format!("truncated{size}"),
        }
    }
}

/// Replaces the text of a truncated event by the whole one. The server may not have the blob: then the text stays.
pub async fn complete_event(event: &mut LogEvent, client: &ConnectedClient) -> Result {
    if let EventData::AgentFileEdited(edit) = &mut event.data
        && let Some(diff) = &edit.full_diff
    {
        edit.diff_preview.clone_from(diff);
    }
    let Some(TruncatedText { blob: Some(blob), .. }) = TruncatedText::of(&event.data) else { return Ok(()) };
    if let Some(whole) = download_text(client, event.event.sandbox_id, &blob).await? {
        set_whole_text(&mut event.data, whole);
    }
    Ok(())
}

/// Downloads a blob as text; `None` if the server does not have it.
pub async fn download_text(client: &ConnectedClient, sandbox: SandboxId, blob: &str) -> Result<Option<String>> {
    let mut response = match client.download_blob(sandbox, blob).await {
        Ok(response) => response,
        Err(error) if error.code() == Some(ErrorCode::NotFound) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut content = Vec::new();
    while let Some(chunk) = client.read_chunk(&mut response).await? {
        content.extend_from_slice(&chunk);
    }
    Ok(Some(String::from_utf8_lossy(&content).into_owned()))
}

/// Sets the whole text. The mark stays where the blob itself is only a part.
fn set_whole_text(data: &mut EventData, whole: String) {
    let is_whole = |bytes: Option<u64>| bytes.is_none_or(|bytes| whole.len() as u64 >= bytes);
    match data {
        EventData::AgentMessage(it) | EventData::AgentThinking(it) => {
            it.truncated = !is_whole(it.text_bytes);
            it.text = whole;
        }
        EventData::AgentToolUse(it) => {
            it.truncated = !is_whole(it.input_bytes);
            it.input = serde_json::from_str(&whole).unwrap_or_else(|_| whole.into());
        }
        EventData::AgentToolCompleted(it) => {
            it.truncated = !is_whole(it.output_bytes);
            it.output = whole.into();
        }
        EventData::AgentSubagentCompleted(it) | EventData::AgentSkillCompleted(it) => {
            it.truncated = !is_whole(it.output_bytes);
            it.output = whole;
        }
        EventData::AgentError(it) => {
            it.truncated = !is_whole(it.error_bytes);
            it.error = whole;
        }
        EventData::AgentPlan(it) => {
            it.truncated = !is_whole(it.items_bytes);
            it.items = serde_json::from_str(&whole).unwrap_or_else(|_| whole.into());
        }
        EventData::AgentSystemMessage(it) => {
            it.truncated = !is_whole(it.data_bytes);
            it.data = Some(serde_json::from_str(&whole).unwrap_or_else(|_| whole.into()));
        }
        EventData::AgentFileEdited(it) => {
            it.full_diff_truncated = !is_whole(it.full_diff_bytes);
            it.diff_preview.clone_from(&whole);
            it.full_diff = Some(whole);
        }
        EventData::ApprovalRequested(it) => {
            it.input_truncated = !is_whole(it.input_bytes);
            it.input = Some(serde_json::from_str(&whole).unwrap_or_else(|_| whole.into()));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::log_event::testing::event;
    use super::*;
    use serde_json::json;

    #[test]
    fn a_truncated_text_says_how_to_get_the_whole() {
        let data = json!({"tool": "Bash", "tool_use_id": "t", "output": "x", "is_error": false, "truncated": true,
            "output_bytes": 300_000, "output_blob": "ab".repeat(32)});
        let mut event = event("agent.tool_completed", None, &data);
        let mark = TruncatedText::of(&event.data).unwrap().describe(event.event.sandbox_id);
        assert!(
            mark.starts_with("truncated: the whole has 293.0 KiB; print it with `atoll sandbox blob sbx_"),
            "{mark}"
        );
        set_whole_text(&mut event.data, "y".repeat(299_999));
        assert!(TruncatedText::of(&event.data).is_some(), "the blob is a part");
        set_whole_text(&mut event.data, "y".repeat(300_000));
        assert_eq!(TruncatedText::of(&event.data), None);
        assert!(matches!(event.data, EventData::AgentToolCompleted(it) if it.output == "y".repeat(300_000)));
    }
}
