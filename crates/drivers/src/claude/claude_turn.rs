//! Converts Claude Code's lines into events.

use super::claude_wire::{self, MessageContent, TurnLine, TurnResult};
use crate::bounded::{BoundedMap, BoundedSet};
use crate::event_data;
use crate::{AgentOutput, EventEffect, ResponseRef, build_event, take_field};
use atoll_api::events::{
    AgentCompleted, AgentStarted, AgentStreamError, AgentUsage, EventData, ToolCompleted, ToolUse,
};
use atoll_core::id::MessageId;
use atoll_core::message::DeliveryMethod;
use atoll_protocol::LeasedMessage;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct ClaudeTurn {
    /// The turn has started, and its first message is not acknowledged.
    awaits_first_message: bool,
    /// Names of running tools by id.
    tools: BoundedMap<String>,
    /// The session's total cost so far, as the agent reports it.
    total_cost_usd: f64,
    /// Tool calls of subagents that run in the background.
    background_agents: BoundedSet,
    /// A subagent ran in the background since the turn began.
    has_used_background: bool,
    /// The agent reports its state.
    reports_state: bool,
    /// The last result of a turn that continues in the background.
    held_result: Option<TurnResult>,
}

impl ClaudeTurn {
    pub(super) fn with_cost(total_cost_usd: f64) -> Self {
        Self { total_cost_usd, ..Self::default() }
    }

    pub(super) const fn total_cost_usd(&self) -> f64 {
        self.total_cost_usd
    }

    pub(super) fn acknowledge_message(&mut self, id: MessageId) -> Vec<AgentOutput> {
        if std::mem::take(&mut self.awaits_first_message) {
            return vec![AgentOutput::Acknowledged { id, how: DeliveryMethod::NewTurn }];
        }
        vec![event_data::message_injected(id, None), AgentOutput::Acknowledged { id, how: DeliveryMethod::Injected }]
    }

    pub(super) fn convert_line(&mut self, line: TurnLine) -> Vec<AgentOutput> {
        match line {
            // The agent continues by itself after a subagent.
            TurnLine::Init(init) if self.held_result.is_some() => vec![AgentOutput::NativeId { id: init.session_id }],
            TurnLine::Init(init) => {
                self.awaits_first_message = true;
                let data = AgentStarted {
                    agent: Some("claude".to_owned()),
                    version: init.claude_code_version,
                    model: init.model,
                    cwd: init.cwd,
                    native_id: Some(init.session_id.clone()),
                    tools: Some(init.tools.into()),
                    permission_mode: init.permission_mode.map(Value::from),
                    ..AgentStarted::default()
                };
                let started = build_event(EventData::AgentStarted(data), EventEffect::TurnStarted);
                vec![AgentOutput::NativeId { id: init.session_id }, started]
            }
            TurnLine::Retry(retry) => retry_events(&retry),
            TurnLine::System { subtype, data } => self.convert_system(&subtype, &data),
            TurnLine::ResponseEnded { parent } => vec![AgentOutput::ResponseEnded { parent }],
            TurnLine::TextDelta { text } => vec![event_data::text_delta(&text)],
            TurnLine::Assistant(message) => self.convert_assistant(message),
            TurnLine::User(message) => self.convert_results(message),
        }
    }

    fn convert_assistant(&mut self, model_message: claude_wire::ModelMessage) -> Vec<AgentOutput> {
        let parent = model_message.parent_tool_use_id;
        // Messages that the agent writes itself have a model name such as `<synthetic>`.
        let model = model_message.message.model.filter(|model| !model.starts_with('<'));
        let origin = model_message.message.id.map_or(ResponseRef::Unknown, |id| ResponseRef::Named { id, model });
        let blocks = match model_message.message.content {
            MessageContent::Text(text) => vec![json!({"type": "text", "text": text})],
            MessageContent::Blocks(blocks) if blocks.is_empty() => {
                return vec![AgentOutput::Unparsed { reason: "message without content".to_owned() }];
            }
            MessageContent::Blocks(blocks) => blocks,
        };
        blocks.into_iter().flat_map(|block| self.convert_block(block, parent.as_deref(), &origin)).collect()
    }

