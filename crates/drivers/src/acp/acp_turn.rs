//! Converts ACP session updates into events.

use crate::bounded::{BoundedMap, HeldSize};
use crate::event_clipping::{clip_short_value, clip_text};
use crate::event_data;
use crate::{AgentOutput, EventEffect, ResponseRef, build_event};
use atoll_api::events::{AgentStarted, AgentUsage, EventData, ToolCompleted, ToolUse};
use serde_json::{Value, json};

/// Maximum length of a text before it is emitted in parts.
const MAX_BUFFERED_BYTES: usize = 24 << 10;

#[derive(Debug, Default)]
pub(super) struct AcpTurn {
    /// Data of `agent.started` that describes the agent and its session.
    session_info: AgentStarted,
    tools: BoundedMap<RunningTool>,
    buffered_text: Option<TextBuffer>,
    /// The session's total cost as the agent reports it, and the reported part of it.
    cost: Option<f64>,
    reported_cost: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextKind {
    Message,
    Thinking,
}

/// Streamed text that is not complete.
#[derive(Debug)]
struct TextBuffer {
    kind: TextKind,
    /// Some agents name the message that a chunk belongs to.
    message: Value,
    text: String,
}

#[derive(Debug, Default)]
struct RunningTool {
    kind: String,
    name: String,
    title: String,
    input: Value,
    content: Value,
    output: String,
    is_reported: bool,
}

impl HeldSize for RunningTool {
    fn held_bytes(&self) -> usize {
        let texts = [&self.kind, &self.name, &self.title, &self.output];
        texts.map(HeldSize::held_bytes).iter().sum::<usize>() + self.input.held_bytes() + self.content.held_bytes()
    }
}

impl AcpTurn {
    pub(super) fn set_agent_info(&mut self, result: &Value) {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let info = &result["agentInfo"];
        self.session_info =
            AgentStarted { version: text(&info["version"]), program: text(&info["name"]), ..AgentStarted::default() };
    }

    pub(super) fn set_session_info(&mut self, result: &Value) {
        self.session_info.model = result["models"]["currentModelId"].as_str().map(str::to_owned);
        let mode = &result["modes"]["currentModeId"];
        self.session_info.permission_mode = (!mode.is_null()).then(|| clip_short_value(mode));
    }

    pub(super) fn start_turn(&mut self, agent: &str, session: Option<&str>) -> AgentOutput {
        let data = AgentStarted {
            agent: Some(agent.to_owned()),
            native_id: session.map(str::to_owned),
            ..self.session_info.clone()
        };
        build_event(EventData::AgentStarted(data), EventEffect::TurnStarted)
    }

    /// Returns true for updates that only a running prompt causes.
    pub(super) fn is_work(update: &Value) -> bool {
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        matches!(kind, "agent_message_chunk" | "agent_thought_chunk" | "tool_call" | "tool_call_update" | "plan")
    }

    /// Handles an update outside a turn or of another session: only the cost matters.
    pub(super) fn handle_idle_update(&mut self, update: &Value) -> Vec<AgentOutput> {
        if let Some(cost) = session_cost(update) {
            (self.cost, self.reported_cost) = (Some(cost), cost);
        }
        match update["sessionUpdate"].as_str() {
            Some(name) if name == "usage_update" || is_ignored_update(name) || Self::is_work(update) => Vec::new(),
            other => unknown_update(other),
        }
    }

    pub(super) fn convert_update(&mut self, update: &Value) -> Vec<AgentOutput> {
        match update["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => self.buffer_text(TextKind::Message, update),
            Some("agent_thought_chunk") => self.buffer_text(TextKind::Thinking, update),
            Some("tool_call") => {
                let mut outputs = self.flush_text();
                outputs.extend(self.update_tool(update, update["status"] != "pending"));
                outputs
            }
            Some("tool_call_update") => {
                let mut outputs = self.flush_text();
                let is_known = update["rawInput"].as_object().is_some_and(|input| !input.is_empty());
                outputs.extend(
                    self.update_tool(update, is_known || !matches!(update["status"].as_str(), None | Some("pending"))),
                );
                outputs
            }
            Some("plan") => {
                let mut outputs = self.flush_text();
                outputs.push(plan_event(&update["entries"]));
                outputs
            }
            Some("usage_update") => {
                self.cost = session_cost(update).or(self.cost);
                Vec::new()
            }
            Some(name) if is_ignored_update(name) => Vec::new(),
            other => unknown_update(other),
        }
    }

