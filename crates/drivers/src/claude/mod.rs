//! Claude Code: `claude -p` with `stream-json` lines, and its control protocol on the same pipes.
//!
//! A user message carries our message id as its `uuid`; with `--replay-user-messages` the agent echoes it when the
//! model reads it, which acknowledges the message. `PreToolUse` and `PostToolUse` hooks are control requests: the agent
//! waits before each tool for the policy's decision, and after it until the watcher has recorded the file changes.
//!
//! Subagents run in the background by default: the agent reports a result, then continues by itself when they end. Atoll's
//! turn lasts until nothing runs any more.

use super::{
    Abilities, AgentCommand, AgentOutput, AgentRequest, AgentTurn, Driver, LaunchContext, RequestAnswer, RequestKind,
    encode_line,
};
use crate::bounded::{BoundedMap, HeldSize};
use crate::event_data;
use crate::transcript::{TranscriptStorage, TranscriptSupport};
use atoll_core::id::MessageId;
use atoll_core::message::MessageType;
use atoll_protocol::LeasedMessage;
use claude_turn::ClaudeTurn;
use serde_json::{Value, json};

mod claude_launch;
mod claude_transcript;
mod claude_turn;
mod claude_wire;
#[cfg(test)]
mod tests;

const PRE_TOOL_HOOK: &str = "before";
const POST_TOOL_HOOK: &str = "after";
const INITIALIZE_REQUEST: &str = "greeting";
/// More than a day: an approval may wait that long.
const HOOK_TIMEOUT_SECONDS: u32 = 25 * 60 * 60;

#[derive(Debug, Default)]
pub(super) struct ClaudeDriver {
    turn: ClaudeTurn,
    /// Sent messages that the model has not read.
    unacknowledged: Vec<MessageId>,
    pending_interrupt: Option<LeasedMessage>,
    /// Requests of the agent that wait for an answer, by request id.
    open_requests: BoundedMap<OpenRequest>,
    /// Post-tool hook requests by tool call; the agent waits for the scan.
    awaiting_scan: BoundedMap<String>,
    system_prompt: Option<String>,
    request_count: u64,
}

#[derive(Debug)]
enum OpenRequest {
    PreToolHook,
    Permission { input: Value },
}

impl HeldSize for OpenRequest {
    fn held_bytes(&self) -> usize {
        match self {
            Self::PreToolHook => 0,
            Self::Permission { input } => input.held_bytes(),
        }
    }
}

impl Driver for ClaudeDriver {
    fn abilities(&self) -> Abilities {
        Abilities::ALL
    }

    fn transcript_support(&self) -> Option<TranscriptSupport> {
        Some(TranscriptSupport {
            agent: "claude".to_owned(),
            storage: TranscriptStorage::Files(claude_transcript::FILES),
            prefers_running_agent: false,
            env: Vec::new(),
        })
    }

