//! The model's answers, independent of the API.

use crate::script::TokenUsage;
use serde_json::Value;
use std::time::Duration;

/// The response to one request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelReply {
    /// Wait before the first byte.
    pub(crate) delay: Duration,
    pub(crate) content: ReplyContent,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ReplyContent {
    Answer(ModelAnswer),
    Refusal(Refusal),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelAnswer {
    /// Letters, digits and underscores; stable for a position of a script.
    pub(crate) id: String,
    pub(crate) blocks: Vec<Block>,
    pub(crate) usage: TokenUsage,
    /// Cuts the stream after this many events.
    pub(crate) cut_after_events: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Block {
    Think(String),
    Text(Vec<TextPiece>),
    Call(ScriptedCall),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TextPiece {
    pub(crate) pause: Duration,
    pub(crate) text: String,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScriptedCall {
    pub(crate) tool: String,
    pub(crate) input: CallInput,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CallInput {
    Object(Value),
    Text(String),
}

/// An error of the API.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<u32>,
    pub(crate) kind: String,
    pub(crate) message: String,
    pub(crate) body: Option<Value>,
}

impl Block {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(vec![TextPiece { pause: Duration::ZERO, text: text.into() }])
    }
}

impl ModelAnswer {
    pub(crate) fn calls(&self) -> impl Iterator<Item = &ScriptedCall> {
        self.blocks.iter().filter_map(|block| match block {
            Block::Call(call) => Some(call),
            Block::Think(_) | Block::Text(_) => None,
        })
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.calls().next().is_some()
    }

    /// The whole text, as in an answer that is not streamed.
    pub(crate) fn full_text(&self) -> String {
        let pieces = self.blocks.iter().flat_map(|block| match block {
            Block::Text(pieces) => pieces.as_slice(),
            Block::Think(_) | Block::Call(_) => &[],
        });
        pieces.map(|piece| piece.text.as_str()).collect()
    }

    /// The id of the call with this index.
    pub(crate) fn call_id(&self, index: usize) -> String {
        format!("{}_{index}", self.id)
    }

    /// The sum of the pauses between pieces.
    pub(crate) fn total_pause(&self) -> Duration {
        let pieces = self.blocks.iter().flat_map(|block| match block {
            Block::Text(pieces) => pieces.as_slice(),
            Block::Think(_) | Block::Call(_) => &[],
        });
        pieces.map(|piece| piece.pause).sum()
    }
}

impl CallInput {
    /// The input as an object, for APIs without text input.
    pub(crate) fn to_object(&self) -> Value {
        match self {
            Self::Object(value) => value.clone(),
            Self::Text(text) => serde_json::json!({ "input": text }),
        }
    }
}
