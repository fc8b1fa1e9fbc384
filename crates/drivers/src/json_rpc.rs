//! JSON-RPC 2.0 in lines, which Codex and ACP agents use.

use super::{encode_line, parse_object};
use serde::Deserialize;
use serde_json::{Value, json};

/// Error code "method not found".
const METHOD_NOT_FOUND: i64 = -32601;
/// An error code for servers' own use.
const REQUEST_REJECTED: i64 = -32000;

#[derive(Debug, PartialEq)]
pub(super) enum RpcMessage {
    /// Expects a response.
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    /// Response to our request with this id.
    Response {
        id: u64,
        result: Result<Value, RpcError>,
    },
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct RpcError {
    #[serde(default)]
    pub message: String,
    #[serde(default)]
    pub data: Value,
}

impl std::fmt::Display for RpcError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.message.is_empty() { "no reason given" } else { &self.message })?;
        // Some agents put the cause only here.
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
struct RpcLine {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    result: Value,
    #[serde(default)]
    error: Option<RpcError>,
}

pub(super) fn parse_message(line: &[u8]) -> Result<RpcMessage, String> {
    let wire: RpcLine = parse_object(line)?;
    match (wire.method, wire.id) {
        (Some(method), Some(id)) if id.is_string() || id.is_number() => {
            Ok(RpcMessage::Request { id, method, params: wire.params })
        }
        (Some(method), None | Some(Value::Null)) => Ok(RpcMessage::Notification { method, params: wire.params }),
        (None, Some(id)) => {
            let Some(id) = id.as_u64() else { return Err(format!("response to unknown request {id}")) };
            let result = wire.error.map_or(Ok(wire.result), Err);
            Ok(RpcMessage::Response { id, result })
        }
        (Some(_), Some(id)) => Err(format!("request with invalid id {id}")),
        (None, None) => Err("not a JSON-RPC request, notification or response".to_owned()),
    }
}

pub(super) fn encode_request(id: u64, method: &str, params: &Value) -> Vec<u8> {
    encode_line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

pub(super) fn encode_notification(method: &str, params: &Value) -> Vec<u8> {
    encode_line(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

pub(super) fn encode_response(id: &Value, result: &Value) -> Vec<u8> {
    encode_line(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

/// Rejects a request for an unsupported method, so that the agent does not wait.
pub(super) fn encode_method_not_found(id: &Value, method: &str) -> Vec<u8> {
    encode_error(id, METHOD_NOT_FOUND, &format!("`{method}` is not supported"))
}

/// Rejects a request that the driver cannot accept now.
pub(super) fn encode_rejection(id: &Value, reason: &str) -> Vec<u8> {
    encode_error(id, REQUEST_REJECTED, reason)
}

fn encode_error(id: &Value, code: i64, message: &str) -> Vec<u8> {
    encode_line(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_each_kind_of_line() {
        let is = |line: &str| parse_message(line.as_bytes());
        let params = || json!({"a": 1});
        let request = RpcMessage::Request { id: json!("x"), method: "m".to_owned(), params: params() };
        assert_eq!(is(r#"{"id":"x","method":"m","params":{"a":1}}"#), Ok(request));
        let notice = RpcMessage::Notification { method: "m".to_owned(), params: params() };
        assert_eq!(is(r#"{"jsonrpc":"2.0","method":"m","params":{"a":1}}"#), Ok(notice));
        assert_eq!(is(r#"{"id":7,"result":{}}"#), Ok(RpcMessage::Response { id: 7, result: Ok(json!({})) }));
        for nonsense in ["", "[]", "{}", "1", r#"{"id":{},"method":"m"}"#, r#"{"id":"x","result":1}"#] {
            assert!(is(nonsense).is_err(), "{nonsense}");
        }
        assert!(parse_message(b"\xff").is_err_and(|reason| reason.starts_with("not UTF-8")));
    }

    #[test]
    fn an_error_shows_its_details() {
        let error_text = |error: Value| match parse_message(json!({"id": 1, "error": error}).to_string().as_bytes()) {
            Ok(RpcMessage::Response { result: Err(refusal), .. }) => refusal.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(error_text(json!({"code": 1, "message": "no"})), "no");
        assert_eq!(
            error_text(json!({"message": "Internal error", "data": {"details": "no key"}})),
            "Internal error: no key"
        );
        assert_eq!(error_text(json!({})), "no reason given");
        let line: Value = serde_json::from_slice(&encode_method_not_found(&json!(3), "fs/read")).unwrap();
        assert_eq!((&line["id"], &line["error"]["code"]), (&json!(3), &json!(-32601)));
    }
}
