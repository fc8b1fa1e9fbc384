//! Agents that speak the Agent Client Protocol: JSON-RPC as lines on standard input and output.
//!
//! `start` is how they are started, `events` what their updates mean. A turn is one request, `session/prompt`, which is
//! answered when the turn is over. The protocol has no way to say something in between; some agents have one beside it,
//! and are told by that. The others are made to stop, and prompted again with what was said: to whoever watches it is
//! the same turn.

use super::rpc::{self, Message, Refusal};
use super::{Abilities, Answer, Ask, AskKind, Command, Driver, Launch, Mark, Said, Standing, event, take};
use crate::driver::shown::clip;
use atoll_core::event::kind;
use atoll_core::message::{How, MessageType};
use atoll_protocol::LeasedMessage;
use events::Turn;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

mod events;
mod start;
#[cfg(test)]
mod tests;

pub(super) use start::Program;

/// Said beside a message that a turn was broken off for.
const GO_ON: &str = "This came while you were working, and you were stopped so that you see it. \
    Take it into account and go on with what you were doing.";

#[derive(Debug)]
pub(super) struct Acp {
    program: Program,
    /// What a session is begun with, and the one to go on with.
    opening: Value,
    native_id: Option<String>,
    /// Said before the first words, to an agent that has no better place for it.
    system_prompt: Option<String>,
    can_steer: bool,
    session: Option<String>,
    running: Running,
    turn: Turn,
    held: VecDeque<LeasedMessage>,
    /// What the running prompt was made of, until it is seen to run.
    fresh: Vec<(LeasedMessage, How)>,
    interrupt: Option<LeasedMessage>,
    asked: BTreeMap<String, Asked>,
    sent: BTreeMap<u64, Sent>,
    requests: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Running {
    Nothing,
    Prompt,
    /// It was told to stop, for what is held.
    Stopping,
}

#[derive(Debug)]
struct Asked {
    /// Its own name for the request.
    id: Value,
    allow: Option<Value>,
    deny: Option<Value>,
}

/// What an answer will be to.
#[derive(Debug)]
enum Sent {
    Greeting,
    New,
    Load,
    Prompt,
    Steer(Box<LeasedMessage>),
}

impl Acp {
    pub(super) fn new(program: Program) -> Self {
        Self {
            program,
            opening: Value::Null,
            native_id: None,
            system_prompt: None,
            can_steer: false,
            session: None,
            running: Running::Nothing,
            turn: Turn::default(),
            held: VecDeque::new(),
            fresh: Vec::new(),
            interrupt: None,
            asked: BTreeMap::new(),
            sent: BTreeMap::new(),
            requests: 0,
        }
    }
}

impl Driver for Acp {
    fn abilities(&self) -> Abilities {
        Abilities {
            steer: true,
            queue: true,
            interrupt: true,
            approvals: true,
            questions: false,
            hooks: false,
            // It says that it can, and finds none of its sessions.
            resume: self.program != Program::Gemini,
            fork: false,
            usage: true,
            plan: true,
        }
    }

    fn command(&mut self, launch: &Launch<'_>) -> Command {
        *self = Self {
            opening: start::session(launch),
            native_id: launch.native_id.map(str::to_owned),
            // Who has no other place for it reads it before the first message.
            system_prompt: match self.program {
                Program::Gemini => None,
                Program::Other => launch.settings.system_prompt.clone(),
            },
            ..Self::new(self.program)
        };
        start::command(self.program, launch)
    }

