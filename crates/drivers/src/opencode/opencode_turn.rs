//! Converts the parts of OpenCode's messages into events.

use crate::bounded::{BoundedMap, BoundedSet, HeldSize};
use crate::event_clipping::clip_text;
use crate::event_data;
use crate::{AgentOutput, EventEffect, ResponseRef, build_event};
use atoll_api::events::{AgentStarted, AgentStreamError, AgentUsage, EventData, ToolCompleted, ToolUse};
use serde_json::Value;

#[derive(Debug, Default)]
pub(super) struct OpenCodeTurn {
    /// As the model's messages report it.
    model: Option<String>,
    cwd: Option<String>,
    /// Ids of the model's messages in this turn.
    response_ids: BoundedSet,
    /// Parts with reasoning: their deltas look like those of text.
    reasoning_parts: BoundedSet,
    /// Ids of reported parts and tool calls.
    reported: BoundedSet,
    tools: BoundedMap<RunningTool>,
    /// The tool call that started each subagent's session.
    parents: BoundedMap<String>,
    finish_reason: Option<String>,
}

#[derive(Debug)]
struct RunningTool {
    name: String,
    input: Value,
    /// The tool call of the subagent that runs the tool.
    parent: Option<String>,
}

impl HeldSize for RunningTool {
    fn held_bytes(&self) -> usize {
        self.name.len() + self.input.held_bytes() + self.parent.held_bytes()
    }
}

impl OpenCodeTurn {
    pub(super) fn start_turn(&mut self, session: Option<&str>) -> AgentOutput {
        *self = Self { model: self.model.take(), cwd: self.cwd.take(), ..Self::default() };
        let data = AgentStarted {
            agent: Some("opencode".to_owned()),
            native_id: session.map(str::to_owned),
            model: self.model.clone(),
            cwd: self.cwd.clone(),
            ..AgentStarted::default()
        };
        build_event(EventData::AgentStarted(data), EventEffect::TurnStarted)
    }

    /// Records a message of the model.
    pub(super) fn record_response(&mut self, info: &Value) {
        if let Some(id) = info["id"].as_str() {
            self.response_ids.insert(id, ());
        }
        if let Some(finish) = info["finish"].as_str() {
            self.finish_reason = Some(finish.to_owned());
        }
        self.model = info["modelID"].as_str().map(str::to_owned);
        self.cwd = info["path"]["cwd"].as_str().map(str::to_owned);
    }

    pub(super) fn is_response(&self, message: &str) -> bool {
        self.response_ids.contains_key(message)
    }

    pub(super) fn has_response(&self) -> bool {
        !self.response_ids.is_empty()
    }

    /// Uses other agents' names for the stop reason.
    pub(super) fn stop_reason(&self) -> &str {
        match self.finish_reason.as_deref() {
            Some("stop") | None => "end_turn",
            Some("length") => "max_tokens",
            Some(other) => clip_text(other),
        }
    }

    pub(super) fn tool_input(&self, call: &str) -> Option<Value> {
        self.tools.get(call).map(|tool| tool.input.clone())
    }

    pub(super) fn text_delta(&mut self, piece: &Value) -> Vec<AgentOutput> {
        let Some(text) = piece["delta"].as_str() else {
            return vec![AgentOutput::Unparsed { reason: "text delta without text".to_owned() }];
        };
        let is_thought = piece["partID"].as_str().is_some_and(|part| self.reasoning_parts.contains_key(part));
        let is_answer = piece["messageID"].as_str().is_none_or(|message| self.is_response(message));
        if piece["field"] != "text" || is_thought || !is_answer {
            return Vec::new();
        }
        vec![event_data::text_delta(text)]
    }

    /// Handles a new or changed part. Of subagents only tools and usage are reported.
    pub(super) fn convert_part(&mut self, part: &Value, is_ours: bool) -> Vec<AgentOutput> {
        let (Some(kind), Some(id)) = (part["type"].as_str(), part["id"].as_str()) else {
            return vec![AgentOutput::Unparsed { reason: "part without a type or id".to_owned() }];
        };
        match kind {
            "tool" => self.convert_tool(part, is_ours),
            "step-finish" => self.report_once(id, |turn| {
                let parent = if is_ours { None } else { turn.parent_tool(part) };
                vec![AgentOutput::ResponseEnded { parent }, usage_event(part)]
            }),
            "text" | "reasoning" if is_ours => self.convert_text(kind, id, part),
            "retry" if is_ours => {
                vec![retry_event(&part["attempt"], &part["error"]["data"]["message"])]
            }
            "text" | "reasoning" | "retry" | "step-start" | "snapshot" | "patch" | "file" | "agent" | "subtask"
            | "compaction" => Vec::new(),
            other => vec![AgentOutput::Unparsed { reason: format!("unknown part type `{other}`") }],
        }
    }

    fn report_once(&mut self, id: &str, say: impl FnOnce(&mut Self) -> Vec<AgentOutput>) -> Vec<AgentOutput> {
        if self.reported.contains_key(id) {
            return Vec::new();
        }
        self.reported.insert(id, ());
        say(self)
    }

    fn convert_text(&mut self, kind: &str, id: &str, part: &Value) -> Vec<AgentOutput> {
        if kind == "reasoning" {
            self.reasoning_parts.insert(id, ());
        }
        let is_answer = part["messageID"].as_str().is_some_and(|message| self.is_response(message));
        let text = part["text"].as_str().unwrap_or_default();
        // A text with an end time is complete.
        if !is_answer || part["time"]["end"].is_null() || text.trim().is_empty() {
            return Vec::new();
        }
        let response = self.response_ref(part, true);
        let build = if kind == "reasoning" { event_data::thinking_event } else { event_data::message_event };
        self.report_once(id, |_| vec![build(text, None, &response)])
    }

