//! Converts Codex notifications into events.

use crate::bounded::{BoundedMap, HeldSize};
use crate::event_clipping::{clip_short_value, clip_text};
use crate::event_data;
use crate::{AgentOutput, EventEffect, ResponseRef, build_event};
use atoll_api::events::{
    AgentCompleted, AgentError, AgentStarted, AgentStreamError, AgentUsage, EventData, ToolCompleted, ToolUse,
};
use atoll_protocol::LeasedMessage;
use serde_json::{Value, json};

#[derive(Debug, Default)]
pub(super) struct CodexTurn {
    /// Data of `agent.started` that describes the conversation.
    session_info: AgentStarted,
    tools: BoundedMap<RunningTool>,
    /// The tool call that started each subagent's thread.
    parents: BoundedMap<String>,
    reported_tokens: TokenCounts,
    is_running: bool,
    /// The turn's error is already reported.
    error_reported: bool,
}

#[derive(Debug)]
struct RunningTool {
    name: String,
    input: Value,
}

impl HeldSize for RunningTool {
    fn held_bytes(&self) -> usize {
        self.name.len() + self.input.held_bytes()
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct TokenCounts {
    input: i64,
    cached: i64,
    written: i64,
    output: i64,
}

impl CodexTurn {
    pub(super) fn set_session_info(&mut self, result: &Value) {
        let thread = &result["thread"];
        let model = if result["model"].is_null() { &thread["model"] } else { &result["model"] };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        self.session_info = AgentStarted {
            version: text(&thread["cliVersion"]),
            model: text(model),
            cwd: text(&thread["cwd"]),
            permission_mode: result.get("approvalPolicy").filter(|policy| !policy.is_null()).map(clip_short_value),
            ..AgentStarted::default()
        };
    }

    pub(super) fn start_turn(&mut self, thread: Option<&str>) -> AgentOutput {
        self.tools.clear();
        (self.is_running, self.error_reported) = (true, false);
        let data = AgentStarted {
            agent: Some("codex".to_owned()),
            native_id: thread.map(str::to_owned),
            ..self.session_info.clone()
        };
        build_event(EventData::AgentStarted(data), EventEffect::TurnStarted)
    }

    /// Returns the name and input of a running tool.
    pub(super) fn running_tool(&self, id: &str) -> (Option<&str>, Value) {
        self.tools.get(id).map_or((None, json!({})), |tool| (Some(&tool.name), tool.input.clone()))
    }

    pub(super) fn convert_notification(&mut self, method: &str, params: Value, is_ours: bool) -> Vec<AgentOutput> {
        match method {
            "item/started" | "item/completed" => {
                let parent = if is_ours { None } else { self.parent_tool(&params["threadId"]) };
                if method == "item/started" {
                    self.start_item(&params["item"], parent.as_deref())
                } else {
                    self.end_item(&params["item"], parent.as_deref())
                }
            }
            "item/agentMessage/delta" if is_ours => match params["delta"].as_str() {
                Some(text) => vec![event_data::text_delta(text)],
                None => vec![AgentOutput::Unparsed { reason: "text delta without text".to_owned() }],
            },
            "turn/plan/updated" if is_ours => vec![plan_event(&params["plan"])],
            "thread/tokenUsage/updated" => {
                // Codex sends this at the end of each response.
                let parent = if is_ours { None } else { self.parent_tool(&params["threadId"]) };
                let mut outputs = vec![AgentOutput::ResponseEnded { parent }];
                outputs.extend(self.usage_events(&params["tokenUsage"]["total"], is_ours));
                outputs
            }
            "error" => self.error_events(&params),
            "warning" | "configWarning" | "guardianWarning" | "deprecationNotice" | "model/rerouted" => {
                vec![event_data::system_event(method, Some(&params))]
            }
            method if is_ignored_notification(method) => Vec::new(),
            method => vec![AgentOutput::Unparsed { reason: format!("unknown notification `{method}`") }],
        }
    }

    fn parent_tool(&self, thread: &Value) -> Option<String> {
        let thread = thread.as_str()?;
        Some(self.parents.get(thread).cloned().unwrap_or_else(|| thread.to_owned()))
    }

    fn start_item(&mut self, item: &Value, parent: Option<&str>) -> Vec<AgentOutput> {
        match (item["type"].as_str(), item["id"].as_str()) {
            (Some(kind), _) if is_plain_item(kind) => Vec::new(),
            (Some(kind), Some(id)) => match convert_tool(kind, item) {
                Some(tool) => self.start_tool(id, tool, item, parent),
                None => vec![AgentOutput::Unparsed { reason: format!("unknown item type `{kind}`") }],
            },
            (_, _) => vec![AgentOutput::Unparsed { reason: "item without a type or id".to_owned() }],
        }
    }

    fn start_tool(&mut self, id: &str, tool: RunningTool, item: &Value, parent: Option<&str>) -> Vec<AgentOutput> {
        for thread in item["receiverThreadIds"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            self.parents.insert(thread, id.to_owned());
        }
        let started = ToolUse {
            tool: tool.name.clone(),
            tool_use_id: id.to_owned(),
            input: tool.input.clone(),
            parent_tool_use_id: parent.map(str::to_owned),
            ..ToolUse::default()
        };
        let mut outputs = vec![event_data::tool_started(started, &ResponseRef::Current)];
        if spawns_agent(item) {
            outputs.push(event_data::subagent_invoked(id, &item["prompt"], &item["model"]));
        }
        let forgotten = self.tools.insert(id, tool);
        outputs.extend(forgotten.iter().map(|(id, tool)| event_data::tool_forgotten(id, &tool.name)));
        outputs
    }

    fn end_item(&mut self, item: &Value, parent: Option<&str>) -> Vec<AgentOutput> {
        match item["type"].as_str() {
            Some("agentMessage" | "plan") => match item["text"].as_str() {
                Some(text) if text.trim().is_empty() => Vec::new(),
                Some(text) => vec![event_data::message_event(text, parent, &ResponseRef::Current)],
                None => vec![AgentOutput::Unparsed { reason: "message without a text".to_owned() }],
            },
            Some("reasoning") => reasoning_events(item, parent),
            Some(subtype @ ("enteredReviewMode" | "exitedReviewMode" | "contextCompaction")) => {
                vec![event_data::system_event(subtype, Some(item))]
            }
            Some(kind) if is_plain_item(kind) => Vec::new(),
            Some(kind) => self.end_tool(kind, item, parent),
            None => vec![AgentOutput::Unparsed { reason: "item without a type".to_owned() }],
        }
    }

    fn end_tool(&mut self, item_kind: &str, item: &Value, parent: Option<&str>) -> Vec<AgentOutput> {
        let Some(id) = item["id"].as_str() else {
            return vec![AgentOutput::Unparsed { reason: "tool call without an id".to_owned() }];
        };
        let mut outputs = Vec::new();
        if !self.tools.contains_key(id) {
            outputs.extend(self.start_item(item, parent));
        }
        let Some(tool) = self.tools.remove(id) else { return outputs };
        let (output, is_error) = tool_result(item_kind, item);
        outputs.push(event_data::tool_ended(ToolCompleted {
            tool: tool.name,
            tool_use_id: id.to_owned(),
            output: output.as_str().into(),
            is_error,
            exit_code: item["exitCode"].as_i64(),
            parent_tool_use_id: parent.map(str::to_owned),
            ..ToolCompleted::default()
        }));
        if spawns_agent(item) {
            outputs.push(event_data::subagent_completed(id, &output, is_error));
        }
        outputs
    }

    /// Reports the tokens since the last report: Codex sends totals of the whole conversation.
    fn usage_events(&mut self, total: &Value, is_ours: bool) -> Vec<AgentOutput> {
        if !is_ours {
            return Vec::new();
        }
        let of = |name: &str| total[name].as_i64().unwrap_or(0);
        let now = TokenCounts {
            input: of("inputTokens"),
            cached: of("cachedInputTokens"),
            written: of("cacheWriteInputTokens"),
            output: of("outputTokens"),
        };
        let before = std::mem::replace(&mut self.reported_tokens, now);
        let more = |now: i64, before: i64| now.saturating_sub(before).max(0);
        let (cached, written) = (more(now.cached, before.cached), more(now.written, before.written));
        let (input, output) = (more(now.input, before.input), more(now.output, before.output));
        if !self.is_running || input + output == 0 {
            return Vec::new();
        }
        // Input tokens include cached ones.
        let fresh = input.saturating_sub(cached.saturating_add(written)).max(0);
        let data = AgentUsage {
            input_tokens: fresh,
            output_tokens: output,
            cache_read_tokens: cached,
            cache_write_tokens: written,
            model: self.session_info.model.clone(),
            ..AgentUsage::default()
        };
        vec![build_event(EventData::AgentUsage(data), EventEffect::None)]
    }

    fn error_events(&mut self, params: &Value) -> Vec<AgentOutput> {
        let error = &params["error"];
        let message = error["message"].as_str().unwrap_or("no reason given");
        let info = &error["codexErrorInfo"];
        let status = info.as_object().and_then(|info| info.values().next()).map(|info| &info["httpStatusCode"]);
        let details = Some(&error["additionalDetails"]).filter(|details| !details.is_null()).cloned();
        if params["willRetry"] != true {
            self.error_reported = true;
            let error =
                AgentError { error: message.to_owned(), status: status.cloned(), details, ..AgentError::default() };
            return vec![event_data::error_event(error)];
        }
        let (error, status_code) = (Some(clip_text(message).into()), status.cloned());
        let data = AgentStreamError { error, status: status_code, details, ..AgentStreamError::default() };
        let mut outputs = vec![build_event(EventData::AgentStreamError(data), EventEffect::None)];
        let is_limit = matches!(info.as_str(), Some("rateLimitExceeded" | "usageLimitExceeded" | "serverOverloaded"));
        if is_limit || matches!(status.and_then(Value::as_u64), Some(429 | 529)) {
            outputs.push(AgentOutput::RateLimited { wait: None });
        }
        outputs
    }

    pub(super) fn end_turn(&mut self, turn: &Value, interrupt: Option<&LeasedMessage>) -> Vec<AgentOutput> {
        self.tools.clear();
        self.is_running = false;
        match turn["status"].as_str() {
            Some("completed") => {
                let data = AgentCompleted {
                    stop_reason: Some("end_turn".to_owned()),
                    duration_ms: turn["durationMs"].as_number().cloned(),
                    ..AgentCompleted::default()
                };
                vec![build_event(EventData::AgentCompleted(data), EventEffect::TurnEnded), AgentOutput::Idle]
            }
            Some("interrupted") => vec![event_data::turn_interrupted(interrupt), AgentOutput::Idle],
            status => {
                let error = turn["error"]["message"].as_str();
                let error = error.unwrap_or_else(|| status.unwrap_or("no reason given")).to_owned();
                let mut outputs = Vec::new();
                if !self.error_reported {
                    outputs.push(event_data::plain_error(&error));
                }
                outputs.push(AgentOutput::Failed { error });
                outputs
            }
        }
    }
}

/// Returns true for items that are not tool calls.
fn is_plain_item(kind: &str) -> bool {
    matches!(
        kind,
        "userMessage"
            | "agentMessage"
            | "plan"
            | "reasoning"
            | "hookPrompt"
            | "functionCallOutput"
            | "subAgentActivity"
            | "enteredReviewMode"
            | "exitedReviewMode"
            | "contextCompaction"
    )
}

fn spawns_agent(item: &Value) -> bool {
    item["type"] == "collabAgentToolCall" && item["tool"] == "spawnAgent"
}

/// Uses other agents' names for equivalent tools.
fn convert_tool(kind: &str, item: &Value) -> Option<RunningTool> {
    let text = |name: &str| item[name].as_str().unwrap_or_default();
    let (name, input) = match kind {
        "commandExecution" => ("Bash".to_owned(), json!({"command": item["command"], "cwd": item["cwd"]})),
        "fileChange" => (file_change_tool(&item["changes"]).to_owned(), json!({"changes": item["changes"]})),
        "mcpToolCall" => (format!("mcp__{}__{}", text("server"), text("tool")), item["arguments"].clone()),
        "dynamicToolCall" => (text("tool").to_owned(), item["arguments"].clone()),
        "collabAgentToolCall" => (
            text("tool").to_owned(),
            json!({"prompt": item["prompt"], "model": item["model"], "agents": item["receiverThreadIds"]}),
        ),
        "webSearch" => ("WebSearch".to_owned(), json!({"query": item["query"], "action": item["action"]})),
        "imageView" => ("ViewImage".to_owned(), json!({"path": item["path"]})),
        "imageGeneration" => ("GenerateImage".to_owned(), json!({"prompt": item["revisedPrompt"]})),
        "sleep" => ("Sleep".to_owned(), json!({"duration_ms": item["durationMs"]})),
        _ => return None,
    };
    Some(RunningTool { name, input })
}

fn file_change_tool(changes: &Value) -> &'static str {
    match changes.as_array().map(Vec::as_slice) {
        Some([one]) if one["kind"]["type"] == "add" => "Write",
        Some([one]) if one["kind"]["type"] == "update" => "Edit",
        Some(_) | None => "apply_patch",
    }
}

fn tool_result(kind: &str, item: &Value) -> (String, bool) {
    let status = item["status"].as_str().unwrap_or_default();
    let mut is_error = matches!(status, "failed" | "declined");
    let mut output = match kind {
        "commandExecution" => {
            is_error |= item["exitCode"].as_i64().is_some_and(|code| code != 0);
            item["aggregatedOutput"].as_str().unwrap_or_default().to_owned()
        }
        "mcpToolCall" if item["error"].is_object() => event_data::extract_text(&item["error"]),
        "mcpToolCall" => event_data::extract_text(&item["result"]["content"]),
        "dynamicToolCall" => {
            is_error |= item["success"] == false;
            event_data::extract_text(&item["contentItems"])
        }
        "webSearch" => event_data::extract_text(&item["results"]),
        _ => String::new(),
    };
    if output.is_empty() && !status.is_empty() && status != "completed" {
        output = status.to_owned();
    }
    (output, is_error)
}

fn reasoning_events(item: &Value, parent: Option<&str>) -> Vec<AgentOutput> {
    let texts = |name: &str| {
        let parts = item[name].as_array().into_iter().flatten();
        parts.map(event_data::extract_text).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
    };
    let text = Some(texts("summary")).filter(|text| !text.is_empty()).unwrap_or_else(|| texts("content"));
    if text.trim().is_empty() {
        return Vec::new();
    }
    vec![event_data::thinking_event(&text, parent, &ResponseRef::Current)]
}

fn plan_event(steps: &Value) -> AgentOutput {
    let state = |step: &Value| match step["status"].as_str() {
        Some("inProgress") => "in_progress".to_owned(),
        other => other.unwrap_or("pending").to_owned(),
    };
    let one = |step: &Value| json!({"text": step["step"], "state": state(step)});
    event_data::plan_event(steps.as_array().into_iter().flatten().map(one).collect())
}

/// Notifications without effect: they repeat other notifications or are irrelevant. Exact names, so that new ones of a
/// later version become `Unparsed`.
fn is_ignored_notification(method: &str) -> bool {
    const KNOWN: &[&str] = &[
        "account/gatewayOAuth/changed",
        "account/login/completed",
        "account/rateLimits/updated",
        "account/updated",
        "app/list/updated",
        "autoApprovalReview/strictReviewRequired",
        "command/exec/outputDelta",
        "externalAgentConfig/import/completed",
        "externalAgentConfig/import/progress",
        "fs/changed",
        "fuzzyFileSearch/sessionCompleted",
        "fuzzyFileSearch/sessionUpdated",
        "hook/completed",
        "hook/started",
        "item/agentMessage/delta",
        "item/autoApprovalReview/completed",
        "item/autoApprovalReview/started",
        "item/commandExecution/outputDelta",
        "item/commandExecution/terminalInteraction",
        "item/fileChange/outputDelta",
        "item/fileChange/patchUpdated",
        "item/mcpToolCall/progress",
        "item/plan/delta",
        "item/reasoning/summaryPartAdded",
        "item/reasoning/summaryTextDelta",
        "item/reasoning/textDelta",
        "mcpServer/event/stream/notification",
        "mcpServer/oauthLogin/completed",
        "mcpServer/startupStatus/updated",
        "model/safetyBuffering/updated",
        "model/verification",
        "modelProvider/authRecoveryCompleted",
        "modelProvider/authRecoveryStarted",
        "process/exited",
        "process/outputDelta",
        "project/changed",
        "remoteControl/status/changed",
        "skills/changed",
        "thread/archived",
        "thread/attachment/updated",
        "thread/closed",
        "thread/compacted",
        "thread/deleted",
        "thread/environment/connected",
        "thread/environment/disconnected",
        "thread/goal/cleared",
        "thread/goal/updated",
        "thread/name/updated",
        "thread/prediction/updated",
        "thread/project/updated",
        "thread/queue/changed",
        "thread/readState/changed",
        "thread/reverted",
        "thread/settings/updated",
        "thread/started",
        "thread/status/changed",
        "thread/unarchived",
        "turn/diff/updated",
        "turn/moderationMetadata",
        "turn/plan/updated",
        "windows/worldWritableWarning",
        "windowsSandbox/setupCompleted",
    ];
    // Voice is not used.
    KNOWN.contains(&method) || method.starts_with("thread/realtime/")
}
