//! OpenCode: a server, behind the worker's own bridge (`crate::opencode`) that makes lines of its events.
//!
//! `start` is how it is started, `wire` what the lines look like, `events` what its parts of messages mean. A message is
//! given no name that would come back: it is known again by its words, and confirmed when an answer is begun that
//! follows it.

use super::{Abilities, Answer, Ask, AskKind, Command, Driver, Keeping, Launch, Mark, Said, Standing, event, take};
use crate::driver::shown::clip;
use crate::opencode::wire::In;
use crate::transcript::Agent;
use atoll_core::event::kind;
use atoll_core::message::{How, MessageType};
use atoll_protocol::LeasedMessage;
use events::Turn;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use wire::Line;

mod events;
mod start;
#[cfg(test)]
mod tests;
mod wire;

#[derive(Debug, Default)]
pub(super) struct OpenCode {
    system_prompt: Option<String>,
    agent: Option<&'static str>,
    session: Option<String>,
    is_running: bool,
    /// The running turn has begun, and no message was seen in it.
    is_fresh: bool,
    turn: Turn,
    held: VecDeque<LeasedMessage>,
    /// Told, and not seen by the model so far.
    told: Vec<Told>,
    interrupt: Option<LeasedMessage>,
    asked: BTreeMap<String, Asked>,
    /// Why the turn ends.
    error: Option<String>,
    is_aborted: bool,
}

#[derive(Debug)]
struct Told {
    message: LeasedMessage,
    /// Its own name for it, when it has stored it.
    name: Option<String>,
}

#[derive(Debug)]
enum Asked {
    Permission,
    Questions(Vec<Value>),
}

impl Driver for OpenCode {
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
        Some(Keeping { agent: Agent::OpenCode, live: true, env: start::quiet() })
    }

    fn login(&self) -> Option<&'static str> {
        Some(".local/share/opencode/auth.json")
    }

    fn command(&mut self, launch: &Launch<'_>) -> Command {
        let system_prompt = launch.settings.system_prompt.clone();
        *self = Self { system_prompt, agent: start::agent(launch.settings.mode), ..Self::default() };
        start::command(launch)
    }

    fn tell(&mut self, message: &LeasedMessage, _: Standing) -> Vec<u8> {
        match message.message_type {
            MessageType::Interrupt => {
                // With nothing to break off, the turn is over by now.
                if !self.is_running && self.told.is_empty() && self.held.is_empty() {
                    return Vec::new();
                }
                self.interrupt = Some(message.clone());
                if self.is_running { written(&In::Abort {}) } else { Vec::new() }
            }
            MessageType::UserMessage | MessageType::GuardianNudge | MessageType::System => {
                self.held.push_back(message.clone());
                self.tell_held()
            }
        }
    }

    fn tells_reasons(&self) -> bool {
        true
    }

    /// It does not wait for anybody.
    fn tool_seen(&mut self, _: &str) -> Option<Vec<u8>> {
        None
    }

    fn line(&mut self, line: &[u8]) -> Vec<Said> {
        match wire::read(line) {
            Ok(Line::Ready { session }) => {
                self.session = Some(session.clone());
                vec![Said::Native { id: session }, Said::Reply(self.tell_held())]
            }
            Ok(Line::Event { kind, properties }) => self.happened(&kind, properties),
            Ok(Line::Refused { what, id, error }) => self.refused(&what, &id, error),
            Ok(Line::Failed { error }) => vec![Said::Failed { error }],
            Err(reason) => vec![Said::Unparsed { reason }],
        }
    }

    fn answer(&mut self, ask: &str, answer: Answer) -> Vec<u8> {
        let Some(asked) = self.asked.remove(ask) else { return Vec::new() };
        let id = ask.to_owned();
        written(&match (asked, answer) {
            (Asked::Permission, Answer::Allow { .. } | Answer::Words(_)) => {
                In::Permission { id, allow: true, reason: None }
            }
            // Without a word beside it, it would give up.
            (Asked::Permission, Answer::Deny { reason }) => In::Permission { id, allow: false, reason: Some(reason) },
            (Asked::Questions(questions), Answer::Words(words)) => {
                In::Answers { id, answers: Some(questions.iter().map(|question| chosen(question, &words)).collect()) }
            }
            (Asked::Questions(_), Answer::Allow { .. } | Answer::Deny { .. }) => In::Answers { id, answers: None },
        })
    }
}