    fn convert_block(&mut self, mut block: Value, parent: Option<&str>, origin: &ResponseRef) -> Vec<AgentOutput> {
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        match block["type"].as_str() {
            Some(kind @ ("text" | "thinking")) if !block[kind].is_string() => {
                vec![AgentOutput::Unparsed { reason: format!("{kind} block without {kind}") }]
            }
            Some("text") if text("text").trim().is_empty() => Vec::new(),
            Some("text") => vec![event_data::message_event(&text("text"), parent, origin)],
            Some("thinking") if text("thinking").is_empty() => Vec::new(),
            Some("thinking") => vec![event_data::thinking_event(&text("thinking"), parent, origin)],
            Some("tool_use") => {
                let (id, tool) = (text("id"), text("name"));
                let input = take_field(&mut block, "input");
                let forgotten = self.tools.insert(&id, tool.clone());
                let extra = event_data::tool_use_events(&tool, &id, &input);
                let parent_tool_use_id = parent.map(str::to_owned);
                let started = ToolUse { tool, tool_use_id: id, input, parent_tool_use_id, ..ToolUse::default() };
                let forgotten = forgotten.iter().map(|(id, tool)| event_data::tool_forgotten(id, tool));
                let mut outputs: Vec<AgentOutput> = forgotten.collect();
                outputs.push(event_data::tool_started(started, origin));
                outputs.extend(extra);
                outputs
            }
            Some("redacted_thinking" | "server_tool_use" | "web_search_tool_result") => Vec::new(),
            other => vec![AgentOutput::Unparsed { reason: format!("unknown block type {other:?}") }],
        }
    }

    /// Converts tool results; other user content is already known.
    fn convert_results(&mut self, model_message: claude_wire::ModelMessage) -> Vec<AgentOutput> {
        let parent = model_message.parent_tool_use_id;
        let MessageContent::Blocks(blocks) = model_message.message.content else { return Vec::new() };
        let results = blocks.iter().filter(|block| block["type"] == "tool_result");
        results.flat_map(|block| self.convert_result(block, parent.as_deref())).collect()
    }

    fn convert_result(&mut self, block: &Value, parent: Option<&str>) -> Vec<AgentOutput> {
        let id = block["tool_use_id"].as_str().unwrap_or_default().to_owned();
        let tool = self.tools.remove(&id).unwrap_or_default();
        let is_error = block["is_error"].as_bool().unwrap_or(false);
        let output = event_data::extract_text(&block["content"]);
        // The result of a background agent follows later.
        let is_launch = self.background_agents.contains_key(&id);
        let extra = event_data::tool_result_events(&tool, &id, &output, is_error).filter(|_| !is_launch);
        let ended = event_data::tool_ended(ToolCompleted {
            tool,
            tool_use_id: id,
            output: output.as_str().into(),
            is_error,
            parent_tool_use_id: parent.map(str::to_owned),
            ..ToolCompleted::default()
        });
        std::iter::once(ended).chain(extra).collect()
    }

    /// Handles system messages. Those about internal progress have no event.
    fn convert_system(&mut self, subtype: &str, data: &Value) -> Vec<AgentOutput> {
        let tool_use_id = data["tool_use_id"].as_str().unwrap_or_default();
        match subtype {
            "task_started" if data["is_backgrounded"] == true && data["task_type"] == "local_agent" => {
                self.background_agents.insert(tool_use_id, ());
                self.has_used_background = true;
                Vec::new()
            }
            "task_notification" if self.background_agents.remove(tool_use_id).is_some() => {
                let (summary, is_error) = (event_data::extract_text(&data["summary"]), data["status"] != "completed");
                vec![event_data::subagent_completed(tool_use_id, &summary, is_error)]
            }
            "status"
            | "task_started"
            | "task_notification"
            | "task_progress"
            | "task_updated"
            | "background_tasks_changed"
            | "hook_started"
            | "hook_response"
            | "thinking_tokens" => Vec::new(),
            subtype => vec![event_data::system_event(subtype, Some(data))],
        }
    }