    fn login_path(&self) -> Option<&'static str> {
        Some(".claude/.credentials.json")
    }

    fn build_command(&mut self, launch: &LaunchContext<'_>) -> AgentCommand {
        // A resumed conversation continues its cost total.
        let spent = if launch.native_id.is_some() { self.turn.total_cost_usd() } else { 0.0 };
        let turn = ClaudeTurn::with_cost(spent);
        *self = Self { turn, system_prompt: launch.settings.system_prompt.clone(), ..Self::default() };
        claude_launch::build_command(launch)
    }

    fn handshake(&mut self) -> Vec<u8> {
        // A hook may wait for a person's approval.
        let hook = |id: &str| json!([{"matcher": "*", "hookCallbackIds": [id], "timeout": HOOK_TIMEOUT_SECONDS}]);
        let mut request = json!({"subtype": "initialize", "hooks": {"PreToolUse": hook(PRE_TOOL_HOOK), "PostToolUse": hook(POST_TOOL_HOOK)}});
        if let Some(prompt) = &self.system_prompt {
            request["appendSystemPrompt"] = prompt.as_str().into();
        }
        encode_line(&json!({"type": "control_request", "request_id": INITIALIZE_REQUEST, "request": request}))
    }

    fn encode_message(&mut self, message: &LeasedMessage, turn: AgentTurn) -> Vec<u8> {
        match (message.message_type, turn) {
            (MessageType::Interrupt, _) => {
                self.request_count += 1;
                self.pending_interrupt = Some(message.clone());
                let id = format!("interrupt-{}", self.request_count);
                encode_line(&json!({"type": "control_request", "request_id": id, "request": {"subtype": "interrupt"}}))
            }
            (MessageType::UserMessage | MessageType::GuardianNudge | MessageType::System, turn) => {
                self.unacknowledged.push(message.id);
                let mut line = json!({
                    "type": "user",
                    "message": {"role": "user", "content": [{"type": "text", "text": message.content}]},
                    "parent_tool_use_id": null,
                    "uuid": message.id.uuid(),
                });
                if turn == AgentTurn::InTurn {
                    line["priority"] = "next".into();
                }
                encode_line(&line)
            }
        }
    }

    fn relays_denial_reasons(&self) -> bool {
        true
    }

    fn confirm_scan(&mut self, tool_use_id: &str) -> Option<Vec<u8>> {
        let request = self.awaiting_scan.remove(tool_use_id)?;
        Some(encode_success(&request, &json!({})))
    }

    fn handle_line(&mut self, line: &[u8]) -> Vec<AgentOutput> {
        match claude_wire::parse_line(line) {
            Ok(line) => self.handle_parsed(line),
            Err(reason) => vec![AgentOutput::Unparsed { reason }],
        }
    }

    fn answer_request(&mut self, request_id: &str, answer: RequestAnswer) -> Vec<u8> {
        let Some(request) = self.open_requests.remove(request_id) else { return Vec::new() };
        let answer = match request {
            OpenRequest::PreToolHook => hook_output(answer),
            OpenRequest::Permission { input } => permission_output(answer, input),
        };
        encode_success(request_id, &answer)
    }
}

impl ClaudeDriver {
    fn handle_parsed(&mut self, line: claude_wire::ClaudeLine) -> Vec<AgentOutput> {
        match line {
            claude_wire::ClaudeLine::Request { id, request } => self.handle_request(id, request),
            claude_wire::ClaudeLine::Response { id, error } => self.handle_response(&id, error),
            claude_wire::ClaudeLine::Replay { uuid } => self.acknowledge_message(uuid),
            claude_wire::ClaudeLine::TurnResult(result) if self.turn.awaits_background(&result) => {
                self.turn.hold_end(*result)
            }
            claude_wire::ClaudeLine::TurnResult(result) => {
                let interrupt = self.close_requests();
                let mut outputs = self.turn.usage_events(&result);
                outputs.extend(self.turn.end_turn(&result, interrupt.as_ref()));
                outputs
            }
            claude_wire::ClaudeLine::SessionState { is_idle } => match self.turn.set_state(is_idle) {
                Some(result) => {
                    let interrupt = self.close_requests();
                    self.turn.end_turn(&result, interrupt.as_ref())
                }
                None => Vec::new(),
            },
            claude_wire::ClaudeLine::Turn(line) => self.turn.convert_line(line),
            claude_wire::ClaudeLine::Ignored => Vec::new(),
        }
    }

    /// Forgets the requests, because the agent no longer waits for answers. Returns the interrupt that ends the turn.
    fn close_requests(&mut self) -> Option<LeasedMessage> {
        self.open_requests.clear();
        self.awaiting_scan.clear();
        self.pending_interrupt.take()
    }

