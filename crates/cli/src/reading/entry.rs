//! An event as it was read: what is shown of it, and its own text.

use atoll_core::event::kind;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Clone, Deserialize)]
pub struct Entry {
    pub seq: i64,
    #[serde(rename = "type")]
    pub event_type: String,
    pub actor: Option<String>,
    pub at: String,
    pub turn: Option<i64>,
    #[serde(default)]
    pub data: Value,
    /// As the server wrote it.
    #[serde(skip)]
    pub raw: String,
}

impl Entry {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut entry: Self =
            serde_json::from_str(text).map_err(|error| format!("an event can't be read ({error})"))?;
        text.clone_into(&mut entry.raw);
        Ok(entry)
    }

    /// A text of the event's data.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.data.get(field)?.as_str().filter(|text| !text.is_empty())
    }

    /// It tells only which events before it belong together: where these are shown, there is nothing to add.
    pub fn is_structure(&self) -> bool {
        let list = match self.event_type.as_str() {
            kind::AGENT_ASSISTANT_MESSAGE => "content",
            kind::AGENT_USER_TOOL_RESULT => "results",
            _ => return false,
        };
        self.data[list].is_array() && self.said().is_none() && self.text("output").is_none()
    }

    /// What was said, under the names that agents have for it.
    pub fn said(&self) -> Option<&str> {
        ["text", "content", "message", "detail", "error", "summary"].into_iter().find_map(|field| self.text(field))
    }
}
