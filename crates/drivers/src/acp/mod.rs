//! Agents that speak the Agent Client Protocol (ACP): JSON-RPC on standard input and output.
//!
//! A turn is one `session/prompt` request; its response ends the turn. ACP has no acknowledgements: the first update
//! after a prompt acknowledges its messages. ACP has no standard steering either. Agents with the `_session/steering`
//! extension are steered with it. For others the driver cancels the prompt and sends a new one with the message, within
//! the same turn of Atoll.

use super::json_rpc::{self, RpcError, RpcMessage};
use super::{
    Abilities, AgentCommand, AgentOutput, AgentRequest, AgentTurn, Driver, EventEffect, LaunchContext, RequestAnswer,
    RequestKind, build_event, take_field,
};
use crate::bounded::{BoundedMap, HeldSize};
use crate::event_clipping::clip_text;
use crate::event_data;
use crate::transcript::{TranscriptStorage, TranscriptSupport};
use acp_turn::AcpTurn;
use atoll_api::events::{AgentCompleted, AgentSystemMessage, EventData};
use atoll_core::message::{DeliveryMethod, MessageType};
use atoll_protocol::LeasedMessage;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

mod acp_launch;
mod acp_turn;
#[cfg(test)]
mod tests;

pub(super) use acp_launch::AcpAgent;

/// Follows a message for which the driver cancelled the prompt.
const RESTART_NOTE: &str = "This message arrived while you were working; you were interrupted to read it. \
    Take it into account and continue your work.";

#[derive(Debug)]
pub(super) struct AcpDriver {
    agent: AcpAgent,
    /// Parameters of `session/new` or `session/load`.
    session_params: Value,
    native_id: Option<String>,
    /// Precedes the first message, unless the agent has a better place for it.
    system_prompt: Option<String>,
    can_steer: bool,
    session: Option<String>,
    phase: PromptPhase,
    turn: AcpTurn,
    queued: VecDeque<LeasedMessage>,
    /// Messages of the running prompt that are not acknowledged.
    unacknowledged: Vec<(LeasedMessage, DeliveryMethod)>,
    pending_interrupt: Option<LeasedMessage>,
    open_requests: BoundedMap<OpenRequest>,
    pending_calls: BTreeMap<u64, PendingCall>,
    call_count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PromptPhase {
    Idle,
    Running,
    /// The prompt is cancelled, so that the queued messages can be sent.
    Cancelling,
}

#[derive(Debug)]
struct OpenRequest {
    /// The agent's request id.
    id: Value,
    allow_option: Option<Value>,
    deny_option: Option<Value>,
}

impl HeldSize for OpenRequest {
    fn held_bytes(&self) -> usize {
        self.id.held_bytes() + self.allow_option.held_bytes() + self.deny_option.held_bytes()
    }
}

/// A JSON-RPC call that waits for its response.
#[derive(Debug)]
enum PendingCall {
    Initialize,
    NewSession,
    LoadSession,
    Prompt,
    Steer(Box<LeasedMessage>),
}

impl AcpDriver {
    pub(super) fn new(agent: AcpAgent) -> Self {
        Self {
            agent,
            session_params: Value::Null,
            native_id: None,
            system_prompt: None,
            can_steer: false,
            session: None,
            phase: PromptPhase::Idle,
            turn: AcpTurn::default(),
            queued: VecDeque::new(),
            unacknowledged: Vec::new(),
            pending_interrupt: None,
            open_requests: BoundedMap::default(),
            pending_calls: BTreeMap::new(),
            call_count: 0,
        }
    }
}

impl Driver for AcpDriver {
    fn abilities(&self) -> Abilities {
        // Gemini announces `loadSession`, but does not find its sessions.
        let resume = self.agent != AcpAgent::Gemini;
        Abilities { questions: false, hooks: false, fork: false, resume, ..Abilities::ALL }
    }

    fn transcript_support(&self) -> Option<TranscriptSupport> {
        let AcpAgent::Named { name, launch } = &self.agent else { return None };
        Some(TranscriptSupport {
            agent: name.clone(),
            storage: TranscriptStorage::Directory(launch.session_dir.clone()?),
            prefers_running_agent: false,
            env: Vec::new(),
        })
    }

    fn build_command(&mut self, launch: &LaunchContext<'_>) -> AgentCommand {
        *self = Self {
            session_params: acp_launch::session_params(launch),
            native_id: launch.native_id.map(str::to_owned),
            // Gemini reads it from a file.
            system_prompt: match self.agent {
                AcpAgent::Gemini => None,
                AcpAgent::Named { .. } => launch.settings.system_prompt.clone(),
            },
            ..Self::new(self.agent.clone())
        };
        acp_launch::build_command(&self.agent, launch)
    }