    /// Returns true if the turn continues after this result, because a subagent ran in the background.
    pub(super) fn awaits_background(&self, outcome: &TurnResult) -> bool {
        self.reports_state && self.has_used_background && !outcome.is_error
    }

    /// Keeps the result until the agent is idle.
    pub(super) fn hold_end(&mut self, outcome: TurnResult) -> Vec<AgentOutput> {
        let outputs = self.usage_events(&outcome);
        self.held_result = Some(outcome);
        outputs
    }

    /// Records the agent's state. Returns the result of a turn that has ended now.
    pub(super) fn set_state(&mut self, is_idle: bool) -> Option<TurnResult> {
        self.reports_state = true;
        self.held_result.take_if(|_| is_idle)
    }

    pub(super) fn end_turn(&mut self, outcome: &TurnResult, interrupt: Option<&LeasedMessage>) -> Vec<AgentOutput> {
        self.tools.clear();
        self.background_agents.clear();
        (self.has_used_background, self.held_result) = (false, None);
        let mut outputs = Vec::new();
        if let Some(message) = interrupt {
            outputs.push(AgentOutput::Acknowledged { id: message.id, how: DeliveryMethod::Injected });
            outputs.push(event_data::turn_interrupted(Some(message)));
            outputs.push(AgentOutput::Idle);
            return outputs;
        }
        if outcome.is_error {
            let error = outcome.result.clone().or_else(|| outcome.errors.first().map(event_data::extract_text));
            let error = error.or_else(|| outcome.subtype.clone()).unwrap_or_else(|| "no reason given".to_owned());
            outputs.push(event_data::plain_error(&error));
            outputs.push(AgentOutput::Failed { error });
            return outputs;
        }
        let reason = outcome.stop_reason.as_deref().or(outcome.terminal_reason.as_deref()).unwrap_or("end_turn");
        let data = AgentCompleted {
            turn: None,
            stop_reason: Some(reason.to_owned()),
            steps: outcome.num_turns,
            duration_ms: outcome.duration_ms.map(Into::into),
        };
        outputs.push(build_event(EventData::AgentCompleted(data), EventEffect::TurnEnded));
        outputs.push(AgentOutput::Idle);
        outputs
    }

    pub(super) fn usage_events(&mut self, outcome: &TurnResult) -> Vec<AgentOutput> {
        let usage = &outcome.usage;
        let total = outcome.total_cost_usd.unwrap_or(self.total_cost_usd);
        // A killed agent may have lost its total and counts from zero.
        let cost = if total < self.total_cost_usd { total } else { total - self.total_cost_usd };
        self.total_cost_usd = total;
        if usage.input_tokens + usage.output_tokens + usage.cache_read_input_tokens == 0 {
            return Vec::new();
        }
        let data = AgentUsage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cache_read_tokens: usage.cache_read_input_tokens,
            cache_write_tokens: usage.cache_creation_input_tokens,
            cost_usd: outcome.total_cost_usd.map(|_| cost),
            ..AgentUsage::default()
        };
        vec![build_event(EventData::AgentUsage(data), EventEffect::None)]
    }
}

fn retry_events(retry: &claude_wire::ApiRetry) -> Vec<AgentOutput> {
    let data = AgentStreamError {
        attempt: retry.attempt.map(Value::from),
        max_attempts: retry.max_retries.map(Value::from),
        retry_in_ms: retry.retry_delay_ms.map(Value::from),
        status: retry.error_status.map(Value::from),
        error: retry.error.as_ref().map(event_data::extract_text).map(Value::from),
        details: None,
    };
    let mut outputs = vec![build_event(EventData::AgentStreamError(data), EventEffect::None)];
    if matches!(retry.error_status, Some(429 | 529)) {
        let wait = retry.retry_delay_ms.and_then(|delay| Duration::try_from_secs_f64(delay / 1000.0).ok());
        outputs.push(AgentOutput::RateLimited { wait });
    }
    outputs
}
