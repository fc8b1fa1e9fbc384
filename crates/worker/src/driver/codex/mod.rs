//! Codex: `codex app-server`, JSON-RPC as lines on standard input and output.
//!
//! `start` is how it is started, `events` what its items mean, `asks` what it wants to know. A conversation is a thread
//! of turns. A message carries our name for it, and comes back with that name when the model gets to see it: that is its
//! receipt. What is told before there is a thread, or between the order for a turn and its beginning, is held until then.

use super::rpc::{self, Message, Refusal};
use super::{Abilities, Answer, Command, Driver, Keeping, Launch, Said, Standing};
use crate::transcript::Agent;
use asks::Asks;
use atoll_core::id::MessageId;
use atoll_core::message::{How, MessageType};
use atoll_protocol::LeasedMessage;
use events::Turn;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

mod asks;
mod events;
mod start;
#[cfg(test)]
mod tests;

#[derive(Debug, Default)]
pub(super) struct Codex {
    /// What a thread is begun with, and the one to go on with.
    opening: Value,
    native_id: Option<String>,
    thread: Option<String>,
    running: Running,
    turn: Turn,
    held: VecDeque<Held>,
    /// Told, and not seen by the model so far.
    told: Vec<Told>,
    interrupt: Option<LeasedMessage>,
    asks: Asks,
    sent: BTreeMap<u64, Sent>,
    requests: u64,
}

/// Where the thread stands.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
enum Running {
    #[default]
    Nothing,
    /// A turn was asked for.
    Starting,
    Turn(String),
}

#[derive(Debug)]
struct Held {
    message: LeasedMessage,
    /// It was refused in a running turn, and begins the next one.
    is_late: bool,
}

#[derive(Debug)]
struct Told {
    message: LeasedMessage,
    how: How,
}

/// What an answer will be to.
#[derive(Debug, Clone, Copy)]
enum Sent {
    Greeting,
    Thread,
    Turn(MessageId),
    Steer(MessageId),
    Interrupt,
}

impl Driver for Codex {
    fn abilities(&self) -> Abilities {
        Abilities {
            steer: true,
            queue: true,
            interrupt: true,
            approvals: true,
            questions: true,
            hooks: false,
            resume: true,
            fork: true,
            usage: true,
            plan: true,
        }
    }

    fn keeping(&self) -> Option<Keeping> {
        Some(Keeping { agent: Agent::Codex, live: false, env: Vec::new() })
    }

    fn login(&self) -> Option<&'static str> {
        Some(".codex/auth.json")
    }

    fn command(&mut self, launch: &Launch<'_>) -> Command {
        let native_id = launch.native_id.map(str::to_owned);
        *self = Self { opening: start::thread(launch), native_id, ..Self::default() };
        start::command(launch)
    }

    fn greeting(&mut self) -> Vec<u8> {
        let client = json!({"name": "atoll", "title": "Atoll", "version": env!("CARGO_PKG_VERSION")});
        self.ask("initialize", &json!({"clientInfo": client, "capabilities": {}}), Sent::Greeting)
    }

    fn tell(&mut self, message: &LeasedMessage, _: Standing) -> Vec<u8> {
        match message.message_type {
            MessageType::Interrupt => {
                match &self.running {
                    // There is nothing to break off: the turn is over by now.
                    Running::Nothing if self.held.is_empty() => return Vec::new(),
                    Running::Nothing | Running::Starting | Running::Turn(_) => self.interrupt = Some(message.clone()),
                }
                self.break_off()
            }
            MessageType::UserMessage | MessageType::GuardianNudge | MessageType::System => {
                self.held.push_back(Held { message: message.clone(), is_late: false });
                self.tell_held()
            }
        }
    }

    /// It does not wait for anybody.
    fn tool_seen(&mut self, _: &str) -> Option<Vec<u8>> {
        None
    }

    fn line(&mut self, line: &[u8]) -> Vec<Said> {
        match rpc::read(line) {
            Ok(Message::Request { id, method, params }) => self.asks.asked(&id, &method, params, &self.turn),
            Ok(Message::Notice { method, params }) => self.noticed(&method, params),
            Ok(Message::Response { id, result }) => self.answered(id, result),
            Err(reason) => vec![Said::Unparsed { reason }],
        }
    }

    fn answer(&mut self, ask: &str, answer: Answer) -> Vec<u8> {
        self.asks.answer(ask, answer)
    }
}

