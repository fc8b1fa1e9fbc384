//! JSON-RPC as lines, for agents that are spoken to with it: what a line is, and how one is written.

use super::{line_of, object};
use serde::Deserialize;
use serde_json::{Value, json};

/// The peer does not have what was asked for.
const NOT_SERVED: i64 = -32601;

#[derive(Debug, PartialEq)]
pub(super) enum Message {
    /// It wants an answer.
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notice {
        method: String,
        params: Value,
    },
    /// To something that was asked of it by this number.
    Response {
        id: u64,
        result: Result<Value, Refusal>,
    },
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Refusal {
    #[serde(default)]
    pub message: String,
    #[serde(default)]
    pub data: Value,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.message.is_empty() { "it gave no reason" } else { &self.message })?;
        // Some say only here what was wrong.
        match &self.data {
            Value::Null => Ok(()),
            Value::String(data) => write!(f, ": {data}"),
            data => match data["details"].as_str().or_else(|| data["message"].as_str()) {
                Some(details) => write!(f, ": {details}"),
                None => write!(f, ": {data}"),
            },
        }
    }
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    result: Value,
    #[serde(default)]
    error: Option<Refusal>,
}

pub(super) fn read(line: &[u8]) -> Result<Message, String> {
    let wire: Wire = object(line)?;
    match (wire.method, wire.id) {
        (Some(method), Some(id)) if id.is_string() || id.is_number() => {
            Ok(Message::Request { id, method, params: wire.params })
        }
        (Some(method), None | Some(Value::Null)) => Ok(Message::Notice { method, params: wire.params }),
        (None, Some(id)) => {
            let Some(id) = id.as_u64() else { return Err(format!("an answer to {id}, which nobody asked")) };
            let result = wire.error.map_or(Ok(wire.result), Err);
            Ok(Message::Response { id, result })
        }
        (Some(_), Some(id)) => Err(format!("a request with the name {id}")),
        (None, None) => Err("neither a request, nor a notice, nor an answer".to_owned()),
    }
}

pub(super) fn request(id: u64, method: &str, params: &Value) -> Vec<u8> {
    line_of(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

pub(super) fn notice(method: &str, params: &Value) -> Vec<u8> {
    line_of(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

pub(super) fn answer(id: &Value, result: &Value) -> Vec<u8> {
    line_of(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

/// To a request that is not served here: the agent is not left to wait.
pub(super) fn refuse(id: &Value, method: &str) -> Vec<u8> {
    let message = format!("`{method}` is not served here");
    line_of(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": NOT_SERVED, "message": message}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart() {
        let is = |line: &str| read(line.as_bytes());
        let params = || json!({"a": 1});
        let request = Message::Request { id: json!("x"), method: "m".to_owned(), params: params() };
        assert_eq!(is(r#"{"id":"x","method":"m","params":{"a":1}}"#), Ok(request));
        let notice = Message::Notice { method: "m".to_owned(), params: params() };
        assert_eq!(is(r#"{"jsonrpc":"2.0","method":"m","params":{"a":1}}"#), Ok(notice));
        assert_eq!(is(r#"{"id":7,"result":{}}"#), Ok(Message::Response { id: 7, result: Ok(json!({})) }));
        for nonsense in ["", "[]", "{}", "1", r#"{"id":{},"method":"m"}"#, r#"{"id":"x","result":1}"#] {
            assert!(is(nonsense).is_err(), "{nonsense}");
        }
        assert!(read(b"\xff").is_err_and(|reason| reason.starts_with("not UTF-8")));
    }

    #[test]
    fn a_refusal_says_what_there_is() {
        let said = |error: Value| match read(json!({"id": 1, "error": error}).to_string().as_bytes()) {
            Ok(Message::Response { result: Err(refusal), .. }) => refusal.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(said(json!({"code": 1, "message": "no"})), "no");
        assert_eq!(said(json!({"message": "Internal error", "data": {"details": "no key"}})), "Internal error: no key");
        assert_eq!(said(json!({})), "it gave no reason");
        let line: Value = serde_json::from_slice(&refuse(&json!(3), "fs/read")).unwrap();
        assert_eq!((&line["id"], &line["error"]["code"]), (&json!(3), &json!(-32601)));
    }
}