    /// A subagent's model is unknown.
    fn response_ref(&self, part: &Value, is_ours: bool) -> ResponseRef {
        let model = self.model.clone().filter(|_| is_ours);
        part["messageID"].as_str().map_or(ResponseRef::Unknown, |id| ResponseRef::Named { id: id.to_owned(), model })
    }

    fn convert_tool(&mut self, part: &Value, is_ours: bool) -> Vec<AgentOutput> {
        let Some(id) = part["callID"].as_str() else {
            return vec![AgentOutput::Unparsed { reason: "tool call without an id".to_owned() }];
        };
        let (state, is_told) = (&part["state"], self.reported.contains_key(id));
        if let (Some(session), false) = (state["metadata"]["sessionId"].as_str(), is_told) {
            self.parents.insert(session, id.to_owned());
        }
        let (output, is_error) = match state["status"].as_str() {
            Some("pending") => return Vec::new(),
            _ if is_told => return Vec::new(),
            Some("running") => return self.start_tool(id, part, is_ours),
            Some("completed") => (event_data::extract_text(&state["output"]), false),
            Some("error") => (event_data::extract_text(&state["error"]), true),
            other => return vec![AgentOutput::Unparsed { reason: format!("unknown tool state {other:?}") }],
        };
        let mut outputs = self.start_tool(id, part, is_ours);
        outputs.extend(self.end_tool(id, &output, is_error, &state["metadata"]["exit"]));
        outputs
    }

    fn start_tool(&mut self, id: &str, part: &Value, is_ours: bool) -> Vec<AgentOutput> {
        if self.tools.contains_key(id) {
            return Vec::new();
        }
        let name = part["tool"].as_str().unwrap_or_default().to_owned();
        let parent = if is_ours { None } else { self.parent_tool(part) };
        let tool = RunningTool { name, input: part["state"]["input"].clone(), parent };
        let started = ToolUse {
            tool: tool.name.clone(),
            tool_use_id: id.to_owned(),
            input: tool.input.clone(),
            parent_tool_use_id: tool.parent.clone(),
            ..ToolUse::default()
        };
        let mut outputs = vec![event_data::tool_started(started, &self.response_ref(part, is_ours))];
        outputs.extend(event_data::tool_use_events(&tool.name, id, &tool.input));
        for (id, tool) in self.tools.insert(id, tool) {
            self.reported.insert(&id, ());
            outputs.push(event_data::tool_forgotten(&id, &tool.name));
        }
        outputs
    }

    /// Returns the tool call that started the part's session, or the only running subagent. With several subagents, the
    /// session id tells them apart.
    fn parent_tool(&self, part: &Value) -> Option<String> {
        let session = part["sessionID"].as_str();
        if let Some(parent) = session.and_then(|session| self.parents.get(session)) {
            return Some(parent.clone());
        }
        let mut agents = self.tools.iter().filter(|(_, tool)| tool.name == "task");
        match (agents.next(), agents.next()) {
            (Some((id, _)), None) => Some(id.to_owned()),
            (_, _) => session.map(str::to_owned),
        }
    }

    fn end_tool(&mut self, id: &str, output: &str, is_error: bool, exit: &Value) -> Vec<AgentOutput> {
        let Some(tool) = self.tools.remove(id) else { return Vec::new() };
        self.reported.insert(id, ());
        let extra = event_data::tool_result_events(&tool.name, id, output, is_error);
        let ended = event_data::tool_ended(ToolCompleted {
            tool: tool.name,
            tool_use_id: id.to_owned(),
            output: output.into(),
            is_error,
            exit_code: exit.as_i64(),
            parent_tool_use_id: tool.parent,
            ..ToolCompleted::default()
        });
        std::iter::once(ended).chain(extra).collect()
    }

    /// Ends the tools that will not report their end.
    pub(super) fn end_open_tools(&mut self) -> Vec<AgentOutput> {
        let open: Vec<String> = self.tools.iter().map(|(id, _)| id.to_owned()).collect();
        open.iter().flat_map(|id| self.end_tool(id, "the turn ended before the tool", true, &Value::Null)).collect()
    }
}

fn usage_event(part: &Value) -> AgentOutput {
    let tokens = &part["tokens"];
    let of = |value: &Value| value.as_i64().unwrap_or(0);
    let data = AgentUsage {
        input_tokens: of(&tokens["input"]),
        output_tokens: of(&tokens["output"]).saturating_add(of(&tokens["reasoning"])),
        cache_read_tokens: of(&tokens["cache"]["read"]),
        cache_write_tokens: of(&tokens["cache"]["write"]),
        // OpenCode reports no cost for models without a known price.
        cost_usd: part["cost"].as_f64().filter(|cost| *cost > 0.0),
        ..AgentUsage::default()
    };
    build_event(EventData::AgentUsage(data), EventEffect::None)
}

pub(super) fn retry_event(attempt: &Value, error: &Value) -> AgentOutput {
    let (attempt, error) = (Some(attempt.clone()), Some(error.clone()));
    let data = AgentStreamError { attempt, error, ..AgentStreamError::default() };
    build_event(EventData::AgentStreamError(data), EventEffect::None)
}
