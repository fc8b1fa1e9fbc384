//! Commands and terminals in a sandbox.

use crate::is_false;
use atoll_core::provider::{CommandExit, OutputStream};
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A command to run: either `argv`, or `shell`, which /bin/sh runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewExec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Working directory; the workspace by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The whole input as text; or `true` to send it with `POST …/exec/{eid}/stdin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<ExecInput>,
    /// Run as the sandbox's own root user; only with an imported root file system.
    #[serde(default, skip_serializing_if = "is_false")]
    pub root: bool,
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
    /// Run in a terminal of this size, which `GET …/terminal?exec=` shows. Standard output and error are one stream then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
}

/// The input of a new command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ExecInput {
    Open(bool),
    Text(String),
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TerminalSize {
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub cols: u16,
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub rows: u16,
}

/// A command in a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Exec {
    pub id: String,
    pub argv: Vec<String>,
    pub started_at: Timestamp,
    /// The size of its terminal, if it has one.
    pub terminal: Option<TerminalSize>,
    /// Number of bytes that it has printed.
    pub cursor: u64,
    /// Number of connections that read its output now.
    pub readers: usize,
    /// How it ended; absent while it runs.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub exit: Option<CommandExit>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecList {
    pub items: Vec<Exec>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewSignal {
    /// HUP, INT, QUIT, KILL, USR1, USR2, TERM, CONT or STOP.
    pub signal: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct ExecInputQuery {
    /// Close the command's input after this body.
    #[serde(default)]
    pub end: bool,
}

/// The response to a signal, a kill or a new terminal size.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecReceipt {
    pub id: String,
}

/// The response to input for a command.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecInputReceipt {
    pub id: String,
    /// Number of bytes that the command's input took.
    pub bytes: usize,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct AttachQuery {
    /// Skip this many bytes of output, which the client has already.
    #[serde(default)]
    pub cursor: u64,
}

/// One line of a command's NDJSON output stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ExecOutput {
    /// Output that is UTF-8.
    Text { stream: OutputStream, data: String, cursor: u64 },
    /// Output that is not UTF-8.
    Binary { stream: OutputStream, base64: String, cursor: u64 },
    /// The server has discarded the output before this cursor.
    Gap { gap: u64 },
    /// The connection to the sandbox failed; how the command ended is unknown.
    Failed { error: String, exit: CommandExit },
    /// The command ended.
    Exit { exit: CommandExit },
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct TerminalQuery {
    /// Columns of a new terminal; 80 by default.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000))]
    pub cols: Option<u16>,
    /// Rows of a new terminal; 24 by default.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000))]
    pub rows: Option<u16>,
    /// Working directory of its shell; the workspace by default.
    pub cwd: Option<String>,
    /// A program to run in place of bash, or of sh where there is no bash.
    pub shell: Option<String>,
    /// Show this running terminal in place of a new one.
    pub exec: Option<String>,
    /// Skip this many bytes of its output, which the client has already.
    pub cursor: Option<u64>,
    /// A one-time ticket from `POST /ws-tickets`, for clients that cannot send headers.
    pub ticket: Option<String>,
}
