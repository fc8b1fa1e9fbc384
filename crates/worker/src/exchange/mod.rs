//! What goes to and fro between an agent and its model: whole answers, and the results of tools that go back.
//!
//! Drivers tell the parts as they come: thoughts, words, calls of tools, their results. This watches them go by and says
//! which of them were one answer (`agent.assistant_message`) and which results were handed back together
//! (`agent.user_tool_result`). Both tell how the parts belong together and not again what stands in them.
//!
//! Pure, the same for every agent, and bounded whatever an agent says: what grows too large is told in pieces. It is
//! held in memory only: an answer that a dying worker was in the middle of has its parts in the log and is not told as a
//! whole, neither by it nor by its successor.

use crate::driver::Origin;
use atoll_core::event::kind;
use serde_json::value::RawValue;
use serde_json::{Value, json};

#[cfg(test)]
mod tests;

/// Conversations that are watched at once: the agent's own, and those of its sub-agents.
const THREADS: usize = 32;
/// Parts of one answer, and results of one group.
const PARTS: usize = 200;
/// What they may take in JSON; an event holds twice as much.
const BYTES: usize = 48 << 10;
/// How much of a name is told.
const NAME: usize = 1024;

/// An event of its own, which goes before the one that it came of.
#[derive(Debug)]
pub struct Composed {
    pub event_type: &'static str,
    pub turn: Option<i64>,
    pub data: Box<RawValue>,
}

#[derive(Debug, Default)]
pub struct Exchange {
    /// What the agent said at the beginning of the turn that it works with.
    model: Option<String>,
    /// The one that was last heard of is the last.
    threads: Vec<Thread>,
}

/// One conversation with a model.
#[derive(Debug, Default)]
struct Thread {
    /// The tool under which a sub-agent has it.
    parent: Option<String>,
    answer: Option<Answer>,
    /// To the calls of this answer, or of the one that was told last.
    results: Listed,
}

/// As far as it has come.
#[derive(Debug)]
struct Answer {
    origin: Origin,
    is_whole: bool,
    parts: Listed,
}

#[derive(Debug, Default)]
struct Listed {
    all: Vec<Value>,
    bytes: usize,
    turn: Option<i64>,
}

impl Listed {
    const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn push(&mut self, one: Value, turn: Option<i64>) {
        self.bytes += one.to_string().len();
        self.turn = turn;
        self.all.push(one);
    }

    const fn is_full(&self) -> bool {
        self.all.len() >= PARTS || self.bytes >= BYTES
    }
}

impl Exchange {
    /// Takes in what is about to be told, and says what goes before it.
    pub fn before(&mut self, event_type: &str, data: &str, turn: Option<i64>, origin: &Origin) -> Vec<Composed> {
        let mut composed = Vec::new();
        match event_type {
            kind::AGENT_THINKING | kind::AGENT_MESSAGE | kind::AGENT_TOOL_USE => {
                let data = read(data);
                let at = self.thread(parent(&data), &mut composed);
                self.part(at, part(event_type, &data), turn, origin, &mut composed);
            }
            kind::AGENT_TOOL_COMPLETED => {
                let data = read(data);
                let id = name(&data["tool_use_id"]);
                // A sub-agent's last words come before its end.
                if let Some(at) = self.threads.iter().position(|thread| thread.parent.is_some() && thread.parent == id)
                {
                    self.threads.remove(at).flush(self.model.as_deref(), &mut composed);
                }
                let at = self.thread(parent(&data), &mut composed);
                let is_error = data["is_error"].as_bool().unwrap_or(false);
                self.result(at, json!({"tool_use_id": id, "is_error": is_error}), turn, &mut composed);
            }
            kind::AGENT_MESSAGE_INJECTED | kind::AGENT_STREAM_ERROR | kind::AGENT_ERROR => {
                if let Some(at) = self.threads.iter().position(|thread| thread.parent.is_none()) {
                    self.threads.remove(at).flush(self.model.as_deref(), &mut composed);
                }
            }
            kind::AGENT_COMPLETED
            | kind::AGENT_INTERRUPTED
            | kind::AGENT_FAILED
            | kind::AGENT_WAITING
            | kind::AGENT_SHUTDOWN => composed = self.flush(),
            kind::AGENT_STARTED => {
                composed = self.flush();
                self.model = name(&read(data)["model"]);
            }
            // Afterwards the agent is seen to wait, which work would deny.
            kind::APPROVAL_REQUESTED => composed = self.whole(),
            _ => {}
        }
        composed
    }

    /// The agent has said that the answer has no further part.
    pub fn ends(&mut self, parent: Option<&str>) {
        let parent = parent.map(clip);
        let of = |thread: &&mut Thread| thread.parent.as_deref() == parent;
        if let Some(answer) = self.threads.iter_mut().find(of).and_then(|thread| thread.answer.as_mut()) {
            answer.is_whole = true;
        }
    }

    /// Answers that have no further part.
    pub fn whole(&mut self) -> Vec<Composed> {
        let mut composed = Vec::new();
        for thread in &mut self.threads {
            if thread.answer.as_ref().is_some_and(|answer| answer.is_whole) {
                thread.tell_answer(self.model.as_deref(), &mut composed);
            }
        }
        composed
    }

