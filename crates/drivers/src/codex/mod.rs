//! Codex: `codex app-server`, JSON-RPC on standard input and output.
//!
//! A conversation is a thread of turns. `turn/start` and `turn/steer` carry our message id as `clientUserMessageId`;
//! Codex returns it in a `userMessage` item when it adds the message to the conversation, which acknowledges it: the model
//! reads the message with its next request, in the next turn if an interrupt ends this one. Messages that arrive before the
//! thread exists, or before a requested turn has an id, are queued. `requests` handles Codex' approval requests.

use super::json_rpc::{self, RpcError, RpcMessage};
use super::{Abilities, AgentCommand, AgentOutput, AgentTurn, Driver, LaunchContext, RequestAnswer};
use crate::event_data;
use crate::transcript::{TranscriptStorage, TranscriptSupport};
use atoll_core::id::MessageId;
use atoll_core::message::{DeliveryMethod, MessageType};
use atoll_protocol::LeasedMessage;
use codex_turn::CodexTurn;
use requests::RequestTable;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

mod codex_launch;
mod codex_transcript;
mod codex_turn;
mod requests;
#[cfg(test)]
mod tests;

#[derive(Debug, Default)]
pub(super) struct CodexDriver {
    /// Parameters of `thread/start` or `thread/resume`.
    thread_params: Value,
    native_id: Option<String>,
    thread: Option<String>,
    phase: TurnPhase,
    turn: CodexTurn,
    queued: VecDeque<QueuedMessage>,
    /// Sent messages that Codex has not added to the conversation.
    unacknowledged: Vec<SentMessage>,
    pending_interrupt: Option<LeasedMessage>,
    requests: RequestTable,
    pending_calls: BTreeMap<u64, PendingCall>,
    call_count: u64,
}

/// State of the thread.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
enum TurnPhase {
    #[default]
    Idle,
    /// A turn is requested.
    Starting,
    Turn(String),
}

#[derive(Debug)]
struct QueuedMessage {
    message: LeasedMessage,
    /// Codex rejected it as a steer: it starts the next turn.
    waits_for_next_turn: bool,
}

#[derive(Debug)]
struct SentMessage {
    message: LeasedMessage,
    how: DeliveryMethod,
}

/// A JSON-RPC call that waits for its response.
#[derive(Debug, Clone, Copy)]
enum PendingCall {
    Initialize,
    Thread,
    Turn(MessageId),
    Steer(MessageId),
    Interrupt,
}

impl Driver for CodexDriver {
    fn abilities(&self) -> Abilities {
        Abilities { hooks: false, ..Abilities::ALL }
    }

    fn transcript_support(&self) -> Option<TranscriptSupport> {
        Some(TranscriptSupport {
            agent: "codex".to_owned(),
            storage: TranscriptStorage::Files(codex_transcript::FILES),
            prefers_running_agent: false,
            env: Vec::new(),
        })
    }

    fn login_path(&self) -> Option<&'static str> {
        Some(".codex/auth.json")
    }

    fn build_command(&mut self, launch: &LaunchContext<'_>) -> AgentCommand {
        let native_id = launch.native_id.map(str::to_owned);
        *self = Self { thread_params: codex_launch::thread_params(launch), native_id, ..Self::default() };
        codex_launch::build_command(launch)
    }

    fn handshake(&mut self) -> Vec<u8> {
        let client = json!({"name": "atoll", "title": "Atoll", "version": env!("CARGO_PKG_VERSION")});
        self.call_method("initialize", &json!({"clientInfo": client, "capabilities": {}}), PendingCall::Initialize)
    }

    fn encode_message(&mut self, message: &LeasedMessage, _: AgentTurn) -> Vec<u8> {
        match message.message_type {
            MessageType::Interrupt => {
                match &self.phase {
                    // The turn has already ended.
                    TurnPhase::Idle if self.queued.is_empty() => return Vec::new(),
                    TurnPhase::Idle | TurnPhase::Starting | TurnPhase::Turn(_) => {
                        self.pending_interrupt = Some(message.clone())
                    }
                }
                self.send_interrupt()
            }
            MessageType::UserMessage | MessageType::GuardianNudge | MessageType::System => {
                self.queued.push_back(QueuedMessage { message: message.clone(), waits_for_next_turn: false });
                self.send_queued()
            }
        }
    }

    fn handle_line(&mut self, line: &[u8]) -> Vec<AgentOutput> {
        match json_rpc::parse_message(line) {
            Ok(RpcMessage::Request { id, method, params }) => {
                self.requests.open_request(&id, &method, params, &self.turn)
            }
            Ok(RpcMessage::Notification { method, params }) => self.handle_notification(&method, params),
            Ok(RpcMessage::Response { id, result }) => self.handle_response(id, result),
            Err(reason) => vec![AgentOutput::Unparsed { reason }],
        }
    }

    fn answer_request(&mut self, request_id: &str, answer: RequestAnswer) -> Vec<u8> {
        self.requests.encode_answer(request_id, answer)
    }
}

