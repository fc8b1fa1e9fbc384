//! The APIs that agents speak: each reads its requests into a conversation, and writes an answer as a stream of
//! events or as a whole.

mod anthropic;
mod chat;
mod gemini;
mod responses;

use crate::answer::{Answer, Refusal};
use crate::conversation::Conversation;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Anthropic,
    Chat,
    Responses,
    Gemini,
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    /// Before it is sent.
    pub(crate) pause: Duration,
    pub(crate) name: Option<&'static str>,
    pub(crate) data: String,
}

impl Event {
    fn new(name: Option<&'static str>, data: &Value) -> Self {
        Self { pause: Duration::ZERO, name, data: data.to_string() }
    }

    fn after(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// As it stands on the wire.
    pub(crate) fn encoded(&self) -> String {
        match self.name {
            Some(name) => format!("event: {name}\ndata: {}\n\n", self.data),
            None => format!("data: {}\n\n", self.data),
        }
    }
}

/// OpenAI's answers carry a time; a script's is always the same.
const CREATED: u64 = 1_700_000_000;

impl Api {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 4] = [Self::Anthropic, Self::Chat, Self::Responses, Self::Gemini];

    /// Whatever is not understood is left out: agents send more than matters here.
    pub(crate) fn read(self, body: &Value) -> Conversation {
        match self {
            Self::Anthropic => anthropic::read(body),
            Self::Chat => chat::read(body),
            Self::Responses => responses::read(body),
            Self::Gemini => gemini::read(body),
        }
    }

    pub(crate) fn events(self, asked: &Conversation, answer: &Answer) -> Vec<Event> {
        match self {
            Self::Anthropic => anthropic::events(asked, answer),
            Self::Chat => chat::events(asked, answer),
            Self::Responses => responses::events(asked, answer),
            Self::Gemini => gemini::events(asked, answer),
        }
    }

    pub(crate) fn whole(self, asked: &Conversation, answer: &Answer) -> Value {
        match self {
            Self::Anthropic => anthropic::whole(asked, answer),
            Self::Chat => chat::whole(asked, answer),
            Self::Responses => responses::whole(asked, answer),
            Self::Gemini => gemini::whole(asked, answer),
        }
    }

    pub(crate) fn refusal(self, refusal: &Refusal) -> Value {
        if let Some(body) = &refusal.body {
            return body.clone();
        }
        let Refusal { status, kind, message, .. } = refusal;
        match self {
            Self::Anthropic => json!({ "type": "error", "error": { "type": kind, "message": message } }),
            Self::Chat | Self::Responses => {
                json!({ "error": { "message": message, "type": kind, "param": null, "code": kind } })
            }
            Self::Gemini => json!({ "error": { "code": status, "message": message, "status": kind.to_uppercase() } }),
        }
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