impl Codex {
    fn ask(&mut self, method: &str, params: &Value, what: Sent) -> Vec<u8> {
        self.requests += 1;
        self.sent.insert(self.requests, what);
        rpc::request(self.requests, method, params)
    }

    /// Whatever can be told now.
    fn tell_held(&mut self) -> Vec<u8> {
        let mut lines = Vec::new();
        while let (Some(thread), Some(held)) = (self.thread.clone(), self.held.front()) {
            let (id, late) = (held.message.id, held.is_late);
            let input = json!([{"type": "text", "text": held.message.content}]);
            let mut params = json!({"threadId": thread, "input": input, "clientUserMessageId": id});
            let (line, how) = match self.running.clone() {
                Running::Starting => break,
                Running::Turn(_) if late => break,
                Running::Turn(turn) => {
                    params["expectedTurnId"] = turn.into();
                    (self.ask("turn/steer", &params, Sent::Steer(id)), How::Injected)
                }
                Running::Nothing => {
                    self.running = Running::Starting;
                    (self.ask("turn/start", &params, Sent::Turn(id)), How::NewTurn)
                }
            };
            lines.extend(line);
            self.told.extend(self.held.pop_front().map(|held| Told { message: held.message, how }));
        }
        lines
    }

    /// One that has no name yet is broken off as soon as it has.
    fn break_off(&mut self) -> Vec<u8> {
        let (Running::Turn(turn), true) = (&self.running, self.interrupt.is_some()) else { return Vec::new() };
        let params = json!({"threadId": self.thread, "turnId": turn});
        self.ask("turn/interrupt", &params, Sent::Interrupt)
    }

    fn answered(&mut self, id: u64, result: Result<Value, Refusal>) -> Vec<Said> {
        let Some(sent) = self.sent.remove(&id) else {
            return vec![Said::Unparsed { reason: format!("an answer to {id}, which nobody asked") }];
        };
        match (sent, result) {
            (Sent::Greeting, Ok(_)) => vec![Said::Reply(self.open_thread())],
            (Sent::Greeting, Err(error)) => failed(&format!("it could not be set up: {error}")),
            (Sent::Thread, Ok(result)) => self.opened(&result),
            (Sent::Thread, Err(error)) => match &self.native_id {
                Some(id) => failed(&format!("it can't go on with the conversation {id}: {error}")),
                None => failed(&format!("it could not begin a conversation: {error}")),
            },
            // The turn has a name from now on; that it has begun is told for itself.
            (Sent::Turn(_), Ok(result)) => self.turn_is(&result["turn"]),
            (Sent::Turn(id), Err(error)) => {
                self.running = Running::Nothing;
                self.told.retain(|told| told.message.id != id);
                failed(&format!("it could not begin a turn: {error}"))
            }
            // A turn that can't be broken off any more is over, which is told for itself.
            (Sent::Steer(_), Ok(_)) | (Sent::Interrupt, _) => Vec::new(),
            (Sent::Steer(id), Err(_)) => self.came_too_late(id),
        }
    }

    fn open_thread(&mut self) -> Vec<u8> {
        let mut lines = rpc::notice("initialized", &json!({}));
        let mut params = self.opening.clone();
        let method = match &self.native_id {
            Some(id) => {
                params["threadId"] = id.as_str().into();
                params["excludeTurns"] = true.into();
                "thread/resume"
            }
            None => "thread/start",
        };
        lines.extend(self.ask(method, &params, Sent::Thread));
        lines
    }