impl CodexDriver {
    fn call_method(&mut self, method: &str, params: &Value, what: PendingCall) -> Vec<u8> {
        self.call_count += 1;
        self.pending_calls.insert(self.call_count, what);
        json_rpc::encode_request(self.call_count, method, params)
    }

    /// Sends the queued messages that the current phase allows.
    fn send_queued(&mut self) -> Vec<u8> {
        let mut lines = Vec::new();
        while let (Some(thread), Some(queued)) = (self.thread.clone(), self.queued.front()) {
            let (id, late) = (queued.message.id, queued.waits_for_next_turn);
            let input = json!([{"type": "text", "text": queued.message.content}]);
            let mut params = json!({"threadId": thread, "input": input, "clientUserMessageId": id});
            let (line, how) = match self.phase.clone() {
                TurnPhase::Starting => break,
                TurnPhase::Turn(_) if late => break,
                TurnPhase::Turn(turn) => {
                    params["expectedTurnId"] = turn.into();
                    (self.call_method("turn/steer", &params, PendingCall::Steer(id)), DeliveryMethod::Injected)
                }
                TurnPhase::Idle => {
                    self.phase = TurnPhase::Starting;
                    (self.call_method("turn/start", &params, PendingCall::Turn(id)), DeliveryMethod::NewTurn)
                }
            };
            lines.extend(line);
            self.unacknowledged
                .extend(self.queued.pop_front().map(|queued| SentMessage { message: queued.message, how }));
        }
        lines
    }

    /// Interrupts the turn; if it has no id yet, as soon as it has one.
    fn send_interrupt(&mut self) -> Vec<u8> {
        let (TurnPhase::Turn(turn), true) = (&self.phase, self.pending_interrupt.is_some()) else { return Vec::new() };
        let params = json!({"threadId": self.thread, "turnId": turn});
        self.call_method("turn/interrupt", &params, PendingCall::Interrupt)
    }

    fn handle_response(&mut self, id: u64, result: Result<Value, RpcError>) -> Vec<AgentOutput> {
        let Some(sent) = self.pending_calls.remove(&id) else {
            return vec![AgentOutput::Unparsed { reason: format!("response to unknown request {id}") }];
        };
        match (sent, result) {
            (PendingCall::Initialize, Ok(_)) => vec![AgentOutput::Reply(self.open_thread())],
            (PendingCall::Initialize, Err(error)) => fail_with(&format!("the agent's initialization failed: {error}")),
            (PendingCall::Thread, Ok(result)) => self.thread_opened(&result),
            (PendingCall::Thread, Err(error)) => match &self.native_id {
                Some(id) => fail_with(&format!("failed to resume conversation {id}: {error}")),
                None => fail_with(&format!("failed to start a conversation: {error}")),
            },
            // The turn has an id now; `turn/started` reports its start.
            (PendingCall::Turn(_), Ok(result)) => self.set_turn_id(&result["turn"]),
            (PendingCall::Turn(id), Err(error)) => {
                self.phase = TurnPhase::Idle;
                self.unacknowledged.retain(|sent_message| sent_message.message.id != id);
                fail_with(&format!("failed to start a turn: {error}"))
            }
            // An interrupt fails if the turn has already ended.
            (PendingCall::Steer(_), Ok(_)) | (PendingCall::Interrupt, _) => Vec::new(),
            (PendingCall::Steer(id), Err(_)) => self.requeue_message(id),
        }
    }

    fn open_thread(&mut self) -> Vec<u8> {
        let mut lines = json_rpc::encode_notification("initialized", &json!({}));
        let mut params = self.thread_params.clone();
        let method = match &self.native_id {
            Some(id) => {
                params["threadId"] = id.as_str().into();
                params["excludeTurns"] = true.into();
                "thread/resume"
            }
            None => "thread/start",
        };
        lines.extend(self.call_method(method, &params, PendingCall::Thread));
        lines
    }

    fn thread_opened(&mut self, result: &Value) -> Vec<AgentOutput> {
        let Some(id) = result["thread"]["id"].as_str() else {
            return fail_with("the new conversation has no id");
        };
        self.thread = Some(id.to_owned());
        self.turn.set_session_info(result);
        vec![AgentOutput::NativeId { id: id.to_owned() }, AgentOutput::Reply(self.send_queued())]
    }

