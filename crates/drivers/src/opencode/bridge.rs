//! The protocol between the driver and the worker's bridge to OpenCode.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Input of the bridge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BridgeInput {
    Prompt {
        /// Our message id, for errors only.
        id: String,
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        system: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
        /// Set if OpenCode has stored the prompt: it then replaces the stored one and adds none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stored: Option<StoredPrompt>,
    },
    Abort {},
    /// Answers a permission request.
    Permission {
        id: String,
        allow: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Answers questions in order; absent if they are rejected.
    Answers {
        id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answers: Option<Vec<Vec<String>>>,
    },
}

/// OpenCode's ids of a prompt in its history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPrompt {
    pub message_id: String,
    pub part_id: String,
}

/// Output of the bridge.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BridgeOutput {
    /// The session is open.
    Ready { session: String },
    /// An unchanged event of the server.
    Event { data: Box<RawValue> },
    /// The server rejected a request.
    Refused { what: String, id: String, error: String },
    /// The server could not start, or has ended.
    Failed { error: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_round_trip() {
        let line = BridgeInput::Answers { id: "q".to_owned(), answers: Some(vec![vec!["a".to_owned()]]) };
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<BridgeInput>(&text).unwrap(), line);
        let abort: BridgeInput = serde_json::from_str(r#"{"abort":{}}"#).unwrap();
        assert_eq!(abort, BridgeInput::Abort {});
    }
}
