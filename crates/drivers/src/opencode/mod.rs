//! OpenCode: an HTTP server behind the worker's bridge (`atoll_worker::opencode`), which turns its events into lines.
//!
//! OpenCode does not return our message ids. The driver matches a stored message by its text, and acknowledges it when
//! a response of the model follows it.

use super::{
    Abilities, AgentCommand, AgentOutput, AgentRequest, AgentTurn, Driver, EventEffect, LaunchContext, RequestAnswer,
    RequestKind, build_event, parse_object, take_field,
};
use crate::bounded::{BoundedMap, HeldSize};
use crate::event_data;
use crate::transcript::{TranscriptStorage, TranscriptSupport};
use atoll_api::events::{AgentCompleted, AgentError, EventData};
use atoll_core::message::{DeliveryMethod, MessageType};
use atoll_protocol::LeasedMessage;
use bridge::{BridgeInput, BridgeOutput, StoredPrompt};
use opencode_turn::OpenCodeTurn;
use opencode_wire::ServerEvent;
use serde_json::{Value, json};
use std::collections::VecDeque;

pub mod bridge;
mod opencode_launch;
mod opencode_turn;
mod opencode_wire;
#[cfg(test)]
mod tests;

#[derive(Debug, Default)]
pub(super) struct OpenCodeDriver {
    system_prompt: Option<String>,
    agent_name: Option<&'static str>,
    session: Option<String>,
    is_running: bool,
    /// The turn has started, and no message is acknowledged in it.
    awaits_first_message: bool,
    turn: OpenCodeTurn,
    queued: VecDeque<LeasedMessage>,
    /// Sent messages that the model has not read.
    unacknowledged: Vec<SentMessage>,
    pending_interrupt: Option<LeasedMessage>,
    open_requests: BoundedMap<OpenRequest>,
    /// The error that ends the turn.
    turn_error: Option<String>,
    is_aborted: bool,
}

#[derive(Debug)]
struct SentMessage {
    message: LeasedMessage,
    stored: Option<StoredPrompt>,
}

impl SentMessage {
    fn is_stored_as(&self, server_id: Option<&str>) -> bool {
        self.stored.as_ref().is_some_and(|stored| Some(&*stored.message_id) == server_id)
    }
}

#[derive(Debug)]
enum OpenRequest {
    Permission,
    Questions(Vec<Value>),
}

impl HeldSize for OpenRequest {
    fn held_bytes(&self) -> usize {
        match self {
            Self::Permission => 0,
            Self::Questions(questions) => questions.iter().map(HeldSize::held_bytes).sum(),
        }
    }
}

impl Driver for OpenCodeDriver {
    fn abilities(&self) -> Abilities {
        Abilities { hooks: false, ..Abilities::ALL }
    }

    fn transcript_support(&self) -> Option<TranscriptSupport> {
        Some(TranscriptSupport {
            agent: "opencode".to_owned(),
            storage: TranscriptStorage::OpenCode,
            prefers_running_agent: true,
            env: opencode_launch::offline_env(),
        })
    }

