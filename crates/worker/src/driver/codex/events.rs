//! What Codex does, as events.

use super::super::{Mark, Origin, Said, event, part};
use crate::driver::shown::{self, clip};
use atoll_core::event::kind;
use atoll_core::id::MessageId;
use atoll_protocol::LeasedMessage;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Turn {
    /// What a turn begins with: of the conversation.
    about: Value,
    tools: BTreeMap<String, Tool>,
    /// Under which tool another agent's conversation runs.
    parents: BTreeMap<String, String>,
    spent: Tokens,
    is_running: bool,
    /// That it failed has been told already.
    error_told: bool,
}

#[derive(Debug)]
struct Tool {
    name: String,
    input: Value,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tokens {
    input: i64,
    cached: i64,
    written: i64,
    output: i64,
}

pub(super) fn injected(id: MessageId) -> Said {
    event(kind::AGENT_MESSAGE_INJECTED, &json!({"message_id": id}), Mark::Plain)
}

impl Turn {
    pub(super) fn opened(&mut self, result: &Value) {
        let thread = &result["thread"];
        let model = if result["model"].is_null() { &thread["model"] } else { &result["model"] };
        self.about = json!({
            "agent": "codex", "version": thread["cliVersion"], "model": model, "cwd": thread["cwd"],
            "permission_mode": result["approvalPolicy"],
        });
    }

    pub(super) fn begins(&mut self, thread: Option<&str>) -> Said {
        self.tools.clear();
        (self.is_running, self.error_told) = (true, false);
        let mut data = if self.about.is_object() { self.about.clone() } else { json!({"agent": "codex"}) };
        data["native_id"] = thread.into();
        event(kind::AGENT_STARTED, &data, Mark::TurnBegins)
    }

    /// The name and the input of a tool under way.
    pub(super) fn tool(&self, id: &str) -> (Option<&str>, Value) {
        self.tools.get(id).map_or((None, json!({})), |tool| (Some(&tool.name), tool.input.clone()))
    }

    pub(super) fn noticed(&mut self, method: &str, params: Value, is_ours: bool) -> Vec<Said> {
        match method {
            "item/started" | "item/completed" => {
                let parent = if is_ours { None } else { self.parent(&params["threadId"]) };
                if method == "item/started" {
                    self.item_begins(&params["item"], parent.as_deref())
                } else {
                    self.item_ends(&params["item"], parent.as_deref())
                }
            }
            "item/agentMessage/delta" if is_ours => match params["delta"].as_str() {
                Some(text) => vec![Said::Live(atoll_core::json::raw(&json!({"text": text})))],
                None => vec![Said::Unparsed { reason: "a piece of text without text".to_owned() }],
            },
            "turn/plan/updated" if is_ours => vec![plan(&params["plan"])],
            "thread/tokenUsage/updated" => {
                // It comes with the end of each answer, and is all that tells it.
                let parent = if is_ours { None } else { self.parent(&params["threadId"]) };
                let mut said = vec![Said::AnswerEnds { parent }];
                said.extend(self.usage(&params["tokenUsage"]["total"], is_ours));
                said
            }
            "error" => self.error(&params),
            "warning" | "configWarning" | "guardianWarning" | "deprecationNotice" | "model/rerouted" => {
                let data = json!({"subtype": method, "data": shown::bounded(&params)});
                vec![event(kind::AGENT_SYSTEM_MESSAGE, &data, Mark::Plain)]
            }
            method if is_known(method) => Vec::new(),
            method => vec![Said::Unparsed { reason: format!("a notice of the unknown name `{method}`") }],
        }
    }

    fn parent(&self, thread: &Value) -> Option<String> {
        let thread = thread.as_str()?;
        Some(self.parents.get(thread).cloned().unwrap_or_else(|| thread.to_owned()))
    }

    fn item_begins(&mut self, item: &Value, parent: Option<&str>) -> Vec<Said> {
        match (item["type"].as_str(), item["id"].as_str()) {
            (Some(kind), _) if is_no_tool(kind) => Vec::new(),
            (Some(kind), Some(id)) => match tool_of(kind, item) {
                Some(tool) => self.tool_begins(id, tool, item, parent),
                None => vec![Said::Unparsed { reason: format!("an item of the unknown type `{kind}`") }],
            },
            (_, _) => vec![Said::Unparsed { reason: "an item without a type or a name".to_owned() }],
        }
    }