    fn buffer_text(&mut self, kind: TextKind, update: &Value) -> Vec<AgentOutput> {
        let Some(text) = update["content"]["text"].as_str() else {
            let what = update["content"]["type"].as_str().unwrap_or("nothing").to_owned();
            return vec![AgentOutput::Unparsed { reason: format!("message chunk is not text but {what}") }];
        };
        let message = &update["messageId"];
        let goes_on = |words: &TextBuffer| {
            words.kind == kind && words.message == *message && words.text.len() < MAX_BUFFERED_BYTES
        };
        let mut outputs = if self.buffered_text.as_ref().is_some_and(goes_on) { Vec::new() } else { self.flush_text() };
        let words = self.buffered_text.get_or_insert_with(|| TextBuffer {
            kind,
            message: message.clone(),
            text: String::new(),
        });
        words.text.push_str(text);
        if kind == TextKind::Message {
            outputs.push(event_data::text_delta(text));
        }
        outputs
    }

    /// Emits the buffered text, which is complete.
    fn flush_text(&mut self) -> Vec<AgentOutput> {
        match self.buffered_text.take() {
            Some(buffer) if !buffer.text.trim().is_empty() => vec![match buffer.kind {
                TextKind::Message => event_data::message_event(&buffer.text, None, &ResponseRef::Unknown),
                TextKind::Thinking => event_data::thinking_event(&buffer.text, None, &ResponseRef::Unknown),
            }],
            Some(_) | None => Vec::new(),
        }
    }

    /// Handles a permission request, which may be the first mention of the tool.
    pub(super) fn report_permission_call(&mut self, call: &Value) -> Vec<AgentOutput> {
        let mut outputs = self.flush_text();
        outputs.extend(self.update_tool(call, true));
        outputs
    }

    pub(super) fn running_tool(&self, call: &Value) -> (String, Value) {
        match call["toolCallId"].as_str().and_then(|id| self.tools.get(id)) {
            Some(tool) => (tool.display_name(), tool.display_input()),
            None => ("unknown".to_owned(), call.clone()),
        }
    }

    fn update_tool(&mut self, call: &Value, is_complete: bool) -> Vec<AgentOutput> {
        let Some(id) = call["toolCallId"].as_str() else {
            return vec![AgentOutput::Unparsed { reason: "tool call without an id".to_owned() }];
        };
        let mut forgotten = Vec::new();
        if !self.tools.contains_key(id) {
            forgotten.extend(self.tools.insert(id, RunningTool::default()));
        }
        let mut started = None;
        forgotten.extend(self.tools.update(id, |tool| {
            tool.merge_update(call);
            if is_complete && !tool.is_reported {
                tool.is_reported = true;
                let (name, input) = (tool.display_name(), tool.display_input());
                let (tool_use_id, title) = (id.to_owned(), Some(clip_text(&tool.title).to_owned()));
                started = Some(ToolUse { tool: name, tool_use_id, input, title, ..ToolUse::default() });
            }
        }));
        let reported = forgotten.iter().filter(|(_, tool)| tool.is_reported);
        let mut outputs: Vec<AgentOutput> =
            reported.map(|(id, tool)| event_data::tool_forgotten(id, &tool.display_name())).collect();
        if let Some(started) = started {
            let extra = event_data::tool_use_events(&started.tool, id, &started.input);
            outputs.push(event_data::tool_started(started, &ResponseRef::Unknown));
            outputs.extend(extra);
        }
        let is_error = match call["status"].as_str() {
            Some("completed") => false,
            Some("failed") => true,
            Some(_) | None => return outputs,
        };
        let output = self.tools.get(id).map(|tool| tool.output_text(call)).unwrap_or_default();
        outputs.extend(self.end_tool(id, &output, is_error));
        outputs
    }

    fn end_tool(&mut self, id: &str, output: &str, is_error: bool) -> Vec<AgentOutput> {
        let Some(tool) = self.tools.remove(id) else { return Vec::new() };
        let name = tool.display_name();
        let extra = event_data::tool_result_events(&name, id, output, is_error);
        let ended = event_data::tool_ended(ToolCompleted {
            tool: name,
            tool_use_id: id.to_owned(),
            output: output.into(),
            is_error,
            ..ToolCompleted::default()
        });
        std::iter::once(ended).chain(extra).collect()
    }

    /// Ends the turn: running tools will not report their end.
    pub(super) fn end_turn(&mut self) -> Vec<AgentOutput> {
        let mut outputs = self.flush_text();
        let open: Vec<String> =
            self.tools.iter().filter(|(_, tool)| tool.is_reported).map(|(id, _)| id.to_owned()).collect();
        for id in open {
            outputs.extend(self.end_tool(&id, "the turn ended before the tool", true));
        }
        self.tools.clear();
        outputs
    }