    /// All that there is, whole or not.
    pub fn flush(&mut self) -> Vec<Composed> {
        let mut composed = Vec::new();
        for mut thread in self.threads.drain(..) {
            thread.flush(self.model.as_deref(), &mut composed);
        }
        composed
    }

    /// Where this conversation stands, at the end of them all.
    fn thread(&mut self, parent: Option<String>, composed: &mut Vec<Composed>) -> usize {
        let known = self.threads.iter().position(|thread| thread.parent == parent);
        let thread = known.map(|at| self.threads.remove(at)).unwrap_or_else(|| {
            if self.threads.len() >= THREADS {
                self.threads.remove(0).flush(self.model.as_deref(), composed);
            }
            Thread { parent, ..Thread::default() }
        });
        self.threads.push(thread);
        self.threads.len() - 1
    }

    fn part(&mut self, at: usize, part: Value, turn: Option<i64>, origin: &Origin, composed: &mut Vec<Composed>) {
        let (model, thread) = (self.model.as_deref(), &mut self.threads[at]);
        let is_call = part["type"] == "tool_use";
        let has_results = !thread.results.is_empty();
        let goes_on = |answer: &Answer| answer.has(origin, turn, is_call, has_results) && !answer.parts.is_full();
        if !thread.answer.as_ref().is_some_and(goes_on) {
            thread.flush(model, composed);
        }
        let begun = || Answer { origin: origin.clone(), is_whole: false, parts: Listed::default() };
        thread.answer.get_or_insert_with(begun).parts.push(part, turn);
    }

    fn result(&mut self, at: usize, result: Value, turn: Option<i64>, composed: &mut Vec<Composed>) {
        let (model, thread) = (self.model.as_deref(), &mut self.threads[at]);
        if thread.answer.as_ref().is_some_and(|answer| answer.is_whole || answer.origin == Origin::Unsaid) {
            thread.tell_answer(model, composed);
        }
        if thread.results.is_full() || (!thread.results.is_empty() && thread.results.turn != turn) {
            thread.flush(model, composed);
        }
        thread.results.push(result, turn);
    }
}

impl Answer {
    /// Whether a part from there is one of it.
    fn has(&self, origin: &Origin, turn: Option<i64>, is_call: bool, has_results: bool) -> bool {
        if self.is_whole || self.parts.turn != turn {
            return false;
        }
        match (&self.origin, origin) {
            (Origin::Named { id, .. }, Origin::Named { id: other, .. }) => clip(id) == clip(other),
            // Who knows the end by a sign alone may have missed it: after a result, words are new ones.
            (Origin::Running, Origin::Running) => is_call || !has_results,
            (Origin::Unsaid | Origin::Named { .. } | Origin::Running, _) => !has_results,
        }
    }
}

impl Thread {
    fn flush(&mut self, model: Option<&str>, composed: &mut Vec<Composed>) {
        self.tell_answer(model, composed);
        let Listed { all, turn, .. } = std::mem::take(&mut self.results);
        if !all.is_empty() {
            composed.push(self.composed(kind::AGENT_USER_TOOL_RESULT, turn, json!({ "results": all })));
        }
    }

    fn tell_answer(&mut self, model: Option<&str>, composed: &mut Vec<Composed>) {
        let Some(Answer { origin, parts: Listed { all, turn, .. }, .. }) = self.answer.take() else { return };
        let mut data = json!({ "content": all });
        let (id, named) = match &origin {
            Origin::Named { id, model } => (Some(id), model.as_deref()),
            Origin::Unsaid | Origin::Running => (None, None),
        };
        // Of a sub-agent's only what it says itself is known.
        let model = named.or(model.filter(|_| self.parent.is_none()));
        for (field, text) in [("message_id", id.map(String::as_str)), ("model", model)] {
            if let Some(text) = text {
                data[field] = clip(text).into();
            }
        }
        composed.push(self.composed(kind::AGENT_ASSISTANT_MESSAGE, turn, data));
    }

    fn composed(&self, event_type: &'static str, turn: Option<i64>, mut data: Value) -> Composed {
        if let Some(parent) = &self.parent {
            data["parent_tool_use_id"] = parent.as_str().into();
        }
        Composed { event_type, turn, data: atoll_core::json::raw(&data) }
    }
}

fn part(event_type: &str, data: &Value) -> Value {
    let characters = || data["text"].as_str().map_or(0, |text| text.chars().count());
    match event_type {
        kind::AGENT_TOOL_USE => {
            json!({"type": "tool_use", "tool_use_id": name(&data["tool_use_id"]), "tool": name(&data["tool"])})
        }
        kind::AGENT_THINKING => json!({"type": "thinking", "characters": characters()}),
        _ => json!({"type": "text", "characters": characters()}),
    }
}

/// Nothing is missed in what is not JSON: its driver has looked at it before.
fn read(data: &str) -> Value {
    serde_json::from_str(data).unwrap_or_default()
}

fn parent(data: &Value) -> Option<String> {
    name(&data["parent_tool_use_id"])
}

fn name(value: &Value) -> Option<String> {
    value.as_str().map(|text| clip(text).to_owned())
}

fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(NAME)]
}
