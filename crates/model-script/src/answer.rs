//! What the model answers, before any API's words for it.

use crate::script::Usage;
use serde_json::Value;
use std::time::Duration;

/// What comes back for one request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reply {
    /// Before the first byte.
    pub(crate) delay: Duration,
    pub(crate) content: Content,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    Answer(Answer),
    Refusal(Refusal),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    /// Letters, digits and underscores; the same for the same place of the same script.
    pub(crate) id: String,
    pub(crate) blocks: Vec<Block>,
    pub(crate) usage: Usage,
    /// The stream breaks off after so many events.
    pub(crate) cut: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Block {
    Think(String),
    Text(Vec<Piece>),
    Call(Call),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Piece {
    pub(crate) pause: Duration,
    pub(crate) text: String,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) tool: String,
    pub(crate) input: Input,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Input {
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
        Self::Text(vec![Piece { pause: Duration::ZERO, text: text.into() }])
    }
}

impl Answer {
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.blocks.iter().filter_map(|block| match block {
            Block::Call(call) => Some(call),
            Block::Think(_) | Block::Text(_) => None,
        })
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.calls().next().is_some()
    }

    /// All text together, as in an answer that is not streamed.
    pub(crate) fn full_text(&self) -> String {
        let pieces = self.blocks.iter().flat_map(|block| match block {
            Block::Text(pieces) => pieces.as_slice(),
            Block::Think(_) | Block::Call(_) => &[],
        });
        pieces.map(|piece| piece.text.as_str()).collect()
    }

    /// The id of the call that stands at this place among the calls.
    pub(crate) fn call_id(&self, index: usize) -> String {
        format!("{}_{index}", self.id)
    }

    /// How long the pauses between pieces take together.
    pub(crate) fn pauses(&self) -> Duration {
        let pieces = self.blocks.iter().flat_map(|block| match block {
            Block::Text(pieces) => pieces.as_slice(),
            Block::Think(_) | Block::Call(_) => &[],
        });
        pieces.map(|piece| piece.pause).sum()
    }
}

impl Input {
    /// As an object, for APIs that know nothing else.
    pub(crate) fn object(&self) -> Value {
        match self {
            Self::Object(value) => value.clone(),
            Self::Text(text) => serde_json::json!({ "input": text }),
        }
    }
}