    fn tool_begins(&mut self, id: &str, tool: Tool, item: &Value, parent: Option<&str>) -> Vec<Said> {
        for thread in item["receiverThreadIds"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            self.parents.insert(thread.to_owned(), id.to_owned());
        }
        let data = json!({"tool": tool.name, "tool_use_id": id, "input": shown::bounded(&tool.input)});
        let mut said = vec![part(
            kind::AGENT_TOOL_USE,
            &with_parent(data, parent),
            Mark::ToolBegins(id.to_owned()),
            &Origin::Running,
        )];
        if is_spawn(item) {
            let data = json!({"tool_use_id": id, "description": item["prompt"], "subagent": item["model"]});
            said.push(event(kind::AGENT_SUBAGENT_INVOKED, &data, Mark::Plain));
        }
        self.tools.insert(id.to_owned(), tool);
        said
    }

    fn item_ends(&mut self, item: &Value, parent: Option<&str>) -> Vec<Said> {
        let text = |name: &str| item[name].as_str().unwrap_or_default();
        match item["type"].as_str() {
            Some("agentMessage" | "plan") if text("text").trim().is_empty() => Vec::new(),
            Some("agentMessage" | "plan") => {
                let data = with_parent(json!({"text": clip(text("text"))}), parent);
                vec![part(kind::AGENT_MESSAGE, &data, Mark::Plain, &Origin::Running)]
            }
            Some("reasoning") => thought(item, parent),
            Some(subtype @ ("enteredReviewMode" | "exitedReviewMode" | "contextCompaction")) => {
                let data = json!({"subtype": subtype, "data": shown::bounded(item)});
                vec![event(kind::AGENT_SYSTEM_MESSAGE, &data, Mark::Plain)]
            }
            Some(kind) if is_no_tool(kind) => Vec::new(),
            Some(kind) => self.tool_ends(kind, item, parent),
            None => vec![Said::Unparsed { reason: "an item without a type".to_owned() }],
        }
    }

    fn tool_ends(&mut self, item_kind: &str, item: &Value, parent: Option<&str>) -> Vec<Said> {
        let Some(id) = item["id"].as_str() else {
            return vec![Said::Unparsed { reason: "a tool without a name".to_owned() }];
        };
        let mut said = Vec::new();
        if !self.tools.contains_key(id) {
            said.extend(self.item_begins(item, parent));
        }
        let Some(tool) = self.tools.remove(id) else { return said };
        let (output, is_error) = result_of(item_kind, item);
        let data = json!({"tool": tool.name, "tool_use_id": id, "output": clip(&output), "is_error": is_error,
            "exit_code": item["exitCode"]});
        said.push(event(kind::AGENT_TOOL_COMPLETED, &with_parent(data, parent), Mark::ToolEnds(id.to_owned())));
        if is_spawn(item) {
            let data = json!({"tool_use_id": id, "output": clip(&output), "is_error": is_error});
            said.push(event(kind::AGENT_SUBAGENT_COMPLETED, &data, Mark::Plain));
        }
        said
    }

    /// What it says is the sum; what came before this process was told by another one.
    fn usage(&mut self, total: &Value, is_ours: bool) -> Vec<Said> {
        if !is_ours {
            return Vec::new();
        }
        let of = |name: &str| total[name].as_i64().unwrap_or(0);
        let now = Tokens {
            input: of("inputTokens"),
            cached: of("cachedInputTokens"),
            written: of("cacheWriteInputTokens"),
            output: of("outputTokens"),
        };
        let before = std::mem::replace(&mut self.spent, now);
        let more = |now: i64, before: i64| now.saturating_sub(before).max(0);
        let (cached, written) = (more(now.cached, before.cached), more(now.written, before.written));
        let (input, output) = (more(now.input, before.input), more(now.output, before.output));
        if !self.is_running || input + output == 0 {
            return Vec::new();
        }
        // Those from the cache are among those that went in.
        let fresh = input.saturating_sub(cached.saturating_add(written)).max(0);
        let data = json!({"input_tokens": fresh, "output_tokens": output, "cache_read_tokens": cached,
            "cache_write_tokens": written, "model": self.about["model"]});
        vec![event(kind::AGENT_USAGE, &data, Mark::Plain)]
    }

    fn error(&mut self, params: &Value) -> Vec<Said> {
        let error = &params["error"];
        let message = error["message"].as_str().unwrap_or("it gave no reason");
        let info = &error["codexErrorInfo"];
        let status = info.as_object().and_then(|info| info.values().next()).map(|info| &info["httpStatusCode"]);
        let data = json!({"error": clip(message), "status": status, "details": error["additionalDetails"]});
        if params["willRetry"] != true {
            self.error_told = true;
            return vec![event(kind::AGENT_ERROR, &data, Mark::Plain)];
        }
        let mut said = vec![event(kind::AGENT_STREAM_ERROR, &data, Mark::Plain)];
        let is_limit = matches!(info.as_str(), Some("rateLimitExceeded" | "usageLimitExceeded" | "serverOverloaded"));
        if is_limit || matches!(status.and_then(Value::as_u64), Some(429 | 529)) {
            said.push(Said::RateLimited { wait: None });
        }
        said
    }