    fn handshake(&mut self) -> Vec<u8> {
        let params = json!({
            "protocolVersion": 1,
            "clientInfo": {"name": "atoll", "title": "Atoll", "version": env!("CARGO_PKG_VERSION")},
            // The agent accesses the sandbox's files and terminals itself.
            "clientCapabilities": {"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false},
        });
        self.call_method("initialize", &params, PendingCall::Initialize)
    }

    fn encode_message(&mut self, message: &LeasedMessage, _: AgentTurn) -> Vec<u8> {
        match message.message_type {
            MessageType::Interrupt => {
                // The turn has already ended.
                if self.phase == PromptPhase::Idle && self.queued.is_empty() {
                    return Vec::new();
                }
                self.pending_interrupt = Some(message.clone());
                if self.phase == PromptPhase::Idle { Vec::new() } else { self.send_cancel() }
            }
            MessageType::UserMessage | MessageType::GuardianNudge | MessageType::System => {
                self.queued.push_back(message.clone());
                self.send_queued()
            }
        }
    }

    fn handle_line(&mut self, line: &[u8]) -> Vec<AgentOutput> {
        match json_rpc::parse_message(line) {
            Ok(RpcMessage::Request { id, method, params }) => self.handle_request(id, &method, params),
            Ok(RpcMessage::Notification { method, params }) => self.handle_notification(&method, params),
            Ok(RpcMessage::Response { id, result }) => self.handle_response(id, result),
            Err(reason) => vec![AgentOutput::Unparsed { reason }],
        }
    }

    fn answer_request(&mut self, request_id: &str, answer: RequestAnswer) -> Vec<u8> {
        let Some(OpenRequest { id, allow_option: allow, deny_option: deny }) = self.open_requests.remove(request_id)
        else {
            return Vec::new();
        };
        let option = match answer {
            RequestAnswer::Allow { .. } | RequestAnswer::Answers(_) => allow,
            RequestAnswer::Deny { .. } => deny,
        };
        let outcome = match option {
            Some(option) => json!({"outcome": "selected", "optionId": option}),
            None => json!({"outcome": "cancelled"}),
        };
        let mut lines = json_rpc::encode_response(&id, &json!({"outcome": outcome}));
        lines.extend(self.send_queued());
        lines
    }
}

impl AcpDriver {
    fn call_method(&mut self, method: &str, params: &Value, what: PendingCall) -> Vec<u8> {
        self.call_count += 1;
        self.pending_calls.insert(self.call_count, what);
        json_rpc::encode_request(self.call_count, method, params)
    }

    /// Sends the queued messages, or cancels the prompt to make room for them.
    fn send_queued(&mut self) -> Vec<u8> {
        let Some(session) = self.session.clone() else { return Vec::new() };
        match self.phase {
            _ if self.queued.is_empty() => Vec::new(),
            PromptPhase::Idle => self.send_prompt(&session, DeliveryMethod::NewTurn),
            PromptPhase::Running if self.pending_interrupt.is_some() => Vec::new(),
            PromptPhase::Running if self.can_steer => {
                let mut lines = Vec::new();
                for message in std::mem::take(&mut self.queued) {
                    let params = json!({"sessionId": session, "prompt": [text_block(&message.content)]});
                    lines.extend(self.call_method("_session/steering", &params, PendingCall::Steer(Box::new(message))));
                }
                lines
            }
            // The open approval comes first.
            PromptPhase::Running if !self.open_requests.is_empty() => Vec::new(),
            PromptPhase::Running => {
                self.phase = PromptPhase::Cancelling;
                self.send_cancel()
            }
            PromptPhase::Cancelling => Vec::new(),
        }
    }

    fn send_prompt(&mut self, session: &str, how: DeliveryMethod) -> Vec<u8> {
        let messages = std::mem::take(&mut self.queued);
        let mut blocks: Vec<Value> = self.system_prompt.take().iter().map(|prompt| text_block(prompt)).collect();
        blocks.extend(messages.iter().map(|message| text_block(&message.content)));
        if how == DeliveryMethod::Restarted {
            blocks.push(text_block(RESTART_NOTE));
        }
        self.unacknowledged = messages.into_iter().map(|message| (message, how)).collect();
        self.phase = PromptPhase::Running;
        let mut lines =
            self.call_method("session/prompt", &json!({"sessionId": session, "prompt": blocks}), PendingCall::Prompt);
        if self.pending_interrupt.is_some() {
            lines.extend(self.send_cancel());
        }
        lines
    }

    /// Cancels the prompt. ACP requires that open permission requests are answered with `cancelled`.
    fn send_cancel(&mut self) -> Vec<u8> {
        let mut lines = json_rpc::encode_notification("session/cancel", &json!({"sessionId": self.session}));
        for OpenRequest { id, .. } in self.open_requests.take_values() {
            lines.extend(encode_cancelled(&id));
        }
        lines
    }