    fn login_path(&self) -> Option<&'static str> {
        Some(".local/share/opencode/auth.json")
    }

    fn build_command(&mut self, launch: &LaunchContext<'_>) -> AgentCommand {
        let system_prompt = launch.settings.system_prompt.clone();
        *self = Self {
            system_prompt,
            agent_name: opencode_launch::agent_for_mode(launch.settings.mode),
            ..Self::default()
        };
        opencode_launch::build_command(launch)
    }

    fn encode_message(&mut self, message: &LeasedMessage, _: AgentTurn) -> Vec<u8> {
        match message.message_type {
            MessageType::Interrupt => {
                // The turn has already ended.
                if !self.is_running && self.unacknowledged.is_empty() && self.queued.is_empty() {
                    return Vec::new();
                }
                self.pending_interrupt = Some(message.clone());
                if self.is_running { encode_order(&BridgeInput::Abort {}) } else { Vec::new() }
            }
            MessageType::UserMessage | MessageType::GuardianNudge | MessageType::System => {
                self.queued.push_back(message.clone());
                self.send_queued()
            }
        }
    }

    fn relays_denial_reasons(&self) -> bool {
        true
    }

    fn handle_line(&mut self, line: &[u8]) -> Vec<AgentOutput> {
        match parse_object(line) {
            Ok(BridgeOutput::Ready { session }) => {
                self.session = Some(session.clone());
                vec![AgentOutput::NativeId { id: session }, AgentOutput::Reply(self.send_queued())]
            }
            Ok(BridgeOutput::Event { data }) => match opencode_wire::parse_event(&data) {
                Ok(ServerEvent { event_type, properties }) => self.handle_event(&event_type, properties),
                Err(reason) => vec![AgentOutput::Unparsed { reason }],
            },
            Ok(BridgeOutput::Refused { what, id, error }) => self.handle_refusal(&what, &id, error),
            Ok(BridgeOutput::Failed { error }) => vec![AgentOutput::Failed { error }],
            Err(reason) => vec![AgentOutput::Unparsed { reason }],
        }
    }

    fn answer_request(&mut self, request_id: &str, answer: RequestAnswer) -> Vec<u8> {
        let Some(request) = self.open_requests.remove(request_id) else { return Vec::new() };
        let id = request_id.to_owned();
        encode_order(&match (request, answer) {
            (OpenRequest::Permission, RequestAnswer::Allow { .. } | RequestAnswer::Answers(_)) => {
                BridgeInput::Permission { id, allow: true, reason: None }
            }
            // Without a message, OpenCode would end the turn.
            (OpenRequest::Permission, RequestAnswer::Deny { reason }) => {
                BridgeInput::Permission { id, allow: false, reason: Some(reason) }
            }
            (OpenRequest::Questions(questions), RequestAnswer::Answers(words)) => BridgeInput::Answers {
                id,
                answers: Some(questions.iter().map(|question| selected_answers(question, &words)).collect()),
            },
            (OpenRequest::Questions(_), RequestAnswer::Allow { .. } | RequestAnswer::Deny { .. }) => {
                BridgeInput::Answers { id, answers: None }
            }
        })
    }
}

impl OpenCodeDriver {
    fn send_queued(&mut self) -> Vec<u8> {
        if self.session.is_none() {
            return Vec::new();
        }
        let mut lines = Vec::new();
        for message in std::mem::take(&mut self.queued) {
            let sent_message = SentMessage { message, stored: None };
            lines.extend(self.encode_prompt(&sent_message));
            self.unacknowledged.push(sent_message);
        }
        lines
    }

    fn encode_prompt(&self, sent_message: &SentMessage) -> Vec<u8> {
        encode_order(&BridgeInput::Prompt {
            id: sent_message.message.id.to_string(),
            text: sent_message.message.content.clone(),
            // Applies to this message only, so it is repeated.
            system: self.system_prompt.clone(),
            agent: self.agent_name.map(str::to_owned),
            stored: sent_message.stored.clone(),
        })
    }

    fn handle_event(&mut self, kind: &str, mut properties: Value) -> Vec<AgentOutput> {
        let of = properties["sessionID"].as_str();
        let is_ours = of.is_none() || of == self.session.as_deref();
        match kind {
            "permission.asked" => self.open_permission(properties),
            "question.asked" => self.open_questions(properties),
            "permission.replied" | "question.replied" | "question.rejected" => {
                self.open_requests.remove(properties["requestID"].as_str().unwrap_or_default());
                Vec::new()
            }
            "session.status" if is_ours => self.handle_status(&properties["status"]),
            "session.idle" if is_ours => self.end_turn(),
            "session.error" if is_ours => self.record_error(&properties["error"]),
            "message.updated" if is_ours => self.handle_message(&properties["info"]),
            "message.part.updated" => {
                let part = take_field(&mut properties, "part");
                if is_ours {
                    self.match_stored_message(&part);
                }
                self.turn.convert_part(&part, is_ours)
            }
            "message.part.delta" if is_ours => self.turn.text_delta(&properties),
            "session.compacted" if is_ours => vec![event_data::system_event(kind, None)],
            kind if opencode_wire::is_ignored_event(kind) => Vec::new(),
            kind => vec![AgentOutput::Unparsed { reason: format!("unknown event type `{kind}`") }],
        }
    }

