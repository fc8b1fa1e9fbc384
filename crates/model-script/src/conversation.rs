//! A request's conversation and tools, independent of the API.

use crate::script::is_name_character;
use serde_json::Value;

/// Prefix of a script's name in a prompt.
pub(crate) const SCRIPT_TAG: &str = "#script:";

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Conversation {
    pub(crate) model: String,
    pub(crate) wants_stream: bool,
    /// OpenAI sends usage at the end of a stream only on request.
    pub(crate) wants_stream_usage: bool,
    pub(crate) entries: Vec<ConversationEntry>,
    pub(crate) tools: Vec<Tool>,
}

/// One entry of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ConversationEntry {
    /// System instructions.
    System(String),
    /// A user's text.
    UserText(String),
    /// A tool's result.
    ToolResult(String),
    /// The model's text or thinking.
    ModelText,
    /// The model's call of a tool.
    ToolCall,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) input_form: InputForm,
    /// The namespace that a call must name.
    pub(crate) namespace: Option<String>,
    /// The tool whose script calls this one.
    pub(crate) caller: Option<String>,
}

impl Tool {
    /// A tool that the model calls directly.
    pub(crate) fn new(name: impl Into<String>, input_form: InputForm) -> Self {
        Self { name: name.into(), input_form, namespace: None, caller: None }
    }
}

/// The form of a tool's input.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum InputForm {
    /// An object with a JSON schema.
    Object(Value),
    /// Free text.
    Text,
}

/// The script of a conversation and the progress in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ScriptProgress {
    /// The script that a prompt named, if any.
    pub(crate) script_name: Option<String>,
    /// The number of prompts that named a script; distinguishes repeated runs.
    pub(crate) start_count: usize,
    pub(crate) advances: Vec<ProgressMark>,
}

/// An entry that advances a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgressMark {
    /// A tool returned a result.
    ToolResult,
    /// The model ended its turn and the user sent another message.
    NextTurn,
}

/// Prompts by which an agent requests the rest of a cut answer; they continue the same turn.
const CONTINUATION_PROMPTS: &[&str] = &["Your response above was cut off mid-stream"];

impl Conversation {
    /// Reads the progress from the conversation alone, so that the same request always has the same position.
    pub(crate) fn script_progress(&self) -> ScriptProgress {
        let mut course = ScriptProgress::default();
        // The model's latest output, if any: true if it called a tool.
        let mut answered_with_call = None;
        for entry in &self.entries {
            match entry {
                ConversationEntry::System(_) => {}
                ConversationEntry::ModelText => answered_with_call = answered_with_call.or(Some(false)),
                ConversationEntry::ToolCall => answered_with_call = Some(true),
                ConversationEntry::ToolResult(_) => {
                    course.advances.push(ProgressMark::ToolResult);
                    answered_with_call = None;
                }
                ConversationEntry::UserText(text) => {
                    if let Some(name) = find_script_tag(text) {
                        course = ScriptProgress {
                            script_name: Some(name.to_owned()),
                            start_count: course.start_count + 1,
                            advances: Vec::new(),
                        };
                    } else if answered_with_call == Some(false)
                        && !CONTINUATION_PROMPTS.iter().any(|prompt| text.contains(prompt))
                    {
                        course.advances.push(ProgressMark::NextTurn);
                    }
                    answered_with_call = None;
                }
            }
        }
        course
    }

    /// True if the model received this text; with `new`, since its last output.
    pub(crate) fn has_received(&self, text: &str, new: bool) -> bool {
        let last = self
            .entries
            .iter()
            .rposition(|entry| matches!(entry, ConversationEntry::ModelText | ConversationEntry::ToolCall));
        let first = if new { last.map_or(0, |last| last + 1) } else { 0 };
        self.entries.iter().skip(first).any(|entry| match entry {
            ConversationEntry::System(content)
            | ConversationEntry::UserText(content)
            | ConversationEntry::ToolResult(content) => content.contains(text),
            ConversationEntry::ModelText | ConversationEntry::ToolCall => false,
        })
    }

    /// The working directory that the agent reports.
    pub(crate) fn working_directory(&self) -> Option<&str> {
        // Each agent has its own label; the directory is on the same line or in a list below it.
        const DIRECTORY_LABELS: &[&str] = &[
            "Primary working directory:",
            "Working directory:",
            "Current working directory:",
            "Workspace Directories:**",
            "working in the directory:",
            "<cwd>",
        ];
        let texts = self.entries.iter().filter_map(|entry| match entry {
            ConversationEntry::System(text) | ConversationEntry::UserText(text) => Some(text.as_str()),
            ConversationEntry::ToolResult(_) | ConversationEntry::ModelText | ConversationEntry::ToolCall => None,
        });
        for text in texts {
            for label in DIRECTORY_LABELS {
                let Some((_, after)) = text.split_once(label) else { continue };
                let after = after.trim_start_matches([' ', '\n', '-', '`']);
                let end = after.find(['\n', '<', '`']).unwrap_or(after.len());
                let found = after[..end].trim();
                if found.starts_with('/') {
                    return Some(found);
                }
            }
        }
        None
    }