impl OpenCode {
    fn tell_held(&mut self) -> Vec<u8> {
        if self.session.is_none() {
            return Vec::new();
        }
        let mut lines = Vec::new();
        for message in std::mem::take(&mut self.held) {
            lines.extend(written(&In::Prompt {
                id: message.id.to_string(),
                text: message.content.clone(),
                // It holds for the one message only.
                system: self.system_prompt.clone(),
                agent: self.agent.map(str::to_owned),
            }));
            self.told.push(Told { message, name: None });
        }
        lines
    }

    fn happened(&mut self, kind: &str, mut properties: Value) -> Vec<Said> {
        let of = properties["sessionID"].as_str();
        let is_ours = of.is_none() || of == self.session.as_deref();
        match kind {
            "permission.asked" => self.permission(properties),
            "question.asked" => self.questions(properties),
            "permission.replied" | "question.replied" | "question.rejected" => {
                self.asked.remove(properties["requestID"].as_str().unwrap_or_default());
                Vec::new()
            }
            "session.status" if is_ours => self.status(&properties["status"]),
            "session.idle" if is_ours => self.idle(),
            "session.error" if is_ours => self.failing(&properties["error"]),
            "message.updated" if is_ours => self.message(&properties["info"]),
            "message.part.updated" => {
                let part = take(&mut properties, "part");
                if is_ours {
                    self.stored(&part);
                }
                self.turn.part(&part, is_ours)
            }
            "message.part.delta" if is_ours => self.turn.piece(&properties),
            "session.compacted" if is_ours => {
                let data = json!({"subtype": kind});
                vec![event(kind::AGENT_SYSTEM_MESSAGE, &data, Mark::Plain)]
            }
            kind if wire::is_known(kind) => Vec::new(),
            kind => vec![Said::Unparsed { reason: format!("an event of the unknown type `{kind}`") }],
        }
    }

    fn status(&mut self, status: &Value) -> Vec<Said> {
        match status["type"].as_str() {
            Some("busy") if !self.is_running => {
                (self.is_running, self.is_fresh, self.is_aborted) = (true, true, false);
                self.error = None;
                let mut said = vec![self.turn.begins(self.session.as_deref())];
                if self.interrupt.is_some() {
                    said.push(Said::Reply(written(&In::Abort {})));
                }
                said
            }
            Some("retry") => {
                let data = json!({"attempt": status["attempt"], "error": status["message"]});
                let mut said = vec![event(kind::AGENT_STREAM_ERROR, &data, Mark::Plain)];
                let words = status["message"].as_str().unwrap_or_default().to_ascii_lowercase();
                if ["rate limit", "too many requests", "overloaded", "429"].iter().any(|word| words.contains(word)) {
                    said.push(Said::RateLimited { wait: None });
                }
                said
            }
            // That it is idle is said for itself.
            Some("busy" | "idle") => Vec::new(),
            other => vec![Said::Unparsed { reason: format!("a status of the unknown type {other:?}") }],
        }
    }

    /// A message of somebody has words: of ours it tells the name.
    fn stored(&mut self, part: &Value) {
        let (Some(text), Some(name)) = (part["text"].as_str(), part["messageID"].as_str()) else { return };
        if part["type"] != "text" || self.turn.is_answer(name) {
            return;
        }
        let is_it = |told: &&mut Told| told.name.is_none() && told.message.content == text;
        if let Some(told) = self.told.iter_mut().find(is_it) {
            told.name = Some(name.to_owned());
        }
    }

    /// An answer follows a message: that one, and those before it, are with the model.
    fn message(&mut self, info: &Value) -> Vec<Said> {
        if info["role"] != "assistant" {
            return Vec::new();
        }
        self.turn.answers(info);
        let parent = info["parentID"].as_str();
        let Some(last) = self.told.iter().position(|told| told.name.is_some() && told.name.as_deref() == parent) else {
            return Vec::new();
        };
        let mut said = Vec::new();
        for Told { message, .. } in self.told.drain(..=last) {
            let how = if std::mem::take(&mut self.is_fresh) { How::NewTurn } else { How::Injected };
            if how == How::Injected {
                let data = json!({"message_id": message.id});
                said.push(event(kind::AGENT_MESSAGE_INJECTED, &data, Mark::Plain));
            }
            said.push(Said::Receipt { id: message.id, how });
        }
        said
    }

    fn failing(&mut self, error: &Value) -> Vec<Said> {
        let name = error["name"].as_str().unwrap_or("it gave no reason");
        if name == "MessageAbortedError" {
            self.is_aborted = true;
            return Vec::new();
        }
        let message = error["data"]["message"].as_str().unwrap_or(name).to_owned();
        let data = json!({"error": clip(&message), "name": name, "status": error["data"]["statusCode"]});
        self.error = Some(message);
        vec![event(kind::AGENT_ERROR, &data, Mark::Plain)]
    }