    fn handle_status(&mut self, status: &Value) -> Vec<AgentOutput> {
        match status["type"].as_str() {
            Some("busy") if !self.is_running => {
                (self.is_running, self.awaits_first_message, self.is_aborted) = (true, true, false);
                self.turn_error = None;
                let mut outputs = vec![self.turn.start_turn(self.session.as_deref())];
                if self.pending_interrupt.is_some() {
                    outputs.push(AgentOutput::Reply(encode_order(&BridgeInput::Abort {})));
                }
                outputs
            }
            Some("retry") => {
                let mut outputs = vec![opencode_turn::retry_event(&status["attempt"], &status["message"])];
                let words = status["message"].as_str().unwrap_or_default().to_ascii_lowercase();
                if ["rate limit", "too many requests", "overloaded", "429"].iter().any(|word| words.contains(word)) {
                    outputs.push(AgentOutput::RateLimited { wait: None });
                }
                outputs
            }
            // `session.idle` reports the end of the turn.
            Some("busy" | "idle") => Vec::new(),
            other => vec![AgentOutput::Unparsed { reason: format!("unknown status type {other:?}") }],
        }
    }

    /// Matches a stored user message with a sent one by its text.
    fn match_stored_message(&mut self, part: &Value) {
        let [Some(text), Some(message_id), Some(part_id)] =
            ["text", "messageID", "id"].map(|field| part[field].as_str())
        else {
            return;
        };
        let is_known = self.unacknowledged.iter().any(|sent_message| sent_message.is_stored_as(Some(message_id)));
        if part["type"] != "text" || is_known || self.turn.is_response(message_id) {
            return;
        }
        let is_it =
            |sent_message: &&mut SentMessage| sent_message.stored.is_none() && sent_message.message.content == text;
        if let Some(sent_message) = self.unacknowledged.iter_mut().find(is_it) {
            let (message_id, part_id) = (message_id.to_owned(), part_id.to_owned());
            sent_message.stored = Some(StoredPrompt { message_id, part_id });
        }
    }

    /// Acknowledges the message that a response follows, and those before it.
    fn handle_message(&mut self, info: &Value) -> Vec<AgentOutput> {
        if info["role"] != "assistant" {
            return Vec::new();
        }
        self.turn.record_response(info);
        let parent = info["parentID"].as_str();
        let Some(last) = self.unacknowledged.iter().position(|sent_message| sent_message.is_stored_as(parent)) else {
            return Vec::new();
        };
        let mut outputs = Vec::new();
        for SentMessage { message, .. } in self.unacknowledged.drain(..=last) {
            let how = if std::mem::take(&mut self.awaits_first_message) {
                DeliveryMethod::NewTurn
            } else {
                DeliveryMethod::Injected
            };
            if how == DeliveryMethod::Injected {
                outputs.push(event_data::message_injected(message.id, None));
            }
            outputs.push(AgentOutput::Acknowledged { id: message.id, how });
        }
        outputs
    }

    fn record_error(&mut self, error: &Value) -> Vec<AgentOutput> {
        let name = error["name"].as_str().unwrap_or("no reason given");
        if name == "MessageAbortedError" {
            self.is_aborted = true;
            return Vec::new();
        }
        let message = error["data"]["message"].as_str().unwrap_or(name).to_owned();
        let event = event_data::error_event(AgentError {
            error: message.clone(),
            name: Some(name.to_owned()),
            status: Some(error["data"]["statusCode"].clone()),
            ..AgentError::default()
        });
        self.turn_error = Some(message);
        vec![event]
    }

    fn end_turn(&mut self) -> Vec<AgentOutput> {
        if !std::mem::take(&mut self.is_running) {
            return Vec::new();
        }
        self.open_requests.clear();
        let mut outputs = self.turn.end_open_tools();
        // OpenCode may store another text than it received (templates). The first message is acknowledged if there was
        // a response, or if an interrupt ended the turn before any.
        let has_begun = self.turn.has_response() || self.pending_interrupt.is_some();
        if std::mem::take(&mut self.awaits_first_message) && has_begun && !self.unacknowledged.is_empty() {
            outputs.push(AgentOutput::Acknowledged {
                id: self.unacknowledged.remove(0).message.id,
                how: DeliveryMethod::NewTurn,
            });
        }
        let (interrupt, error) = (self.pending_interrupt.take(), self.turn_error.take());
        match (interrupt, error) {
            (Some(message), _) => {
                outputs.push(AgentOutput::Acknowledged { id: message.id, how: DeliveryMethod::Injected });
                outputs.push(event_data::turn_interrupted(Some(&message)));
            }
            (None, Some(error)) => {
                outputs.push(AgentOutput::Failed { error });
                return outputs;
            }
            (None, None) if self.is_aborted => {
                outputs.push(event_data::turn_interrupted(None));
            }
            (None, None) => {
                let stop_reason = Some(self.turn.stop_reason().to_owned());
                let data = EventData::AgentCompleted(AgentCompleted { stop_reason, ..AgentCompleted::default() });
                outputs.push(build_event(data, EventEffect::TurnEnded));
            }
        }
        outputs.push(AgentOutput::Idle);
        // OpenCode keeps stored messages, but answers none after the turn. The last one starts the next turn, in which the
        // model reads them all. It keeps its id: a new one would be a second message.
        if let Some(last) = self.unacknowledged.iter().rfind(|sent_message| sent_message.stored.is_some()) {
            outputs.push(AgentOutput::Reply(self.encode_prompt(last)));
        }
        outputs
    }