    fn handle_request(&mut self, id: Value, method: &str, mut params: Value) -> Vec<AgentOutput> {
        if method != "session/request_permission" {
            return vec![AgentOutput::Reply(json_rpc::encode_method_not_found(&id, method))];
        }
        if self.phase == PromptPhase::Idle {
            return vec![AgentOutput::Reply(encode_cancelled(&id))];
        }
        let mut outputs = self.acknowledge_prompt();
        let option = |kinds: [&str; 2]| {
            let options = params["options"].as_array().into_iter().flatten();
            let of =
                |kind: &str| options.clone().find(|option| option["kind"] == kind).map(|it| it["optionId"].clone());
            kinds.into_iter().find_map(of)
        };
        let (allow, deny) = (option(["allow_once", "allow_always"]), option(["reject_once", "reject_always"]));
        let call = take_field(&mut params, "toolCall");
        outputs.extend(self.turn.report_permission_call(&call));
        let name = id.to_string();
        let request = OpenRequest { id: id.clone(), allow_option: allow, deny_option: deny };
        if !self.open_requests.try_insert(&name, request) {
            outputs.extend([AgentOutput::Reply(encode_cancelled(&id)), event_data::too_many_requests()]);
            return outputs;
        }
        let (tool, input) = self.turn.running_tool(&call);
        let tool_use_id = call["toolCallId"].as_str().map(str::to_owned);
        outputs.push(AgentOutput::Request(AgentRequest {
            id: name,
            kind: RequestKind::Permission,
            tool_use_id,
            tool,
            input,
        }));
        outputs
    }

    fn handle_notification(&mut self, method: &str, params: Value) -> Vec<AgentOutput> {
        match method {
            "session/update" => {
                let update = &params["update"];
                // `session/load` replays the old conversation.
                let is_news = params["sessionId"].as_str() == self.session.as_deref();
                if !is_news || self.phase == PromptPhase::Idle {
                    let is_told_again =
                        self.pending_calls.values().any(|sent| matches!(sent, PendingCall::LoadSession));
                    if AcpTurn::is_work(update) && !is_told_again {
                        return vec![AgentOutput::Unparsed { reason: "work update outside a turn".to_owned() }];
                    }
                    return self.turn.handle_idle_update(update);
                }
                let mut outputs = if AcpTurn::is_work(update) { self.acknowledge_prompt() } else { Vec::new() };
                outputs.extend(self.turn.convert_update(update));
                outputs
            }
            method if method.starts_with(['_', '$']) => Vec::new(),
            method => vec![AgentOutput::Unparsed { reason: format!("unknown notification `{method}`") }],
        }
    }

    /// Acknowledges the prompt's messages at the first sign of work.
    fn acknowledge_prompt(&mut self) -> Vec<AgentOutput> {
        let mut outputs = Vec::new();
        for (at, (message, how)) in std::mem::take(&mut self.unacknowledged).into_iter().enumerate() {
            match how {
                DeliveryMethod::NewTurn if at == 0 => {
                    outputs.push(self.turn.start_turn(self.agent.name(), self.session.as_deref()))
                }
                DeliveryMethod::NewTurn => {}
                DeliveryMethod::Restarted | DeliveryMethod::Injected => {
                    outputs.push(event_data::message_injected(message.id, Some(how)))
                }
            }
            outputs.push(AgentOutput::Acknowledged { id: message.id, how });
        }
        outputs
    }

    fn handle_response(&mut self, id: u64, result: Result<Value, RpcError>) -> Vec<AgentOutput> {
        let Some(sent) = self.pending_calls.remove(&id) else {
            return vec![AgentOutput::Unparsed { reason: format!("response to unknown request {id}") }];
        };
        match (sent, result) {
            (PendingCall::Initialize, Ok(result)) => self.handle_initialized(&result),
            (PendingCall::Initialize, Err(error)) => fail_with(&format!("the agent's initialization failed: {error}")),
            (PendingCall::NewSession, Ok(result)) => match result["sessionId"].as_str() {
                Some(id) => self.session_opened(id.to_owned(), &result),
                None => fail_with("the new session has no id"),
            },
            (PendingCall::NewSession, Err(error)) => fail_with(&format!("failed to start a session: {error}")),
            (PendingCall::LoadSession, Ok(result)) => {
                let id = self.native_id.clone().unwrap_or_default();
                // The old conversation contains it.
                self.system_prompt = None;
                self.session_opened(id, &result)
            }
            (PendingCall::LoadSession, Err(error)) => self.start_fresh_session(&error.to_string()),
            (PendingCall::Prompt, result) => self.end_prompt(result),
            (PendingCall::Steer(message), Ok(result)) if result["outcome"] == "injected" => {
                let injected = event_data::message_injected(message.id, None);
                let mut outputs = self.acknowledge_prompt();
                outputs.extend([injected, AgentOutput::Acknowledged { id: message.id, how: DeliveryMethod::Injected }]);
                outputs
            }
            // The turn has ended, or does not accept steers now.
            (PendingCall::Steer(message), _) => {
                self.queued.push_back(*message);
                if self.phase == PromptPhase::Idle { vec![AgentOutput::Reply(self.send_queued())] } else { Vec::new() }
            }
        }
    }