    /// Estimates the number of tokens.
    pub(crate) fn estimated_tokens(&self) -> u64 {
        let letters: usize = self
            .entries
            .iter()
            .map(|entry| match entry {
                ConversationEntry::System(text)
                | ConversationEntry::UserText(text)
                | ConversationEntry::ToolResult(text) => text.len(),
                ConversationEntry::ModelText | ConversationEntry::ToolCall => 0,
            })
            .sum();
        estimate_tokens(letters)
    }
}

pub(crate) fn estimate_tokens(letters: usize) -> u64 {
    (letters as u64).div_ceil(4).max(1)
}

/// Returns the last script name in a text.
fn find_script_tag(text: &str) -> Option<&str> {
    let (_, after) = text.rsplit_once(SCRIPT_TAG)?;
    let end = after.find(|letter| !is_name_character(letter)).unwrap_or(after.len());
    // A trailing period ends the sentence.
    let name = after[..end].trim_end_matches('.');
    (!name.is_empty()).then_some(name)
}

/// The text of a content field, which is a string or a list of parts.
pub(crate) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| match part {
                Value::String(text) => text.clone(),
                part => part["text"].as_str().unwrap_or_default().to_owned(),
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user_text(text: &str) -> ConversationEntry {
        ConversationEntry::UserText(text.into())
    }

    fn tool_result(text: &str) -> ConversationEntry {
        ConversationEntry::ToolResult(text.into())
    }

    fn progress_of(entries: &[ConversationEntry]) -> (Option<String>, usize, Vec<ProgressMark>) {
        let course = Conversation { entries: entries.to_vec(), ..Conversation::default() }.script_progress();
        (course.script_name, course.start_count, course.advances)
    }

    #[test]
    fn reads_progress_from_the_conversation() {
        use ConversationEntry::{ModelText, ToolCall};
        use ProgressMark::{NextTurn, ToolResult};
        let a = || Some("a".to_owned());
        assert_eq!(progress_of(&[user_text("do it")]), (None, 0, vec![]));
        assert_eq!(progress_of(&[user_text("do it #script:a.")]), (a(), 1, vec![]));
        let started = [user_text("x #script:a y"), ModelText, ToolCall, tool_result("")];
        assert_eq!(progress_of(&started), (a(), 1, vec![ToolResult]));
        // A message during a turn does not advance the script.
        assert_eq!(progress_of(&[&started[..], &[user_text("and this")]].concat()), (a(), 1, vec![ToolResult]));
        assert_eq!(
            progress_of(&[user_text("#script:a"), ToolCall, ToolCall, tool_result(""), tool_result("")]),
            (a(), 1, vec![ToolResult, ToolResult])
        );
        // An ended turn counts once the user continues, but not when the agent requests the rest.
        let ended = [&started[..], &[ModelText]].concat();
        assert_eq!(progress_of(&ended), (a(), 1, vec![ToolResult]));
        assert_eq!(
            progress_of(&[&ended[..], &[user_text("go on"), user_text("more")]].concat()),
            (a(), 1, vec![ToolResult, NextTurn])
        );
        let rest = user_text("Your response above was cut off mid-stream. Resume directly.");
        assert_eq!(progress_of(&[&ended[..], &[rest]].concat()), (a(), 1, vec![ToolResult]));
        // A named script starts again, even with the same name.
        assert_eq!(progress_of(&[&ended[..], &[user_text("#script:b")]].concat()), (Some("b".into()), 2, vec![]));
        assert_eq!(progress_of(&[&ended[..], &[user_text("#script:a")]].concat()), (a(), 2, vec![]));
        // A tool's output does not select a script.
        assert_eq!(
            progress_of(&[user_text("#script:a"), ToolCall, tool_result("#script:b")]),
            (a(), 1, vec![ToolResult])
        );
    }

    #[test]
    fn finds_received_text_but_not_the_model_s_own() {
        let entries = vec![user_text("first"), ConversationEntry::ToolCall, tool_result("second"), user_text("third")];
        let conversation = Conversation { entries, ..Conversation::default() };
        assert!(conversation.has_received("first", false) && !conversation.has_received("first", true));
        assert!(conversation.has_received("second", true) && conversation.has_received("third", true));
        assert!(!conversation.has_received("fourth", false));
    }

    #[test]
    fn finds_the_working_directory_of_each_agent() {
        for (text, found) in [
            ("# Environment\n - Primary working directory: /a/b\n - Platform: linux", Some("/a/b")),
            ("<env>\n  Working directory: /a b\n</env>", Some("/a b")),
            ("<environment_context>\n  <cwd>/srv/x</cwd>", Some("/srv/x")),
            ("- **Workspace Directories:**\n  - /g\n- more", Some("/g")),
            ("Working directory: unknown", None),
            ("nothing of it", None),
        ] {
            let conversation =
                Conversation { entries: vec![ConversationEntry::System(text.into())], ..Conversation::default() };
            assert_eq!(conversation.working_directory(), found, "{text}");
        }
    }
}
