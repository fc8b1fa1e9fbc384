//! What a stored event says to the detectors.

use crate::event::{Event, EventSource, kind};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

const MAX_NAME_CHARS: usize = 512;

/// The part of an event that detectors use.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentSignal {
    TurnStarted(TurnStart),
    TurnEnded,
    /// Text that the agent wrote itself.
    Text(String),
    ToolUse(ToolUse),
    ToolResult(ToolResult),
    FileChange(FileChange),
    /// Tokens and costs since the last report of the agent.
    AgentUsage(AgentUsage),
    /// Tokens and costs of the sandbox until now, by the gateway.
    ModelUsage(ModelUsage),
    /// A rule denied a call.
    Denied(DeniedCall),
    /// The server ran the checks.
    Checked {
        failed: u32,
    },
    /// A person sent a message.
    PersonSpoke,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TurnStart {
    /// The workspace.
    pub cwd: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ToolUse {
    pub tool: String,
    pub tool_use_id: String,
    pub input: Value,
    pub truncated: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ToolResult {
    pub tool: String,
    pub tool_use_id: String,
    pub output: Value,
    pub is_error: bool,
    pub exit_code: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FileChange {
    pub file_path: String,
    pub old_path: Option<String>,
    pub diff_preview: String,
    pub full_diff: Option<String>,
    pub full_diff_truncated: bool,
    pub tool_use_id: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AgentUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_write_tokens: u64,
    pub cost_usd: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ModelUsage {
    /// Without those read from a cache.
    pub tokens: u64,
    pub cost_usd: f64,
    /// Length of the last request's prompt.
    pub prompt_tokens: u64,
    /// Size of the model's context window.
    pub context: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeniedCall {
    pub tool: String,
    pub tool_use_id: Option<String>,
    pub rule: String,
    pub input: Value,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    parent_tool_use_id: Option<String>,
}

#[derive(Deserialize)]
struct Checked {
    failed: Vec<String>,
}

impl ToolResult {
    pub fn output_text(&self) -> String {
        self.output.as_str().map_or_else(|| self.output.to_string(), str::to_owned)
    }

    /// True for a reported error and for a command that failed.
    pub fn has_failed(&self) -> bool {
        self.is_error || self.exit_code.is_some_and(|code| code != 0)
    }
}

/// Bounds the names that detectors remember: an agent can make them as long as an event.
fn truncate_names<'a>(names: impl IntoIterator<Item = &'a mut String>) {
    for name in names {
        if let Some((end, _)) = name.char_indices().nth(MAX_NAME_CHARS) {
            name.truncate(end);
        }
    }
}

impl AgentSignal {
    /// Reads an event; `None` if no detector uses it.
    pub fn from_event(event: &Event) -> Option<Self> {
        fn read<T: DeserializeOwned>(event: &Event) -> Option<T> {
            serde_json::from_str(event.data.get()).ok()
        }
        match event.event_type.as_str() {
            kind::AGENT_STARTED => read(event).map(Self::TurnStarted),
            kind::AGENT_COMPLETED | kind::AGENT_INTERRUPTED | kind::AGENT_FAILED | kind::AGENT_SHUTDOWN => {
                Some(Self::TurnEnded)
            }
            // A subagent's text is no answer to anyone.
            kind::AGENT_MESSAGE => {
                read::<Text>(event).filter(|text| text.parent_tool_use_id.is_none()).map(|text| Self::Text(text.text))
            }
            kind::AGENT_TOOL_USE => read::<ToolUse>(event).map(|mut call| {
                truncate_names([&mut call.tool, &mut call.tool_use_id]);
                Self::ToolUse(call)
            }),
            kind::AGENT_TOOL_COMPLETED => read::<ToolResult>(event).map(|mut result| {
                truncate_names([&mut result.tool, &mut result.tool_use_id]);
                Self::ToolResult(result)
            }),
            kind::AGENT_FILE_EDITED => read::<FileChange>(event).map(|mut change| {
                truncate_names([&mut change.file_path]);
                truncate_names(change.old_path.as_mut());
                Self::FileChange(change)
            }),
            kind::AGENT_USAGE => read(event).map(Self::AgentUsage),
            kind::MODEL_USAGE => read(event).map(Self::ModelUsage),
            kind::GUARDIAN_DENIED => read(event).map(Self::Denied),
            kind::CONTINUOUS_CHECKED => read::<Checked>(event)
                .map(|checked| Self::Checked { failed: u32::try_from(checked.failed.len()).unwrap_or(u32::MAX) }),
            kind::MESSAGE_QUEUED if event.source == EventSource::User => Some(Self::PersonSpoke),
            _ => None,
        }
    }

    /// True for the agent's own work.
    pub const fn is_work(&self) -> bool {
        match self {
            Self::Text(_) | Self::ToolUse(_) | Self::ToolResult(_) | Self::FileChange(_) => true,
            Self::TurnStarted(_)
            | Self::TurnEnded
            | Self::AgentUsage(_)
            | Self::ModelUsage(_)
            | Self::Denied(_)
            | Self::Checked { .. }
            | Self::PersonSpoke => false,
        }
    }
}