    fn greeting(&mut self) -> Vec<u8> {
        let params = json!({
            "protocolVersion": 1,
            "clientInfo": {"name": "atoll", "title": "Atoll", "version": env!("CARGO_PKG_VERSION")},
            // It is in the sandbox itself, with the files and whatever it wants to run.
            "clientCapabilities": {"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false},
        });
        self.ask("initialize", &params, Sent::Greeting)
    }

    fn tell(&mut self, message: &LeasedMessage, _: Standing) -> Vec<u8> {
        match message.message_type {
            MessageType::Interrupt => {
                // With nothing to break off, the turn is over by now.
                if self.running == Running::Nothing && self.held.is_empty() {
                    return Vec::new();
                }
                self.interrupt = Some(message.clone());
                if self.running == Running::Nothing { Vec::new() } else { self.stop() }
            }
            MessageType::UserMessage | MessageType::GuardianNudge | MessageType::System => {
                self.held.push_back(message.clone());
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
            Ok(Message::Request { id, method, params }) => self.requested(id, &method, params),
            Ok(Message::Notice { method, params }) => self.noticed(&method, params),
            Ok(Message::Response { id, result }) => self.answered(id, result),
            Err(reason) => vec![Said::Unparsed { reason }],
        }
    }

    fn answer(&mut self, ask: &str, answer: Answer) -> Vec<u8> {
        let Some(Asked { id, allow, deny }) = self.asked.remove(ask) else { return Vec::new() };
        let option = match answer {
            Answer::Allow { .. } | Answer::Words(_) => allow,
            Answer::Deny { .. } => deny,
        };
        let outcome = match option {
            Some(option) => json!({"outcome": "selected", "optionId": option}),
            None => json!({"outcome": "cancelled"}),
        };
        let mut lines = rpc::answer(&id, &json!({"outcome": outcome}));
        lines.extend(self.tell_held());
        lines
    }
}

impl Acp {
    fn ask(&mut self, method: &str, params: &Value, what: Sent) -> Vec<u8> {
        self.requests += 1;
        self.sent.insert(self.requests, what);
        rpc::request(self.requests, method, params)
    }

    /// Whatever can be told now.
    fn tell_held(&mut self) -> Vec<u8> {
        let Some(session) = self.session.clone() else { return Vec::new() };
        match self.running {
            _ if self.held.is_empty() => Vec::new(),
            Running::Nothing => self.prompt(&session, How::NewTurn),
            Running::Prompt if self.interrupt.is_some() => Vec::new(),
            Running::Prompt if self.can_steer => {
                let mut lines = Vec::new();
                for message in std::mem::take(&mut self.held) {
                    let params = json!({"sessionId": session, "prompt": [text(&message.content)]});
                    lines.extend(self.ask("_session/steering", &params, Sent::Steer(Box::new(message))));
                }
                lines
            }
            // What a person is asked is decided first.
            Running::Prompt if !self.asked.is_empty() => Vec::new(),
            Running::Prompt => {
                self.running = Running::Stopping;
                self.stop()
            }
            Running::Stopping => Vec::new(),
        }
    }

    fn prompt(&mut self, session: &str, how: How) -> Vec<u8> {
        let messages = std::mem::take(&mut self.held);
        let mut blocks: Vec<Value> = self.system_prompt.take().iter().map(|prompt| text(prompt)).collect();
        blocks.extend(messages.iter().map(|message| text(&message.content)));
        if how == How::Restarted {
            blocks.push(text(GO_ON));
        }
        self.fresh = messages.into_iter().map(|message| (message, how)).collect();
        self.running = Running::Prompt;
        let mut lines = self.ask("session/prompt", &json!({"sessionId": session, "prompt": blocks}), Sent::Prompt);
        if self.interrupt.is_some() {
            lines.extend(self.stop());
        }
        lines
    }

    /// What it still waits for has to be answered with that.
    fn stop(&mut self) -> Vec<u8> {
        let mut lines = rpc::notice("session/cancel", &json!({"sessionId": self.session}));
        for (_, Asked { id, .. }) in std::mem::take(&mut self.asked) {
            lines.extend(rpc::answer(&id, &json!({"outcome": {"outcome": "cancelled"}})));
        }
        lines
    }

    fn requested(&mut self, id: Value, method: &str, mut params: Value) -> Vec<Said> {
        if method != "session/request_permission" {
            return vec![Said::Reply(rpc::refuse(&id, method))];
        }
        if self.running == Running::Nothing {
            let outcome = json!({"outcome": {"outcome": "cancelled"}});
            return vec![Said::Reply(rpc::answer(&id, &outcome))];
        }
        let mut said = self.seen_to_run();
        let option = |kinds: [&str; 2]| {
            let options = params["options"].as_array().into_iter().flatten();
            let of =
                |kind: &str| options.clone().find(|option| option["kind"] == kind).map(|it| it["optionId"].clone());
            kinds.into_iter().find_map(of)
        };
        let (allow, deny) = (option(["allow_once", "allow_always"]), option(["reject_once", "reject_always"]));
        let call = take(&mut params, "toolCall");
        said.extend(self.turn.asked(&call));
        let name = id.to_string();
        self.asked.insert(name.clone(), Asked { id, allow, deny });
        let (tool, input) = self.turn.tool(&call);
        let tool_use_id = call["toolCallId"].as_str().map(str::to_owned);
        said.push(Said::Asks(Ask { id: name, kind: AskKind::Permission, tool_use_id, tool, input }));
        said
    }

    fn noticed(&mut self, method: &str, params: Value) -> Vec<Said> {
        match method {
            "session/update" => {
                let update = &params["update"];
                // What came before is told again to whoever goes on with a session.
                let is_news = params["sessionId"].as_str() == self.session.as_deref();
                if !is_news || self.running == Running::Nothing {
                    let is_told_again = self.sent.values().any(|sent| matches!(sent, Sent::Load));
                    if Turn::is_work(update) && !is_told_again {
                        return vec![Said::Unparsed { reason: "work outside of a turn".to_owned() }];
                    }
                    return self.turn.aside(update);
                }
                let mut said = if Turn::is_work(update) { self.seen_to_run() } else { Vec::new() };
                said.extend(self.turn.update(update));
                said
            }
            method if method.starts_with(['_', '$']) => Vec::new(),
            method => vec![Said::Unparsed { reason: format!("a notice of the unknown name `{method}`") }],
        }
    }

    /// It works on what it was told: that is all that confirms it.
    fn seen_to_run(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        for (at, (message, how)) in std::mem::take(&mut self.fresh).into_iter().enumerate() {
            match how {
                How::NewTurn if at == 0 => said.push(self.turn.begins(self.program.name(), self.session.as_deref())),
                How::NewTurn => {}
                How::Restarted | How::Injected => {
                    let data = json!({"message_id": message.id, "how": how});
                    said.push(event(kind::AGENT_MESSAGE_INJECTED, &data, Mark::Plain));
                }
            }
            said.push(Said::Receipt { id: message.id, how });
        }
        said
    }

    fn answered(&mut self, id: u64, result: Result<Value, Refusal>) -> Vec<Said> {
        let Some(sent) = self.sent.remove(&id) else {
            return vec![Said::Unparsed { reason: format!("an answer to {id}, which nobody asked") }];
        };
        match (sent, result) {
            (Sent::Greeting, Ok(result)) => self.greeted(&result),
            (Sent::Greeting, Err(error)) => failed(&format!("it could not be set up: {error}")),
            (Sent::New, Ok(result)) => match result["sessionId"].as_str() {
                Some(id) => self.opened(id.to_owned(), &result),
                None => failed("it began a session without a name"),
            },
            (Sent::New, Err(error)) => failed(&format!("it could not begin a session: {error}")),
            (Sent::Load, Ok(result)) => {
                let id = self.native_id.clone().unwrap_or_default();
                // It has it from before.
                self.system_prompt = None;
                self.opened(id, &result)
            }
            (Sent::Load, Err(error)) => self.begin_anew(&error.to_string()),
            (Sent::Prompt, result) => self.turn_over(result),
            (Sent::Steer(message), Ok(result)) if result["outcome"] == "injected" => {
                let data = json!({"message_id": message.id});
                let told = event(kind::AGENT_MESSAGE_INJECTED, &data, Mark::Plain);
                let mut said = self.seen_to_run();
                said.extend([told, Said::Receipt { id: message.id, how: How::Injected }]);
                said
            }
            // It came too late, or not at a time when it can be taken.
            (Sent::Steer(message), _) => {
                self.held.push_back(*message);
                if self.running == Running::Nothing { vec![Said::Reply(self.tell_held())] } else { Vec::new() }
            }
        }
    }

    fn greeted(&mut self, result: &Value) -> Vec<Said> {
        self.can_steer = result["_meta"]["steering"]["supported"] == true;
        self.turn.greeted(result);
        let capabilities = &result["agentCapabilities"];
        if !capabilities["sessionCapabilities"]["systemPrompt"].is_null()
            && let Some(prompt) = self.system_prompt.take()
        {
            self.opening["_meta"] = json!({"systemPrompt": {"append": prompt}});
        }
        match self.native_id.clone() {
            Some(id) if capabilities["loadSession"] == true => {
                let mut params = self.opening.clone();
                params["sessionId"] = id.into();
                vec![Said::Reply(self.ask("session/load", &params, Sent::Load))]
            }
            Some(_) => self.begin_anew("it can't go on with a session"),
            None => vec![Said::Reply(self.new_session())],
        }
    }

    fn new_session(&mut self) -> Vec<u8> {
        let params = self.opening.clone();
        self.ask("session/new", &params, Sent::New)
    }

    /// Better without its memory than not at all; but it is said.
    fn begin_anew(&mut self, why: &str) -> Vec<Said> {
        let data = json!({"subtype": "resume_failed", "native_id": self.native_id.take(), "error": clip(why)});
        let told = event(kind::AGENT_SYSTEM_MESSAGE, &data, Mark::Plain);
        vec![told, Said::Reply(self.new_session())]
    }

    fn opened(&mut self, id: String, result: &Value) -> Vec<Said> {
        self.session = Some(id.clone());
        self.turn.opened(result);
        vec![Said::Native { id }, Said::Reply(self.tell_held())]
    }

    fn turn_over(&mut self, result: Result<Value, Refusal>) -> Vec<Said> {
        let was = std::mem::replace(&mut self.running, Running::Nothing);
        self.asked.clear();
        let mut said = self.seen_to_run();
        said.extend(self.turn.ends());
        if let Ok(result) = &result {
            said.extend(self.turn.usage(result));
        }
        let reason = result.as_ref().map(|result| result["stopReason"].as_str().unwrap_or("end_turn").to_owned());
        match (self.interrupt.take(), was, reason) {
            (Some(message), ..) => {
                said.push(Said::Receipt { id: message.id, how: How::Injected });
                let data = json!({"message_id": message.id, "text": clip(&message.content)});
                said.extend([event(kind::AGENT_INTERRUPTED, &data, Mark::TurnEnds), Said::Idle]);
            }
            // Some call it an error that they were stopped.
            (None, Running::Stopping, reason) if reason.as_deref().unwrap_or("cancelled") == "cancelled" => {
                if let Some(session) = self.session.clone() {
                    said.push(Said::Reply(self.prompt(&session, How::Restarted)));
                }
                return said;
            }
            (None, _, Ok(reason)) if reason == "cancelled" => {
                said.extend([event(kind::AGENT_INTERRUPTED, &json!({}), Mark::TurnEnds), Said::Idle]);
            }
            (None, _, Ok(reason)) => {
                let data = json!({"stop_reason": clip(&reason)});
                said.extend([event(kind::AGENT_COMPLETED, &data, Mark::TurnEnds), Said::Idle]);
            }
            (None, _, Err(error)) => {
                let error = error.to_string();
                said.push(event(kind::AGENT_ERROR, &json!({"error": clip(&error)}), Mark::Plain));
                said.extend(failed(&error));
                return said;
            }
        }
        let lines = self.tell_held();
        if !lines.is_empty() {
            said.push(Said::Reply(lines));
        }
        said
    }
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn failed(error: &str) -> Vec<Said> {
    vec![Said::Failed { error: error.to_owned() }]
}
