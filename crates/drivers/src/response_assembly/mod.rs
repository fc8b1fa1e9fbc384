//! Groups the parts of model responses into whole messages.
//!
//! Drivers report the parts as they arrive: thinking, text, tool calls and tool results. The [`ResponseAssembler`]
//! observes these events and emits `agent.assistant_message` for the parts of one response and `agent.user_tool_result`
//! for the results that return to the model together. Both refer to the parts and do not repeat their content.
//!
//! It is the same for every agent, and bounded: large responses are split. Its state is in memory only. If the worker
//! dies during a response, the log contains the parts, but no `agent.assistant_message` for them.

use crate::ResponseRef;
use atoll_api::events::{AssistantMessage, AssistantPart, EventData, ToolResultPart, UserToolResult};
use atoll_core::event::kind;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

#[cfg(test)]
mod tests;

/// Maximum number of observed conversations: the agent's own and those of subagents.
const MAX_THREADS: usize = 32;
/// Maximum number of parts in one response, and of results in one group.
const MAX_PARTS: usize = 200;
/// Maximum JSON size of the parts; an event may be twice as large.
const MAX_LIST_BYTES: usize = 48 << 10;
/// Maximum length of ids and names.
const MAX_NAME_BYTES: usize = 1024;

/// An event to emit before the observed one.
#[derive(Debug)]
pub struct AssembledEvent {
    pub event_type: &'static str,
    pub turn: Option<i64>,
    pub data: Box<RawValue>,
}

#[derive(Debug, Default)]
pub struct ResponseAssembler {
    /// The model that the agent named at the start of the turn.
    model: Option<String>,
    /// Ordered by last use.
    threads: Vec<ModelThread>,
}

/// One conversation with a model.
#[derive(Debug, Default)]
struct ModelThread {
    /// The tool call of the subagent that has this conversation.
    parent: Option<String>,
    response: Option<ModelResponse>,
    /// Results of the calls in the current response, or in the previous one.
    results: BoundedList<ToolResultPart>,
}

/// A response in progress.
#[derive(Debug)]
struct ModelResponse {
    reference: ResponseRef,
    has_ended: bool,
    parts: BoundedList<AssistantPart>,
}

#[derive(Debug)]
struct BoundedList<T> {
    items: Vec<T>,
    bytes: usize,
    turn: Option<i64>,
}

impl<T> Default for BoundedList<T> {
    fn default() -> Self {
        Self { items: Vec::new(), bytes: 0, turn: None }
    }
}

impl<T: Serialize> BoundedList<T> {
    const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn push(&mut self, one: T, turn: Option<i64>) {
        self.bytes += serde_json::to_string(&one).map_or(0, |json| json.len());
        self.turn = turn;
        self.items.push(one);
    }

    const fn is_full(&self) -> bool {
        self.items.len() >= MAX_PARTS || self.bytes >= MAX_LIST_BYTES
    }
}

impl ResponseAssembler {
    /// Observes an event that the worker is about to emit, and returns the events to emit before it.
    pub fn observe_event(
        &mut self,
        event_type: &str,
        data: &str,
        turn: Option<i64>,
        origin: &ResponseRef,
    ) -> Vec<AssembledEvent> {
        let mut composed = Vec::new();
        match event_type {
            kind::AGENT_THINKING | kind::AGENT_MESSAGE | kind::AGENT_TOOL_USE => {
                let data = parse_data(data);
                let at = self.find_thread(parent_id(&data), &mut composed);
                self.add_part(at, summarize_part(event_type, &data), turn, origin, &mut composed);
            }
            kind::AGENT_TOOL_COMPLETED => {
                let data = parse_data(data);
                let id = clipped_string(&data["tool_use_id"]);
                // A subagent's last message precedes the end of its tool call.
                if let Some(at) = self.threads.iter().position(|thread| thread.parent.is_some() && thread.parent == id)
                {
                    self.threads.remove(at).flush(self.model.as_deref(), &mut composed);
                }
                let at = self.find_thread(parent_id(&data), &mut composed);
                let is_error = data["is_error"].as_bool().unwrap_or(false);
                self.add_result(at, ToolResultPart { tool_use_id: id, is_error }, turn, &mut composed);
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
                self.model = clipped_string(&parse_data(data)["model"]);
            }
            // After this event the agent is waiting; an event of work would contradict that.
            kind::APPROVAL_REQUESTED => composed = self.take_ended(),
            _ => {}
        }
        composed
    }

    /// Marks the current response as complete.
    pub fn end_response(&mut self, parent: Option<&str>) {
        let parent = parent.map(clip_name);
        let of = |thread: &&mut ModelThread| thread.parent.as_deref() == parent;
        if let Some(answer) = self.threads.iter_mut().find(of).and_then(|thread| thread.response.as_mut()) {
            answer.has_ended = true;
        }
    }

    /// Emits the complete responses.
    pub fn take_ended(&mut self) -> Vec<AssembledEvent> {
        let mut composed = Vec::new();
        for thread in &mut self.threads {
            if thread.response.as_ref().is_some_and(|answer| answer.has_ended) {
                thread.flush_response(self.model.as_deref(), &mut composed);
            }
        }
        composed
    }

    /// Emits everything, complete or not.
    pub fn flush(&mut self) -> Vec<AssembledEvent> {
        let mut composed = Vec::new();
        for mut thread in self.threads.drain(..) {
            thread.flush(self.model.as_deref(), &mut composed);
        }
        composed
    }