    /// Reports the turn's usage from the formats that agents use.
    pub(super) fn usage_events(&mut self, result: &Value) -> Vec<AgentOutput> {
        let cost = self.cost.map(|cost| (cost - self.reported_cost).max(0.0));
        self.reported_cost = self.cost.unwrap_or(self.reported_cost);
        let usage = &result["usage"];
        let quota = &result["_meta"]["quota"]["token_count"];
        let of = |names: [&Value; 2]| names.into_iter().find_map(Value::as_i64).unwrap_or(0);
        let (input, output) = (
            of([&usage["inputTokens"], &quota["input_tokens"]]),
            of([&usage["outputTokens"], &quota["output_tokens"]]),
        );
        let (read, written) =
            (of([&usage["cachedReadTokens"], &Value::Null]), of([&usage["cachedWriteTokens"], &Value::Null]));
        if input == 0 && output == 0 && cost.is_none_or(|cost| cost == 0.0) {
            return Vec::new();
        }
        // If the turn used one model only, report it.
        let model = match result["_meta"]["quota"]["model_usage"].as_array().map(Vec::as_slice) {
            Some([one]) => one["model"].as_str().map(str::to_owned),
            Some(_) | None => None,
        };
        let data = AgentUsage {
            input_tokens: input,
            output_tokens: output,
            cache_read_tokens: read,
            cache_write_tokens: written,
            cost_usd: cost,
            model,
            ..AgentUsage::default()
        };
        vec![build_event(EventData::AgentUsage(data), EventEffect::None)]
    }
}

impl RunningTool {
    fn merge_update(&mut self, call: &Value) {
        for (field, name) in [(&mut self.kind, "kind"), (&mut self.name, "name"), (&mut self.title, "title")] {
            if let Some(text) = call[name].as_str() {
                text.clone_into(field);
            }
        }
        let is_more = |value: &Value| match value {
            Value::Object(all) => !all.is_empty(),
            Value::Array(all) => !all.is_empty(),
            Value::Null => false,
            Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        };
        if is_more(&call["rawInput"]) {
            self.input = call["rawInput"].clone();
        }
        if is_more(&call["content"]) {
            self.content = call["content"].clone();
        }
        if let Some(text) = call["_meta"]["terminal_output_delta"]["data"].as_str() {
            let room = MAX_BUFFERED_BYTES.saturating_sub(self.output.len());
            self.output.push_str(&text[..text.floor_char_boundary(room)]);
        }
    }

    /// Uses other agents' names for equivalent tools.
    fn display_name(&self) -> String {
        let name = match self.kind.as_str() {
            "execute" => "Bash",
            "edit" => "Edit",
            "read" => "Read",
            "search" => "Grep",
            "fetch" => "WebFetch",
            "delete" => "Delete",
            "move" => "Move",
            "think" => "Think",
            _ => [&*self.name, &*self.title].into_iter().find(|name| !name.is_empty()).unwrap_or("unknown"),
        };
        clip_text(name).to_owned()
    }

    /// Returns the tool's input, or the title and content if there is none.
    fn display_input(&self) -> Value {
        if !self.input.is_null() {
            return self.input.clone();
        }
        match self.kind.as_str() {
            "execute" => json!({"command": self.title, "content": self.content}),
            _ => json!({"title": self.title, "content": self.content}),
        }
    }

    fn output_text(&self, call: &Value) -> String {
        let raw = &call["rawOutput"];
        match (raw.as_str(), raw["output"].as_str()) {
            (Some(text), _) | (None, Some(text)) if !text.is_empty() => return text.to_owned(),
            _ => {}
        }
        let blocks = call["content"].as_array().into_iter().flatten();
        let texts: Vec<&str> = blocks.filter_map(|block| block["content"]["text"].as_str()).collect();
        if texts.is_empty() { self.output.clone() } else { texts.join("\n") }
    }
}

/// Updates of session options, and echoes of our messages.
fn is_ignored_update(name: &str) -> bool {
    matches!(
        name,
        "user_message_chunk"
            | "available_commands_update"
            | "current_mode_update"
            | "current_model_update"
            | "config_option_update"
            | "session_info_update"
    )
}

fn unknown_update(name: Option<&str>) -> Vec<AgentOutput> {
    vec![AgentOutput::Unparsed { reason: format!("unknown update kind {name:?}") }]
}

fn session_cost(update: &Value) -> Option<f64> {
    let cost = &update["cost"];
    cost["amount"].as_f64().filter(|_| cost["currency"].as_str().is_none_or(|currency| currency == "USD"))
}

fn plan_event(entries: &Value) -> AgentOutput {
    let one = |entry: &Value| json!({"text": entry["content"], "state": entry["status"]});
    event_data::plan_event(entries.as_array().into_iter().flatten().map(one).collect())
}
