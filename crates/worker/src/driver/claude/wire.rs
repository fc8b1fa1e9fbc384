//! The lines of Claude Code, as far as something follows from them.

use crate::driver::object;
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

#[derive(Debug)]
pub(super) enum Line {
    /// It wants to know something, and waits.
    Request {
        id: String,
        request: Request,
    },
    /// To something that was asked of it.
    Response {
        id: String,
        error: Option<String>,
    },
    /// A message of ours has reached the model.
    Replay {
        uuid: Uuid,
    },
    /// The end of a turn.
    Result(Box<Outcome>),
    Other(Other),
    /// Known, and of no interest.
    Nothing,
}

#[derive(Debug)]
pub(super) enum Request {
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
    /// It does not wait any more.
    Cancelled,
    Unknown {
        subtype: String,
    },
}

#[derive(Debug)]
pub(super) enum Other {
    Init(Box<Init>),
    Retry(Retry),
    /// Something that it says about itself.
    Notice {
        subtype: String,
        data: Value,
    },
    Assistant(Said),
    /// Results of tools.
    User(Said),
    /// An answer of the model has no further part.
    AnswerEnds {
        parent: Option<String>,
    },
    /// A piece of text that is still being written.
    Delta {
        text: String,
    },
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Init {
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
pub(super) struct Retry {
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
pub(super) struct Said {
    pub message: Message,
    /// The tool under which a sub-agent says it.
    #[serde(default)]
    pub parent_tool_use_id: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Message {
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub model: Option<String>,
    pub content: Content,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Content {
    Text(String),
    Blocks(Vec<Value>),
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Outcome {
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
    pub usage: Usage,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Usage {
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
struct Typed {
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
struct ControlRequest {
    request_id: String,
    #[serde(default)]
    request: Value,
}

#[derive(Deserialize)]
struct ControlResponse {
    response: Responded,
}

#[derive(Deserialize)]
struct Responded {
    subtype: String,
    request_id: String,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Deserialize)]
struct Hook {
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
struct Permission {
    tool_name: String,
    #[serde(default)]
    input: Value,
    #[serde(default)]
    tool_use_id: Option<String>,
}

pub(super) fn read(line: &[u8]) -> Result<Line, String> {
    let text = std::str::from_utf8(line).map_err(|error| format!("not UTF-8: {error}"))?;
    let typed: Typed = object(line)?;
    Ok(match (typed.kind.as_str(), typed.subtype.as_deref()) {
        ("control_request", _) => {
            let asked: ControlRequest = parse(text)?;
            Line::Request { id: asked.request_id, request: request(asked.request)? }
        }
        ("control_cancel_request", _) => {
            let asked: ControlRequest = parse(text)?;
            Line::Request { id: asked.request_id, request: Request::Cancelled }
        }
        ("control_response", _) => {
            let Responded { subtype, request_id, error } = parse::<ControlResponse>(text)?.response;
            let refused = subtype != "success";
            Line::Response { id: request_id, error: refused.then(|| error.unwrap_or(subtype)) }
        }
        ("user", _) if typed.is_replay => typed.uuid.map_or(Line::Nothing, |uuid| Line::Replay { uuid }),
        ("user", _) => Line::Other(Other::User(parse(text)?)),
        ("assistant", _) => Line::Other(Other::Assistant(parse(text)?)),
        ("result", _) => Line::Result(parse(text)?),
        ("system", Some("init")) => Line::Other(Other::Init(parse(text)?)),
        ("system", Some("api_retry")) => Line::Other(Other::Retry(parse(text)?)),
        ("system", subtype) => {
            let subtype = subtype.unwrap_or("none").to_owned();
            Line::Other(Other::Notice { subtype, data: parse(text)? })
        }
        ("stream_event", _) => delta(&parse(text)?)?,
        // Where a message of ours stands; that the model has it, its replay says.
        ("command_lifecycle" | "keep_alive" | "rate_limit_event" | "tool_progress" | "auth_status", _) => Line::Nothing,
        (kind, _) => return Err(format!("a line of the unknown type `{kind}`")),
    })
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn request(request: Value) -> Result<Request, String> {
    let subtype = request.get("subtype").and_then(Value::as_str).unwrap_or_default().to_owned();
    let broken = |error: serde_json::Error| format!("{subtype}: {error}");
    Ok(match subtype.as_str() {
        "hook_callback" => {
            let Hook { callback_id, input } = serde_json::from_value(request).map_err(broken)?;
            let HookInput { tool_name, tool_input, tool_use_id } = input;
            Request::Hook { callback: callback_id, tool_use_id, tool: tool_name, input: tool_input }
        }
        "can_use_tool" => {
            let Permission { tool_name, input, tool_use_id } = serde_json::from_value(request).map_err(broken)?;
            Request::Permission { tool_use_id, tool: tool_name, input }
        }
        _ => Request::Unknown { subtype },
    })
}

/// What a model's stream is made of.
const STREAMED: &[&str] = &[
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
    "error",
];

/// Of the model's stream only new text and its end are of interest; everything comes again when it is whole.
fn delta(line: &Value) -> Result<Line, String> {
    let kind = line["event"]["type"].as_str();
    if !kind.is_some_and(|kind| STREAMED.contains(&kind)) {
        return Err(format!("a piece of the model's stream of the unknown type {kind:?}"));
    }
    if kind == Some("message_stop") {
        let parent = line["parent_tool_use_id"].as_str().map(str::to_owned);
        return Ok(Line::Other(Other::AnswerEnds { parent }));
    }
    let piece = &line["event"]["delta"];
    Ok(match (piece["type"].as_str(), piece["text"].as_str(), line["parent_tool_use_id"].is_null()) {
        (Some("text_delta"), Some(text), true) => Line::Other(Other::Delta { text: text.to_owned() }),
        _ => Line::Nothing,
    })
}
