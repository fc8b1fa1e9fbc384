//! What the lines of Claude Code mean, as events.

use super::super::{Mark, Origin, Said, event, part, take};
use super::wire::{self, Content, Other, Outcome};
use crate::driver::shown::{self, clip};
use atoll_core::event::kind;
use atoll_core::id::MessageId;
use atoll_core::message::How;
use atoll_protocol::LeasedMessage;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Turn {
    /// It has begun, and the message that it began with has not been seen.
    is_fresh: bool,
    /// Names of the tools under way.
    tools: BTreeMap<String, String>,
    /// What it has spent so far, as it says itself.
    spent: f64,
}

impl Turn {
    pub(super) fn after(spent: f64) -> Self {
        Self { spent, ..Self::default() }
    }

    pub(super) const fn spent(&self) -> f64 {
        self.spent
    }

    pub(super) fn receipt(&mut self, id: MessageId) -> Vec<Said> {
        if std::mem::take(&mut self.is_fresh) {
            return vec![Said::Receipt { id, how: How::NewTurn }];
        }
        let told = event(kind::AGENT_MESSAGE_INJECTED, &json!({"message_id": id}), Mark::Plain);
        vec![told, Said::Receipt { id, how: How::Injected }]
    }

    pub(super) fn events(&mut self, line: Other) -> Vec<Said> {
        match line {
            Other::Init(init) => {
                self.is_fresh = true;
                let data = json!({
                    "agent": "claude", "version": init.claude_code_version, "model": init.model, "cwd": init.cwd,
                    "native_id": init.session_id, "tools": init.tools, "permission_mode": init.permission_mode,
                });
                vec![Said::Native { id: init.session_id }, event(kind::AGENT_STARTED, &data, Mark::TurnBegins)]
            }
            Other::Retry(retry) => retried(&retry),
            Other::Notice { subtype, data } => notice(&subtype, &data),
            Other::AnswerEnds { parent } => vec![Said::AnswerEnds { parent }],
            Other::Delta { text } => vec![Said::Live(atoll_core::json::raw(&json!({"text": text})))],
            Other::Assistant(said) => self.assistant(said),
            Other::User(said) => self.results(said),
        }
    }

    fn assistant(&mut self, said: wire::Said) -> Vec<Said> {
        let parent = said.parent_tool_use_id;
        // What it says in the place of a model has such a name.
        let model = said.message.model.filter(|model| !model.starts_with('<'));
        let origin = said.message.id.map_or(Origin::Unsaid, |id| Origin::Named { id, model });
        let blocks = match said.message.content {
            Content::Text(text) => vec![json!({"type": "text", "text": text})],
            Content::Blocks(blocks) if blocks.is_empty() => {
                return vec![Said::Unparsed { reason: "a message without anything in it".to_owned() }];
            }
            Content::Blocks(blocks) => blocks,
        };
        blocks.into_iter().flat_map(|block| self.block(block, parent.as_deref(), &origin)).collect()
    }

    fn block(&mut self, mut block: Value, parent: Option<&str>, origin: &Origin) -> Vec<Said> {
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        match block["type"].as_str() {
            Some(kind @ ("text" | "thinking")) if !block[kind].is_string() => {
                vec![Said::Unparsed { reason: format!("a block of {kind} without it") }]
            }
            Some("text") if text("text").trim().is_empty() => Vec::new(),
            Some("text") => {
                let data = with_parent(json!({"text": clip(&text("text"))}), parent);
                vec![part(kind::AGENT_MESSAGE, &data, Mark::Plain, origin)]
            }
            Some("thinking") if text("thinking").is_empty() => Vec::new(),
            Some("thinking") => {
                let data = with_parent(json!({"text": clip(&text("thinking"))}), parent);
                vec![part(kind::AGENT_THINKING, &data, Mark::Plain, origin)]
            }
            Some("tool_use") => {
                let (id, tool) = (text("id"), text("name"));
                let input = take(&mut block, "input");
                self.tools.insert(id.clone(), tool.clone());
                let data =
                    with_parent(json!({"tool": tool, "tool_use_id": id, "input": shown::bounded(&input)}), parent);
                let mut said = vec![part(kind::AGENT_TOOL_USE, &data, Mark::ToolBegins(id.clone()), origin)];
                said.extend(shown::beside_use(&tool, &id, &input));
                said
            }
            Some("redacted_thinking" | "server_tool_use" | "web_search_tool_result") => Vec::new(),
            other => vec![Said::Unparsed { reason: format!("a block of the unknown type {other:?}") }],
        }
    }