    fn open_permission(&mut self, mut request: Value) -> Vec<AgentOutput> {
        let Some(id) = request["id"].as_str().map(str::to_owned) else {
            return vec![AgentOutput::Unparsed { reason: "request without an id".to_owned() }];
        };
        let call = request["tool"]["callID"].as_str().map(str::to_owned);
        let mut input =
            json!({"patterns": take_field(&mut request, "patterns"), "details": take_field(&mut request, "metadata")});
        if let Some(whole) = call.as_deref().and_then(|call| self.turn.tool_input(call)) {
            input["input"] = whole;
        }
        let tool = request["permission"].as_str().unwrap_or("unknown").to_owned();
        if !self.open_requests.try_insert(&id, OpenRequest::Permission) {
            let reason = Some(event_data::TOO_MANY_REQUESTS.to_owned());
            let denial = encode_order(&BridgeInput::Permission { id, allow: false, reason });
            return vec![AgentOutput::Reply(denial), event_data::too_many_requests()];
        }
        vec![AgentOutput::Request(AgentRequest { id, kind: RequestKind::Permission, tool_use_id: call, tool, input })]
    }

    fn open_questions(&mut self, mut request: Value) -> Vec<AgentOutput> {
        let Some(id) = request["id"].as_str().map(str::to_owned) else {
            return vec![AgentOutput::Unparsed { reason: "request without an id".to_owned() }];
        };
        let tool_use_id = request["tool"]["callID"].as_str().map(str::to_owned);
        let questions = take_field(&mut request, "questions");
        let open = OpenRequest::Questions(questions.as_array().cloned().unwrap_or_default());
        if !self.open_requests.try_insert(&id, open) {
            let rejection = encode_order(&BridgeInput::Answers { id, answers: None });
            return vec![AgentOutput::Reply(rejection), event_data::too_many_requests()];
        }
        let input = json!({"questions": questions});
        vec![AgentOutput::Request(AgentRequest {
            id,
            kind: RequestKind::Question,
            tool_use_id,
            tool: "question".to_owned(),
            input,
        })]
    }

    /// Handles a request that the server rejected.
    fn handle_refusal(&mut self, what: &str, id: &str, error: String) -> Vec<AgentOutput> {
        let (text, what_failed) = (error.clone(), Some(what.to_owned()));
        let event = AgentError { error: text, what: what_failed, ..AgentError::default() };
        let mut outputs = vec![event_data::error_event(event)];
        if what == "prompt" && self.unacknowledged.iter().any(|sent_message| sent_message.message.id.to_string() == id)
        {
            outputs.push(AgentOutput::Failed { error: format!("the server rejected a message: {error}") });
        }
        outputs
    }
}

/// Maps answers by question text to selected options in the order of the questions.
fn selected_answers(question: &Value, words: &Value) -> Vec<String> {
    let names = [&question["question"], &question["header"]];
    match names.into_iter().filter_map(Value::as_str).find_map(|name| words.get(name)) {
        Some(Value::Array(all)) => all.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect(),
        Some(Value::String(one)) => vec![one.clone()],
        Some(other) => vec![other.to_string()],
        None => Vec::new(),
    }
}

fn encode_order(line: &BridgeInput) -> Vec<u8> {
    // Serialising this enum cannot fail.
    let mut line = serde_json::to_vec(line).unwrap_or_default();
    line.push(b'\n');
    line
}
