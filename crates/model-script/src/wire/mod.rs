//! The APIs of agents: each parses requests into a conversation and encodes an answer as a stream of events or as a
//! whole.

mod anthropic;
mod chat;
mod gemini;
mod responses;

use crate::answer::{ModelAnswer, Refusal};
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
pub(crate) struct SseEvent {
    /// Wait before it is sent.
    pub(crate) pause: Duration,
    pub(crate) name: Option<&'static str>,
    pub(crate) data: String,
}

impl SseEvent {
    fn new(name: Option<&'static str>, data: &Value) -> Self {
        Self { pause: Duration::ZERO, name, data: data.to_string() }
    }

    fn with_pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Encodes it as a server-sent event.
    pub(crate) fn encode_sse(&self) -> String {
        match self.name {
            Some(name) => format!("event: {name}\ndata: {}\n\n", self.data),
            None => format!("data: {}\n\n", self.data),
        }
    }
}

/// A fixed creation time for OpenAI's responses.
const CREATED_AT_SECONDS: u64 = 1_700_000_000;

impl Api {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 4] = [Self::Anthropic, Self::Chat, Self::Responses, Self::Gemini];

    /// Ignores unknown content: agents send more than is needed here.
    pub(crate) fn parse_request(self, body: &Value) -> Conversation {
        match self {
            Self::Anthropic => anthropic::parse_request(body),
            Self::Chat => chat::parse_request(body),
            Self::Responses => responses::parse_request(body),
            Self::Gemini => gemini::parse_request(body),
        }
    }

    pub(crate) fn stream_events(self, conversation: &Conversation, answer: &ModelAnswer) -> Vec<SseEvent> {
        match self {
            Self::Anthropic => anthropic::stream_events(conversation, answer),
            Self::Chat => chat::stream_events(conversation, answer),
            Self::Responses => responses::stream_events(conversation, answer),
            Self::Gemini => gemini::stream_events(conversation, answer),
        }
    }

    pub(crate) fn whole_response(self, conversation: &Conversation, answer: &ModelAnswer) -> Value {
        match self {
            Self::Anthropic => anthropic::whole_response(conversation, answer),
            Self::Chat => chat::whole_response(conversation, answer),
            Self::Responses => responses::whole_response(conversation, answer),
            Self::Gemini => gemini::whole_response(conversation, answer),
        }
    }

    pub(crate) fn refusal_body(self, refusal: &Refusal) -> Value {
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

fn array_items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn string_or_empty(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