    /// Results of tools; what else is said in the user's name is no news.
    fn results(&mut self, said: wire::Said) -> Vec<Said> {
        let parent = said.parent_tool_use_id;
        let Content::Blocks(blocks) = said.message.content else { return Vec::new() };
        let results = blocks.iter().filter(|block| block["type"] == "tool_result");
        results.flat_map(|block| self.result(block, parent.as_deref())).collect()
    }

    fn result(&mut self, block: &Value, parent: Option<&str>) -> Vec<Said> {
        let id = block["tool_use_id"].as_str().unwrap_or_default().to_owned();
        let tool = self.tools.remove(&id).unwrap_or_default();
        let is_error = block["is_error"].as_bool().unwrap_or(false);
        let output = shown::text_of(&block["content"]);
        let data = json!({"tool": tool, "tool_use_id": id, "output": clip(&output), "is_error": is_error});
        let mut said = shown::beside_result(&tool, &id, &output, is_error);
        let ended = event(kind::AGENT_TOOL_COMPLETED, &with_parent(data, parent), Mark::ToolEnds(id));
        said.insert(0, ended);
        said
    }

    pub(super) fn over(&mut self, outcome: &Outcome, interrupt: Option<&LeasedMessage>) -> Vec<Said> {
        self.tools.clear();
        let mut said = self.usage(outcome);
        if let Some(message) = interrupt {
            said.push(Said::Receipt { id: message.id, how: How::Injected });
            let data = json!({"message_id": message.id, "text": clip(&message.content)});
            said.push(event(kind::AGENT_INTERRUPTED, &data, Mark::TurnEnds));
            said.push(Said::Idle);
            return said;
        }
        if outcome.is_error {
            let error = outcome.result.clone().or_else(|| outcome.errors.first().map(shown::text_of));
            let error = error.or_else(|| outcome.subtype.clone()).unwrap_or_else(|| "it gave no reason".to_owned());
            said.push(event(kind::AGENT_ERROR, &json!({"error": clip(&error)}), Mark::Plain));
            said.push(Said::Failed { error });
            return said;
        }
        let data = json!({
            "stop_reason": outcome.stop_reason.as_deref().or(outcome.terminal_reason.as_deref()).unwrap_or("end_turn"),
            "steps": outcome.num_turns, "duration_ms": outcome.duration_ms,
        });
        said.push(event(kind::AGENT_COMPLETED, &data, Mark::TurnEnds));
        said.push(Said::Idle);
        said
    }

    fn usage(&mut self, outcome: &Outcome) -> Vec<Said> {
        let usage = &outcome.usage;
        let total = outcome.total_cost_usd.unwrap_or(self.spent);
        // One that was killed may have forgotten what it had spent, and counts anew.
        let cost = if total < self.spent { total } else { total - self.spent };
        self.spent = total;
        if usage.input_tokens + usage.output_tokens + usage.cache_read_input_tokens == 0 {
            return Vec::new();
        }
        let data = json!({
            "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens,
            "cache_read_tokens": usage.cache_read_input_tokens,
            "cache_write_tokens": usage.cache_creation_input_tokens, "cost_usd": cost,
        });
        vec![event(kind::AGENT_USAGE, &data, Mark::Plain)]
    }
}

fn with_parent(mut data: Value, parent: Option<&str>) -> Value {
    if let Some(parent) = parent {
        data["parent_tool_use_id"] = parent.into();
    }
    data
}

fn retried(retry: &wire::Retry) -> Vec<Said> {
    let error = retry.error.as_ref().map(shown::text_of);
    let data = json!({
        "attempt": retry.attempt, "max_attempts": retry.max_retries, "retry_in_ms": retry.retry_delay_ms,
        "status": retry.error_status, "error": error,
    });
    let mut said = vec![event(kind::AGENT_STREAM_ERROR, &data, Mark::Plain)];
    if matches!(retry.error_status, Some(429 | 529)) {
        let wait = retry.retry_delay_ms.and_then(|delay| Duration::try_from_secs_f64(delay / 1000.0).ok());
        said.push(Said::RateLimited { wait });
    }
    said
}

/// What says nothing about the work is left out.
fn notice(subtype: &str, data: &Value) -> Vec<Said> {
    match subtype {
        "status"
        | "task_started"
        | "task_notification"
        | "task_progress"
        | "task_updated"
        | "hook_started"
        | "hook_response"
        | "session_state_changed"
        | "thinking_tokens" => Vec::new(),
        subtype => {
            let data = json!({"subtype": subtype, "data": shown::bounded(data)});
            vec![event(kind::AGENT_SYSTEM_MESSAGE, &data, Mark::Plain)]
        }
    }
}