    fn idle(&mut self) -> Vec<Said> {
        if !std::mem::take(&mut self.is_running) {
            return Vec::new();
        }
        self.asked.clear();
        let mut said = self.turn.ends();
        // It may have stored other words than it was told; what it has answered was told first. What an interrupt broke
        // off before any answer is broken off too.
        let has_begun = self.turn.has_answered() || self.interrupt.is_some();
        if std::mem::take(&mut self.is_fresh) && has_begun && !self.told.is_empty() {
            said.push(Said::Receipt { id: self.told.remove(0).message.id, how: How::NewTurn });
        }
        let (interrupt, error) = (self.interrupt.take(), self.error.take());
        match (interrupt, error) {
            (Some(message), _) => {
                said.push(Said::Receipt { id: message.id, how: How::Injected });
                let data = json!({"message_id": message.id, "text": clip(&message.content)});
                said.push(event(kind::AGENT_INTERRUPTED, &data, Mark::TurnEnds));
            }
            (None, Some(error)) => {
                said.push(Said::Failed { error });
                return said;
            }
            (None, None) if self.is_aborted => {
                said.push(event(kind::AGENT_INTERRUPTED, &json!({}), Mark::TurnEnds));
            }
            (None, None) => {
                let data = json!({"stop_reason": self.turn.stop_reason()});
                said.push(event(kind::AGENT_COMPLETED, &data, Mark::TurnEnds));
            }
        }
        said.push(Said::Idle);
        // What it has stored and not come to would lie there: it is said again, and begins a turn.
        let (left, under_way) = std::mem::take(&mut self.told).into_iter().partition(|told| told.name.is_some());
        self.told = under_way;
        let left: Vec<Told> = left;
        self.held.extend(left.into_iter().map(|told| told.message));
        let lines = self.tell_held();
        if !lines.is_empty() {
            said.push(Said::Reply(lines));
        }
        said
    }

    fn permission(&mut self, mut asked: Value) -> Vec<Said> {
        let Some(id) = asked["id"].as_str().map(str::to_owned) else {
            return vec![Said::Unparsed { reason: "a question without a name".to_owned() }];
        };
        let call = asked["tool"]["callID"].as_str().map(str::to_owned);
        let mut input = json!({"patterns": take(&mut asked, "patterns"), "details": take(&mut asked, "metadata")});
        if let Some(whole) = call.as_deref().and_then(|call| self.turn.input(call)) {
            input["input"] = whole;
        }
        let tool = asked["permission"].as_str().unwrap_or("unknown").to_owned();
        self.asked.insert(id.clone(), Asked::Permission);
        vec![Said::Asks(Ask { id, kind: AskKind::Permission, tool_use_id: call, tool, input })]
    }

    fn questions(&mut self, mut asked: Value) -> Vec<Said> {
        let Some(id) = asked["id"].as_str().map(str::to_owned) else {
            return vec![Said::Unparsed { reason: "a question without a name".to_owned() }];
        };
        let tool_use_id = asked["tool"]["callID"].as_str().map(str::to_owned);
        let questions = take(&mut asked, "questions");
        self.asked.insert(id.clone(), Asked::Questions(questions.as_array().cloned().unwrap_or_default()));
        let input = json!({"questions": questions});
        vec![Said::Asks(Ask { id, kind: AskKind::Question, tool_use_id, tool: "question".to_owned(), input })]
    }

    /// The server would not take something.
    fn refused(&mut self, what: &str, id: &str, error: String) -> Vec<Said> {
        let data = json!({"error": clip(&error), "what": what});
        let mut said = vec![event(kind::AGENT_ERROR, &data, Mark::Plain)];
        if what == "prompt" && self.told.iter().any(|told| told.message.id.to_string() == id) {
            said.push(Said::Failed { error: format!("it did not take a message: {error}") });
        }
        said
    }
}

/// People answer by the question's words; it wants the choices, in the order of the questions.
fn chosen(question: &Value, words: &Value) -> Vec<String> {
    let names = [&question["question"], &question["header"]];
    match names.into_iter().filter_map(Value::as_str).find_map(|name| words.get(name)) {
        Some(Value::Array(all)) => all.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect(),
        Some(Value::String(one)) => vec![one.clone()],
        Some(other) => vec![other.to_string()],
        None => Vec::new(),
    }
}

fn written(line: &In) -> Vec<u8> {
    // Writing such an enum into memory can't fail.
    let mut line = serde_json::to_vec(line).unwrap_or_default();
    line.push(b'\n');
    line
}