    /// Returns the index of the conversation, which moves to the end of the list.
    fn find_thread(&mut self, parent: Option<String>, composed: &mut Vec<AssembledEvent>) -> usize {
        let known = self.threads.iter().position(|thread| thread.parent == parent);
        let thread = known.map(|at| self.threads.remove(at)).unwrap_or_else(|| {
            if self.threads.len() >= MAX_THREADS {
                self.threads.remove(0).flush(self.model.as_deref(), composed);
            }
            ModelThread { parent, ..ModelThread::default() }
        });
        self.threads.push(thread);
        self.threads.len() - 1
    }

    fn add_part(
        &mut self,
        at: usize,
        part: AssistantPart,
        turn: Option<i64>,
        origin: &ResponseRef,
        composed: &mut Vec<AssembledEvent>,
    ) {
        let (model, thread) = (self.model.as_deref(), &mut self.threads[at]);
        let is_call = matches!(part, AssistantPart::ToolUse { .. });
        let has_results = !thread.results.is_empty();
        let goes_on =
            |answer: &ModelResponse| answer.includes(origin, turn, is_call, has_results) && !answer.parts.is_full();
        if !thread.response.as_ref().is_some_and(goes_on) {
            thread.flush(model, composed);
        }
        let new_response =
            || ModelResponse { reference: clip_reference(origin), has_ended: false, parts: BoundedList::default() };
        thread.response.get_or_insert_with(new_response).parts.push(part, turn);
    }

    fn add_result(&mut self, at: usize, result: ToolResultPart, turn: Option<i64>, composed: &mut Vec<AssembledEvent>) {
        let (model, thread) = (self.model.as_deref(), &mut self.threads[at]);
        if thread.response.as_ref().is_some_and(|answer| answer.has_ended || answer.reference == ResponseRef::Unknown) {
            thread.flush_response(model, composed);
        }
        if thread.results.is_full() || (!thread.results.is_empty() && thread.results.turn != turn) {
            thread.flush(model, composed);
        }
        thread.results.push(result, turn);
    }
}

impl ModelResponse {
    /// Returns true if a part with this reference belongs to the response.
    fn includes(&self, origin: &ResponseRef, turn: Option<i64>, is_call: bool, has_results: bool) -> bool {
        if self.has_ended || self.parts.turn != turn {
            return false;
        }
        match (&self.reference, origin) {
            (ResponseRef::Named { id, .. }, ResponseRef::Named { id: other, .. }) => clip_name(id) == clip_name(other),
            // The end marker may have been missed: text after a tool result starts a new response.
            (ResponseRef::Current, ResponseRef::Current) => is_call || !has_results,
            (ResponseRef::Unknown | ResponseRef::Named { .. } | ResponseRef::Current, _) => !has_results,
        }
    }
}

impl ModelThread {
    fn flush(&mut self, model: Option<&str>, composed: &mut Vec<AssembledEvent>) {
        self.flush_response(model, composed);
        let BoundedList { items: results, turn, .. } = std::mem::take(&mut self.results);
        if !results.is_empty() {
            let data = UserToolResult { results, parent_tool_use_id: self.parent.clone() };
            let data = EventData::AgentUserToolResult(data).to_json();
            composed.push(AssembledEvent { event_type: kind::AGENT_USER_TOOL_RESULT, turn, data });
        }
    }

    fn flush_response(&mut self, model: Option<&str>, composed: &mut Vec<AssembledEvent>) {
        let Some(ModelResponse { reference: origin, parts: BoundedList { items: content, turn, .. }, .. }) =
            self.response.take()
        else {
            return;
        };
        let (id, named) = match &origin {
            ResponseRef::Named { id, model } => (Some(id), model.as_deref()),
            ResponseRef::Unknown | ResponseRef::Current => (None, None),
        };
        // A subagent may use another model than the agent.
        let model = named.or(model.filter(|_| self.parent.is_none()));
        let data = AssistantMessage {
            content,
            message_id: id.map(|id| clip_name(id).to_owned()),
            model: model.map(|model| clip_name(model).to_owned()),
            parent_tool_use_id: self.parent.clone(),
        };
        let data = EventData::AgentAssistantMessage(data).to_json();
        composed.push(AssembledEvent { event_type: kind::AGENT_ASSISTANT_MESSAGE, turn, data });
    }
}

fn summarize_part(event_type: &str, data: &Value) -> AssistantPart {
    let characters = data["text"].as_str().map_or(0, |text| text.chars().count() as u64);
    match event_type {
        kind::AGENT_TOOL_USE => AssistantPart::ToolUse {
            tool_use_id: clipped_string(&data["tool_use_id"]),
            tool: clipped_string(&data["tool"]),
        },
        kind::AGENT_THINKING => AssistantPart::Thinking { characters },
        _ => AssistantPart::Text { characters },
    }
}

/// The driver has parsed the data before, so errors do not occur.
fn parse_data(data: &str) -> Value {
    serde_json::from_str(data).unwrap_or_default()
}

fn parent_id(data: &Value) -> Option<String> {
    clipped_string(&data["parent_tool_use_id"])
}

fn clipped_string(value: &Value) -> Option<String> {
    value.as_str().map(|text| clip_name(text).to_owned())
}

fn clip_reference(reference: &ResponseRef) -> ResponseRef {
    match reference {
        ResponseRef::Named { id, model } => ResponseRef::Named {
            id: clip_name(id).to_owned(),
            model: model.as_deref().map(|model| clip_name(model).to_owned()),
        },
        ResponseRef::Unknown | ResponseRef::Current => reference.clone(),
    }
}

fn clip_name(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME_BYTES)]
}