    fn handle_request(&mut self, id: String, request: claude_wire::RequestBody) -> Vec<AgentOutput> {
        match request {
            claude_wire::RequestBody::Hook { callback, tool_use_id, tool, input } if callback == PRE_TOOL_HOOK => {
                let request = AgentRequest { id, kind: RequestKind::BeforeTool, tool_use_id, tool, input };
                self.open_request(request, OpenRequest::PreToolHook)
            }
            claude_wire::RequestBody::Hook { tool_use_id: Some(tool_use_id), .. } => {
                // The agent must not wait for a scan that the driver has forgotten.
                let forgotten = self.awaiting_scan.insert(&tool_use_id, id).into_iter();
                let replies = forgotten.map(|(_, id)| AgentOutput::Reply(encode_success(&id, &json!({}))));
                replies.chain([AgentOutput::AwaitingScan { tool_use_id }]).collect()
            }
            claude_wire::RequestBody::Hook { tool_use_id: None, .. } => {
                vec![AgentOutput::Reply(encode_success(&id, &json!({})))]
            }
            claude_wire::RequestBody::Permission { tool_use_id, tool, input } => {
                let kind = if tool == "AskUserQuestion" { RequestKind::Question } else { RequestKind::Permission };
                let open = OpenRequest::Permission { input: input.clone() };
                self.open_request(AgentRequest { id, kind, tool_use_id, tool, input }, open)
            }
            claude_wire::RequestBody::Cancelled => {
                self.open_requests.remove(&id);
                Vec::new()
            }
            claude_wire::RequestBody::Unknown { subtype } => {
                let error = format!("`{subtype}` is not supported");
                let response = json!({"type": "control_response",
                    "response": {"subtype": "error", "request_id": id, "error": error}});
                vec![AgentOutput::Reply(encode_line(&response))]
            }
        }
    }

    /// Remembers the request until it is answered. Denies it if the agent has too many open ones.
    fn open_request(&mut self, request: AgentRequest, open: OpenRequest) -> Vec<AgentOutput> {
        if self.open_requests.try_insert(&request.id, open) {
            return vec![AgentOutput::Request(request)];
        }
        let answer = RequestAnswer::Deny { reason: event_data::TOO_MANY_REQUESTS.to_owned() };
        let answer = match request.kind {
            RequestKind::BeforeTool => hook_output(answer),
            RequestKind::Permission | RequestKind::Question => permission_output(answer, Value::Null),
        };
        vec![AgentOutput::Reply(encode_success(&request.id, &answer)), event_data::too_many_requests()]
    }

    /// Handles the response to a control request; only errors matter.
    fn handle_response(&mut self, id: &str, error: Option<String>) -> Vec<AgentOutput> {
        match error {
            Some(error) if id == INITIALIZE_REQUEST => {
                vec![AgentOutput::Failed { error: format!("the agent's initialization failed: {error}") }]
            }
            Some(_) | None => Vec::new(),
        }
    }

    fn acknowledge_message(&mut self, uuid: uuid::Uuid) -> Vec<AgentOutput> {
        let id = MessageId::from_uuid(uuid);
        let Some(at) = self.unacknowledged.iter().position(|unacknowledged_id| *unacknowledged_id == id) else {
            return Vec::new();
        };
        self.unacknowledged.remove(at);
        self.turn.acknowledge_message(id)
    }
}

fn encode_success(request: &str, answer: &Value) -> Vec<u8> {
    let response = json!({"subtype": "success", "request_id": request, "response": answer});
    encode_line(&json!({"type": "control_response", "response": response}))
}

/// Without a decision, the agent's own permission rules apply.
fn hook_output(answer: RequestAnswer) -> Value {
    let mut output = json!({"hookEventName": "PreToolUse"});
    match answer {
        RequestAnswer::Allow { input, context } => {
            if let Some(input) = input {
                output["permissionDecision"] = "allow".into();
                output["updatedInput"] = input;
            }
            if let Some(context) = context {
                output["additionalContext"] = context.into();
            }
        }
        RequestAnswer::Deny { reason } => {
            output["permissionDecision"] = "deny".into();
            output["permissionDecisionReason"] = reason.into();
        }
        RequestAnswer::Answers(_) => {}
    }
    json!({"hookSpecificOutput": output})
}

fn permission_output(answer: RequestAnswer, original_input: Value) -> Value {
    match answer {
        RequestAnswer::Allow { input, .. } => {
            json!({"behavior": "allow", "updatedInput": input.unwrap_or(original_input)})
        }
        RequestAnswer::Answers(words) => {
            let mut input = original_input;
            if input.is_object() {
                input["answers"] = words;
            }
            json!({"behavior": "allow", "updatedInput": input})
        }
        RequestAnswer::Deny { reason } => json!({"behavior": "deny", "message": reason, "interrupt": false}),
    }
}
