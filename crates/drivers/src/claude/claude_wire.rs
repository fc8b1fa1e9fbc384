//! Parses Claude Code's output lines.

use crate::parse_object;
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

#[derive(Debug)]
pub(super) enum ClaudeLine {
    /// A control request: the agent waits for the response.
    Request {
        id: String,
        request: RequestBody,
    },
    /// Response to one of our control requests.
    Response {
        id: String,
        error: Option<String>,
    },
    /// The model has read our message.
    Replay {
        uuid: Uuid,
    },
    /// The turn has ended.
    TurnResult(Box<TurnResult>),
    /// The agent runs, or nothing of it runs any more.
    SessionState {
        is_idle: bool,
    },
    Turn(TurnLine),
    /// Known and irrelevant.
    Ignored,
}

#[derive(Debug)]
pub(super) enum RequestBody {
    Hook {
        callback: String,
        tool_use_id: Option<String>,
        tool: String,
        input: Value,
    },
    Permission {
        tool_use_id: Option<String>,
        tool: String,
        input: Value,
    },
    /// The agent no longer waits for the response.
    Cancelled,
    Unknown {
        subtype: String,
    },
}

#[derive(Debug)]
pub(super) enum TurnLine {
    Init(Box<SessionInit>),
    Retry(ApiRetry),
    /// Any other system message.
    System {
        subtype: String,
        data: Value,
    },
    Assistant(ModelMessage),
    /// Tool results.
    User(ModelMessage),
    /// The model's response is complete.
    ResponseEnded {
        parent: Option<String>,
    },
    /// A piece of streamed text.
    TextDelta {
        text: String,
    },
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct SessionInit {
    pub session_id: String,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub claude_code_version: Option<String>,
    #[serde(default)]
    pub cwd: Option<String>,
    #[serde(default)]
    pub tools: Vec<String>,
    #[serde(default, rename = "permissionMode")]
    pub permission_mode: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ApiRetry {
    #[serde(default)]
    pub attempt: Option<u32>,
    #[serde(default)]
    pub max_retries: Option<u32>,
    #[serde(default)]
    pub retry_delay_ms: Option<f64>,
    #[serde(default)]
    pub error_status: Option<u16>,
    #[serde(default)]
    pub error: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ModelMessage {
    pub message: MessageBody,
    /// The tool call of the subagent that wrote the message.
    #[serde(default)]
    pub parent_tool_use_id: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct MessageBody {
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub model: Option<String>,
    pub content: MessageContent,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum MessageContent {
    Text(String),
    Blocks(Vec<Value>),
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct TurnResult {
    #[serde(default)]
    pub subtype: Option<String>,
    #[serde(default)]
    pub is_error: bool,
    #[serde(default)]
    pub result: Option<String>,
    #[serde(default)]
    pub errors: Vec<Value>,
    #[serde(default)]
    pub stop_reason: Option<String>,
    #[serde(default)]
    pub terminal_reason: Option<String>,
    #[serde(default)]
    pub num_turns: Option<i64>,
    #[serde(default)]
    pub duration_ms: Option<i64>,
    #[serde(default)]
    pub total_cost_usd: Option<f64>,
    #[serde(default)]
    pub usage: TokenUsage,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct TokenUsage {
    #[serde(default)]
    pub input_tokens: i64,
    #[serde(default)]
    pub output_tokens: i64,
    #[serde(default)]
    pub cache_read_input_tokens: i64,
    #[serde(default)]
    pub cache_creation_input_tokens: i64,
}

#[derive(Deserialize)]
struct LineHeader {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    subtype: Option<String>,
    #[serde(default, rename = "isReplay")]
    is_replay: bool,
    #[serde(default)]
    uuid: Option<Uuid>,
}

#[derive(Deserialize)]
struct SessionState {
    state: String,
}

#[derive(Deserialize)]
struct ControlRequest {
    request_id: String,
    #[serde(default)]
    request: Value,
}

#[derive(Deserialize)]
struct ControlResponse {
    response: ControlResult,
}

#[derive(Deserialize)]
struct ControlResult {
    subtype: String,
    request_id: String,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Deserialize)]
struct HookCallback {
    callback_id: String,
    #[serde(default)]
    input: HookInput,
}

#[derive(Default, Deserialize)]
struct HookInput {
    #[serde(default)]
    tool_name: String,
    #[serde(default)]
    tool_input: Value,
    #[serde(default)]
    tool_use_id: Option<String>,
}

#[derive(Deserialize)]
struct PermissionRequest {
    tool_name: String,
    #[serde(default)]
    input: Value,
    #[serde(default)]
    tool_use_id: Option<String>,
}

pub(super) fn parse_line(line: &[u8]) -> Result<ClaudeLine, String> {
    let text = std::str::from_utf8(line).map_err(|error| format!("not UTF-8: {error}"))?;
    let typed: LineHeader = parse_object(line)?;
    Ok(match (typed.kind.as_str(), typed.subtype.as_deref()) {
        ("control_request", _) => {
            let control: ControlRequest = parse_json(text)?;
            ClaudeLine::Request { id: control.request_id, request: parse_request(control.request)? }
        }
        ("control_cancel_request", _) => {
            let control: ControlRequest = parse_json(text)?;
            ClaudeLine::Request { id: control.request_id, request: RequestBody::Cancelled }
        }
        ("control_response", _) => {
            let ControlResult { subtype, request_id, error } = parse_json::<ControlResponse>(text)?.response;
            let refused = subtype != "success";
            ClaudeLine::Response { id: request_id, error: refused.then(|| error.unwrap_or(subtype)) }
        }
        ("user", _) if typed.is_replay => typed.uuid.map_or(ClaudeLine::Ignored, |uuid| ClaudeLine::Replay { uuid }),
        ("user", _) => ClaudeLine::Turn(TurnLine::User(parse_json(text)?)),
        ("assistant", _) => ClaudeLine::Turn(TurnLine::Assistant(parse_json(text)?)),
        ("result", _) => ClaudeLine::TurnResult(parse_json(text)?),
        ("system", Some("init")) => ClaudeLine::Turn(TurnLine::Init(parse_json(text)?)),
        ("system", Some("api_retry")) => ClaudeLine::Turn(TurnLine::Retry(parse_json(text)?)),
        ("system", Some("session_state_changed")) => {
            let state = parse_json::<SessionState>(text)?.state;
            ClaudeLine::SessionState { is_idle: state == "idle" }
        }
        ("system", subtype) => {
            let subtype = subtype.unwrap_or("none").to_owned();
            ClaudeLine::Turn(TurnLine::System { subtype, data: parse_json(text)? })
        }
        ("stream_event", _) => parse_stream_event(&parse_json(text)?)?,
        // Queue state of our messages; the replay acknowledges them.
        ("command_lifecycle" | "keep_alive" | "rate_limit_event" | "tool_progress" | "auth_status", _) => {
            ClaudeLine::Ignored
        }
        (kind, _) => return Err(format!("unknown line type `{kind}`")),
    })
}

fn parse_json<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn parse_request(request: Value) -> Result<RequestBody, String> {
    let subtype = request.get("subtype").and_then(Value::as_str).unwrap_or_default().to_owned();
    let broken = |error: serde_json::Error| format!("{subtype}: {error}");
    Ok(match subtype.as_str() {
        "hook_callback" => {
            let HookCallback { callback_id, input } = serde_json::from_value(request).map_err(broken)?;
            let HookInput { tool_name, tool_input, tool_use_id } = input;
            RequestBody::Hook { callback: callback_id, tool_use_id, tool: tool_name, input: tool_input }
        }
        "can_use_tool" => {
            let PermissionRequest { tool_name, input, tool_use_id } =
                serde_json::from_value(request).map_err(broken)?;
            RequestBody::Permission { tool_use_id, tool: tool_name, input }
        }
        _ => RequestBody::Unknown { subtype },
    })
}

/// Event types of the model's stream.
const STREAM_EVENT_TYPES: &[&str] = &[
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
    "error",
];

/// Parses a stream event. Only text and the end of a response matter: complete messages follow.
fn parse_stream_event(line: &Value) -> Result<ClaudeLine, String> {
    let kind = line["event"]["type"].as_str();
    if !kind.is_some_and(|kind| STREAM_EVENT_TYPES.contains(&kind)) {
        return Err(format!("unknown stream event type {kind:?}"));
    }
    if kind == Some("message_stop") {
        let parent = line["parent_tool_use_id"].as_str().map(str::to_owned);
        return Ok(ClaudeLine::Turn(TurnLine::ResponseEnded { parent }));
    }
    let piece = &line["event"]["delta"];
    Ok(match (piece["type"].as_str(), piece["text"].as_str(), line["parent_tool_use_id"].is_null()) {
        (Some("text_delta"), Some(text), true) => ClaudeLine::Turn(TurnLine::TextDelta { text: text.to_owned() }),
        _ => ClaudeLine::Ignored,
    })
}