    fn handle_initialized(&mut self, result: &Value) -> Vec<AgentOutput> {
        self.can_steer = result["_meta"]["steering"]["supported"] == true;
        self.turn.set_agent_info(result);
        let capabilities = &result["agentCapabilities"];
        if !capabilities["sessionCapabilities"]["systemPrompt"].is_null()
            && let Some(prompt) = self.system_prompt.take()
        {
            self.session_params["_meta"] = json!({"systemPrompt": {"append": prompt}});
        }
        match self.native_id.clone() {
            Some(id) if capabilities["loadSession"] == true => {
                let mut params = self.session_params.clone();
                params["sessionId"] = id.into();
                vec![AgentOutput::Reply(self.call_method("session/load", &params, PendingCall::LoadSession))]
            }
            Some(_) => self.start_fresh_session("the agent cannot resume sessions"),
            None => vec![AgentOutput::Reply(self.request_session())],
        }
    }

    fn request_session(&mut self) -> Vec<u8> {
        let params = self.session_params.clone();
        self.call_method("session/new", &params, PendingCall::NewSession)
    }

    /// On failure, starts without the old conversation and reports it.
    fn start_fresh_session(&mut self, why: &str) -> Vec<AgentOutput> {
        let data = AgentSystemMessage {
            subtype: "resume_failed".to_owned(),
            native_id: self.native_id.take(),
            error: Some(clip_text(why).to_owned()),
            ..AgentSystemMessage::default()
        };
        let notice = build_event(EventData::AgentSystemMessage(data), EventEffect::None);
        vec![notice, AgentOutput::Reply(self.request_session())]
    }

    fn session_opened(&mut self, id: String, result: &Value) -> Vec<AgentOutput> {
        self.session = Some(id.clone());
        self.turn.set_session_info(result);
        vec![AgentOutput::NativeId { id }, AgentOutput::Reply(self.send_queued())]
    }

    fn end_prompt(&mut self, result: Result<Value, RpcError>) -> Vec<AgentOutput> {
        let was = std::mem::replace(&mut self.phase, PromptPhase::Idle);
        self.open_requests.clear();
        let mut outputs = self.acknowledge_prompt();
        outputs.extend(self.turn.end_turn());
        if let Ok(result) = &result {
            outputs.extend(self.turn.usage_events(result));
        }
        let reason = result.as_ref().map(|result| result["stopReason"].as_str().unwrap_or("end_turn").to_owned());
        match (self.pending_interrupt.take(), was, reason) {
            (Some(message), ..) => {
                outputs.push(AgentOutput::Acknowledged { id: message.id, how: DeliveryMethod::Injected });
                outputs.extend([event_data::turn_interrupted(Some(&message)), AgentOutput::Idle]);
            }
            // Some agents report a cancelled prompt as an error.
            (None, PromptPhase::Cancelling, reason) if reason.as_deref().unwrap_or("cancelled") == "cancelled" => {
                if let Some(session) = self.session.clone() {
                    outputs.push(AgentOutput::Reply(self.send_prompt(&session, DeliveryMethod::Restarted)));
                }
                return outputs;
            }
            (None, _, Ok(reason)) if reason == "cancelled" => {
                outputs.extend([event_data::turn_interrupted(None), AgentOutput::Idle]);
            }
            (None, _, Ok(reason)) => {
                let stop_reason = Some(clip_text(&reason).to_owned());
                let data = EventData::AgentCompleted(AgentCompleted { stop_reason, ..AgentCompleted::default() });
                outputs.extend([build_event(data, EventEffect::TurnEnded), AgentOutput::Idle]);
            }
            (None, _, Err(error)) => {
                let error = error.to_string();
                outputs.push(event_data::plain_error(&error));
                outputs.extend(fail_with(&error));
                return outputs;
            }
        }
        let lines = self.send_queued();
        if !lines.is_empty() {
            outputs.push(AgentOutput::Reply(lines));
        }
        outputs
    }
}

fn encode_cancelled(id: &Value) -> Vec<u8> {
    json_rpc::encode_response(id, &json!({"outcome": {"outcome": "cancelled"}}))
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn fail_with(error: &str) -> Vec<AgentOutput> {
    vec![AgentOutput::Failed { error: error.to_owned() }]
}
