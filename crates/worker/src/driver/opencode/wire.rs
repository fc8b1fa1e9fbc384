//! The lines of the bridge, as far as something follows from them.

use serde::Deserialize;
use serde_json::Value;

#[derive(Debug)]
pub(super) enum Line {
    Ready { session: String },
    Event { kind: String, properties: Value },
    Refused { what: String, id: String, error: String },
    Failed { error: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wire {
    Ready { session: String },
    Event { data: Event },
    Refused { what: String, id: String, error: String },
    Failed { error: String },
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    properties: Value,
}

pub(super) fn read(line: &[u8]) -> Result<Line, String> {
    let text = std::str::from_utf8(line).map_err(|error| format!("not UTF-8: {error}"))?;
    Ok(match serde_json::from_str(text).map_err(|error| error.to_string())? {
        Wire::Ready { session } => Line::Ready { session },
        Wire::Event { data: Event { kind, properties } } => Line::Event { kind, properties },
        Wire::Refused { what, id, error } => Line::Refused { what, id, error },
        Wire::Failed { error } => Line::Failed { error },
    })
}

/// What it tells about itself and nothing follows from: it comes again in another form, or is no news here.
pub(super) fn is_known(kind: &str) -> bool {
    const BEGINNINGS: &[&str] = &[
        "server.",
        "session.",
        "message.",
        "plugin.",
        "catalog.",
        "reference.",
        "integration.",
        "installation.",
        "file.",
        "permission.",
        "question.",
        "todo.",
        "lsp.",
        "mcp.",
        "command.",
        "project.",
        "vcs.",
        "workspace.",
        "worktree.",
        "pty.",
        "tui.",
        "global.",
        "models-dev.",
        "ide.",
    ];
    BEGINNINGS.iter().any(|beginning| kind.starts_with(beginning))
}