    pub(super) fn over(&mut self, turn: &Value, interrupt: Option<&LeasedMessage>) -> Vec<Said> {
        self.tools.clear();
        self.is_running = false;
        match turn["status"].as_str() {
            Some("completed") => {
                let data = json!({"stop_reason": "end_turn", "duration_ms": turn["durationMs"]});
                vec![event(kind::AGENT_COMPLETED, &data, Mark::TurnEnds), Said::Idle]
            }
            Some("interrupted") => {
                let id = interrupt.map(|message| message.id);
                let text = interrupt.map(|message| clip(&message.content));
                let data = json!({"message_id": id, "text": text});
                vec![event(kind::AGENT_INTERRUPTED, &data, Mark::TurnEnds), Said::Idle]
            }
            status => {
                let error = turn["error"]["message"].as_str();
                let error = error.unwrap_or_else(|| status.unwrap_or("it gave no reason")).to_owned();
                let mut said = Vec::new();
                if !self.error_told {
                    said.push(event(kind::AGENT_ERROR, &json!({"error": clip(&error)}), Mark::Plain));
                }
                said.push(Said::Failed { error });
                said
            }
        }
    }
}

fn with_parent(mut data: Value, parent: Option<&str>) -> Value {
    if let Some(parent) = parent {
        data["parent_tool_use_id"] = parent.into();
    }
    data
}

/// Items that are words, or marks in the conversation.
fn is_no_tool(kind: &str) -> bool {
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

fn is_spawn(item: &Value) -> bool {
    item["type"] == "collabAgentToolCall" && item["tool"] == "spawnAgent"
}

/// By the names that other agents have for the same, where there are some.
fn tool_of(kind: &str, item: &Value) -> Option<Tool> {
    let text = |name: &str| item[name].as_str().unwrap_or_default();
    let (name, input) = match kind {
        "commandExecution" => ("Bash".to_owned(), json!({"command": item["command"], "cwd": item["cwd"]})),
        "fileChange" => (changing(&item["changes"]).to_owned(), json!({"changes": item["changes"]})),
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
    Some(Tool { name, input })
}

fn changing(changes: &Value) -> &'static str {
    match changes.as_array().map(Vec::as_slice) {
        Some([one]) if one["kind"]["type"] == "add" => "Write",
        Some([one]) if one["kind"]["type"] == "update" => "Edit",
        Some(_) | None => "apply_patch",
    }
}

fn result_of(kind: &str, item: &Value) -> (String, bool) {
    let status = item["status"].as_str().unwrap_or_default();
    let mut is_error = matches!(status, "failed" | "declined");
    let mut output = match kind {
        "commandExecution" => {
            is_error |= item["exitCode"].as_i64().is_some_and(|code| code != 0);
            item["aggregatedOutput"].as_str().unwrap_or_default().to_owned()
        }
        "mcpToolCall" if item["error"].is_object() => shown::text_of(&item["error"]),
        "mcpToolCall" => shown::text_of(&item["result"]["content"]),
        "dynamicToolCall" => {
            is_error |= item["success"] == false;
            shown::text_of(&item["contentItems"])
        }
        "webSearch" => shown::text_of(&item["results"]),
        _ => String::new(),
    };
    if output.is_empty() && !status.is_empty() && status != "completed" {
        output = status.to_owned();
    }
    (output, is_error)
}

fn thought(item: &Value, parent: Option<&str>) -> Vec<Said> {
    let texts = |name: &str| {
        let parts = item[name].as_array().into_iter().flatten();
        parts.map(shown::text_of).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
    };
    let text = Some(texts("summary")).filter(|text| !text.is_empty()).unwrap_or_else(|| texts("content"));
    if text.trim().is_empty() {
        return Vec::new();
    }
    let data = with_parent(json!({"text": clip(&text)}), parent);
    vec![part(kind::AGENT_THINKING, &data, Mark::Plain, &Origin::Running)]
}

fn plan(steps: &Value) -> Said {
    let state = |step: &Value| match step["status"].as_str() {
        Some("inProgress") => "in_progress".to_owned(),
        other => other.unwrap_or("pending").to_owned(),
    };
    let one = |step: &Value| json!({"text": step["step"], "state": state(step)});
    let items: Vec<Value> = steps.as_array().into_iter().flatten().map(one).collect();
    event(kind::AGENT_PLAN, &json!({"items": shown::bounded(&Value::Array(items))}), Mark::Plain)
}

/// What it tells about itself and nothing follows from: it comes again in another form, or is no news here. By whole
/// names: what a later version has beside them may be news.
fn is_known(method: &str) -> bool {
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
    // Voices are not used here.
    KNOWN.contains(&method) || method.starts_with("thread/realtime/")
}