    fn opened(&mut self, result: &Value) -> Vec<Said> {
        let Some(id) = result["thread"]["id"].as_str() else {
            return failed("it began a conversation without a name");
        };
        self.thread = Some(id.to_owned());
        self.turn.opened(result);
        vec![Said::Native { id: id.to_owned() }, Said::Reply(self.tell_held())]
    }

    fn turn_is(&mut self, turn: &Value) -> Vec<Said> {
        if let (Some(id), Running::Starting) = (turn["id"].as_str(), &self.running) {
            self.running = Running::Turn(id.to_owned());
            let mut lines = self.break_off();
            lines.extend(self.tell_held());
            if !lines.is_empty() {
                return vec![Said::Reply(lines)];
            }
        }
        Vec::new()
    }

    /// The turn takes it no more: it begins the next one.
    fn came_too_late(&mut self, id: MessageId) -> Vec<Said> {
        let Some(at) = self.told.iter().position(|told| told.message.id == id) else { return Vec::new() };
        let message = self.told.remove(at).message;
        self.held.push_front(Held { message, is_late: true });
        vec![Said::Reply(self.tell_held())]
    }

    fn noticed(&mut self, method: &str, params: Value) -> Vec<Said> {
        let of = params["threadId"].as_str();
        let is_ours = of.is_none() || of == self.thread.as_deref();
        match method {
            "turn/started" if is_ours => {
                let id = params["turn"]["id"].as_str().unwrap_or_default();
                // One that nobody asked for is a turn too.
                let mut said = vec![self.turn.begins(self.thread.as_deref())];
                if self.running == Running::Nothing {
                    self.running = Running::Turn(id.to_owned());
                }
                said.extend(self.turn_is(&params["turn"]));
                said
            }
            "turn/completed" if is_ours => self.turn_over(&params["turn"]),
            "turn/started" | "turn/completed" => Vec::new(),
            "item/started" | "item/completed" if params["item"]["type"] == "userMessage" => {
                if method == "item/started" && is_ours { self.seen_by_model(&params["item"]) } else { Vec::new() }
            }
            "serverRequest/resolved" => {
                self.asks.resolved(&params["requestId"]);
                Vec::new()
            }
            method => self.turn.noticed(method, params, is_ours),
        }
    }

    fn seen_by_model(&mut self, item: &Value) -> Vec<Said> {
        let name = item["clientId"].as_str();
        let is_it = |told: &Told| name.is_none_or(|name| told.message.id.to_string() == name);
        let Some(at) = self.told.iter().position(is_it) else { return Vec::new() };
        let Told { message, how } = self.told.remove(at);
        let receipt = Said::Receipt { id: message.id, how };
        match how {
            How::NewTurn | How::Restarted => vec![receipt],
            How::Injected => vec![events::injected(message.id), receipt],
        }
    }

    fn turn_over(&mut self, turn: &Value) -> Vec<Said> {
        self.running = Running::Nothing;
        self.asks.forget();
        let interrupt = self.interrupt.take();
        let mut said = Vec::new();
        for Told { message, how } in std::mem::take(&mut self.told).into_iter().rev() {
            match how {
                // Broken off with the turn that it began, though the model may not have seen it.
                How::NewTurn | How::Restarted if interrupt.is_some() => {
                    said.push(Said::Receipt { id: message.id, how });
                }
                // What the turn had taken and not come to is not in the conversation: it begins the next one.
                How::NewTurn | How::Restarted | How::Injected => {
                    self.held.push_front(Held { message, is_late: true });
                }
            }
        }
        said.extend(interrupt.as_ref().map(|message| Said::Receipt { id: message.id, how: How::Injected }));
        said.extend(self.turn.over(turn, interrupt.as_ref()));
        for held in &mut self.held {
            held.is_late = false;
        }
        let lines = self.tell_held();
        if !lines.is_empty() {
            said.push(Said::Reply(lines));
        }
        said
    }
}

fn failed(error: &str) -> Vec<Said> {
    vec![Said::Failed { error: error.to_owned() }]
}