    fn set_turn_id(&mut self, turn: &Value) -> Vec<AgentOutput> {
        if let (Some(id), TurnPhase::Starting) = (turn["id"].as_str(), &self.phase) {
            self.phase = TurnPhase::Turn(id.to_owned());
            let mut lines = self.send_interrupt();
            lines.extend(self.send_queued());
            if !lines.is_empty() {
                return vec![AgentOutput::Reply(lines)];
            }
        }
        Vec::new()
    }

    /// The turn no longer accepts the message: it starts the next one.
    fn requeue_message(&mut self, id: MessageId) -> Vec<AgentOutput> {
        let Some(at) = self.unacknowledged.iter().position(|sent_message| sent_message.message.id == id) else {
            return Vec::new();
        };
        let message = self.unacknowledged.remove(at).message;
        self.queued.push_front(QueuedMessage { message, waits_for_next_turn: true });
        vec![AgentOutput::Reply(self.send_queued())]
    }

    fn handle_notification(&mut self, method: &str, params: Value) -> Vec<AgentOutput> {
        let of = params["threadId"].as_str();
        let is_ours = of.is_none() || of == self.thread.as_deref();
        match method {
            "turn/started" if is_ours => {
                let id = params["turn"]["id"].as_str().unwrap_or_default();
                // Codex may start turns by itself.
                let mut outputs = vec![self.turn.start_turn(self.thread.as_deref())];
                if self.phase == TurnPhase::Idle {
                    self.phase = TurnPhase::Turn(id.to_owned());
                }
                outputs.extend(self.set_turn_id(&params["turn"]));
                outputs
            }
            "turn/completed" if is_ours => self.end_turn(&params["turn"]),
            "turn/started" | "turn/completed" => Vec::new(),
            "item/started" | "item/completed" if params["item"]["type"] == "userMessage" => {
                if method == "item/started" && is_ours { self.acknowledge_message(&params["item"]) } else { Vec::new() }
            }
            "serverRequest/resolved" => {
                self.requests.close_request(&params["requestId"]);
                Vec::new()
            }
            method => self.turn.convert_notification(method, params, is_ours),
        }
    }

    fn acknowledge_message(&mut self, item: &Value) -> Vec<AgentOutput> {
        let name = item["clientId"].as_str();
        let is_it = |sent_message: &SentMessage| name.is_none_or(|name| sent_message.message.id.to_string() == name);
        let Some(at) = self.unacknowledged.iter().position(is_it) else { return Vec::new() };
        let SentMessage { message, how } = self.unacknowledged.remove(at);
        let receipt = AgentOutput::Acknowledged { id: message.id, how };
        match how {
            DeliveryMethod::NewTurn | DeliveryMethod::Restarted => vec![receipt],
            DeliveryMethod::Injected => vec![event_data::message_injected(message.id, None), receipt],
        }
    }

    fn end_turn(&mut self, turn: &Value) -> Vec<AgentOutput> {
        self.phase = TurnPhase::Idle;
        self.requests.close_all();
        let interrupt = self.pending_interrupt.take();
        let mut outputs = Vec::new();
        for SentMessage { message, how } in std::mem::take(&mut self.unacknowledged).into_iter().rev() {
            match how {
                // The interrupt ends the turn together with the message that started it, even if the model has not read
                // it.
                DeliveryMethod::NewTurn | DeliveryMethod::Restarted if interrupt.is_some() => {
                    outputs.push(AgentOutput::Acknowledged { id: message.id, how });
                }
                // Codex forgets messages that it has not added: they start the next turn.
                DeliveryMethod::NewTurn | DeliveryMethod::Restarted | DeliveryMethod::Injected => {
                    self.queued.push_front(QueuedMessage { message, waits_for_next_turn: true });
                }
            }
        }
        outputs.extend(
            interrupt
                .as_ref()
                .map(|message| AgentOutput::Acknowledged { id: message.id, how: DeliveryMethod::Injected }),
        );
        outputs.extend(self.turn.end_turn(turn, interrupt.as_ref()));
        for queued in &mut self.queued {
            queued.waits_for_next_turn = false;
        }
        let lines = self.send_queued();
        if !lines.is_empty() {
            outputs.push(AgentOutput::Reply(lines));
        }
        outputs
    }
}

fn fail_with(error: &str) -> Vec<AgentOutput> {
    vec![AgentOutput::Failed { error: error.to_owned() }]
}
