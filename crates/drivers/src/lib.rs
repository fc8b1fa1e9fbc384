//! Drivers: one pure state machine per agent, which translates between the agent's protocol and Atoll's events and
//! messages.
//!
//! | agent | module | protocol on standard input and output |
//! | --- | --- | --- |
//! | Claude Code | `claude` | `stream-json` lines and the control protocol |
//! | Codex | `codex` | JSON-RPC of `codex app-server` |
//! | Gemini CLI and others | `acp` | the Agent Client Protocol, which is JSON-RPC too |
//! | OpenCode | `opencode` | lines of the worker's bridge to `opencode serve` |
//! | the demo agent | `demo` | JSON lines of its own |
//!
//! The worker's executor owns the process, the turns and the clocks; a driver only maps bytes to values. The executor
//! calls [`Driver::build_command`] and spawns the agent, writes [`Driver::handshake`] to it, and passes every output
//! line to [`Driver::handle_line`], which returns [`AgentOutput`]s: events for the log, acknowledgements, requests,
//! replies. [`Driver::encode_message`] turns a message of the inbox into input, [`Driver::answer_request`] answers a
//! request. [`response_assembly`] then groups the events into whole model responses; it is the same for every agent.
//!
//! Each agent's directory has the same layout: `<agent>_launch` builds the command and the configuration, `<agent>_turn`
//! converts lines into events, `<agent>_wire` parses them where that needs types of its own, and `mod` keeps track of
//! turns, messages and requests. A driver keeps what an agent can grow in the maps of `bounded`. `conformance` runs every
//! driver against a fake agent.
//!
//! To add an agent, add its directory, a row to `define_drivers!`, a fake agent to `conformance`, its package to
//! `atoll_agents::known_agents`, its key `agents.NAME.path` to `atoll_config`, its lines to `worker/tests/agents/fuzz.rs`
//! (which `flood.rs` uses too), and a section to `docs/agents.md`.

use atoll_api::events::{EventData, UnsupportedSetting};
use atoll_core::bounds;
use atoll_core::event::EventType;
use atoll_core::id::MessageId;
use atoll_core::message::{DeliveryMethod, MessageType};
use atoll_core::{guardian, limit};
use atoll_protocol::{EventBlob, Gateway, LeasedMessage};
use serde_json::Value;
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod acp;
mod bounded;
mod claude;
mod codex;
#[cfg(test)]
mod conformance;
pub mod demo;
mod event_clipping;
mod event_data;
mod json_rpc;
#[cfg(test)]
mod launch_tests;
pub mod opencode;
pub mod response_assembly;
pub mod settings;
#[cfg(test)]
mod testing;
mod tools;
pub mod transcript;

pub use atoll_core::agent::{Abilities, AcpLaunch};
pub use bounded::held_value_bytes;
pub use event_clipping::clip_event;
pub use settings::AgentSettings;
pub use tools::is_tool_denied;
pub use transcript::TranscriptSupport;

/// Input for [`Driver::build_command`].
#[derive(Debug, Clone, Copy)]
pub struct LaunchContext<'a> {
    /// Path of the worker's own program in the sandbox.
    pub worker_program: &'a Path,
    pub workspace: &'a Path,
    /// The agent's home directory.
    pub home: &'a Path,
    /// Number of turns before this start, if the agent restarts.
    pub previous_turns: i64,
    pub settings: &'a AgentSettings,
    /// Path of the agent's program in the sandbox; if absent, it is found by its name.
    pub agent_program: Option<&'a Path>,
    /// The model gateway.
    pub gateway: Option<&'a Gateway>,
    /// The agent's own id of the conversation to resume.
    pub native_id: Option<&'a str>,
}

/// The command line, environment and configuration files that start an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentCommand {
    pub argv: Vec<String>,
    /// Variables in addition to those of every command.
    pub env: Vec<(String, String)>,
    /// Configuration files, written before each start. They contain no secrets.
    pub files: Vec<ConfigFile>,
    /// Settings that the agent cannot follow; the worker reports them.
    pub unsupported_settings: Vec<UnsupportedSetting>,
}

fn unsupported(setting: &str, reason: impl Into<String>) -> UnsupportedSetting {
    UnsupportedSetting { setting: setting.to_owned(), reason: reason.into() }
}

/// A configuration file in the agent's home directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// Path relative to the home directory.
    pub path: PathBuf,
    pub text: String,
}

/// State of the agent when it receives a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentTurn {
    Idle,
    InTurn,
}

/// The meaning of one line of agent output, or of a part of it.
#[derive(Debug)]
pub enum AgentOutput {
    Event(AgentEvent),
    /// The agent has received the message.
    Acknowledged {
        id: MessageId,
        how: DeliveryMethod,
    },
    /// The turn has ended; the agent accepts the next message.
    Idle,
    /// The agent gives up; its process ends soon.
    Failed {
        error: String,
    },
    /// Bytes to write to the agent at once.
    Reply(Vec<u8>),
    /// Streamed text, for live display only. The complete text follows as an event.
    TextDelta(Box<RawValue>),
    /// The agent waits for [`Driver::answer_request`].
    Request(AgentRequest),
    /// The agent's own id of the conversation.
    NativeId {
        id: String,
    },
    /// The model API told the agent to wait.
    RateLimited {
        wait: Option<Duration>,
    },
    /// The model's current response is complete.
    ResponseEnded {
        /// The tool call of the subagent whose model responded.
        parent: Option<String>,
    },
    /// A tool has run; the agent waits for [`Driver::confirm_scan`].
    AwaitingScan {
        tool_use_id: String,
    },
    /// The driver does not understand the line.
    Unparsed {
        reason: String,
    },
}

/// A question from the agent that blocks it until it is answered.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentRequest {
    /// The driver's id of the request, unique among open requests.
    pub id: String,
    pub kind: RequestKind,
    pub tool_use_id: Option<String>,
    /// The agent's name of the tool.
    pub tool: String,
    pub input: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// A hook before every tool call: the tool policy answers, not a person.
    BeforeTool,
    /// The agent's own rules require a person's approval.
    Permission,
    /// A question to the user; the input contains it.
    Question,
}

/// Answer to an [`AgentRequest`].
#[derive(Debug, Clone, PartialEq)]
pub enum RequestAnswer {
    Allow {
        /// Replaces the tool's input.
        input: Option<Value>,
        /// Additional context for the agent.
        context: Option<String>,
    },
    Deny {
        reason: String,
    },
    /// The user's answers to a question.
    Answers(Value),
}

/// An event of the agent. The executor adds the turn and the time.
#[derive(Debug)]
pub struct AgentEvent {
    pub event_type: EventType,
    pub data: Box<RawValue>,
    /// The whole of a text that the data shows in part.
    pub blob: Option<EventBlob>,
    pub effect: EventEffect,
    pub response: ResponseRef,
}

/// The model response that an event is part of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ResponseRef {
    /// The agent does not report it. A tool result ends such a response.
    #[default]
    Unknown,
    /// The response with this id of the agent.
    Named { id: String, model: Option<String> },
    /// The current response; [`AgentOutput::ResponseEnded`] ends it.
    Current,
}

/// Effect of an event on the executor's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventEffect {
    None,
    TurnStarted,
    TurnEnded,
    ToolStarted(String),
    ToolEnded(String),
    /// The agent waits for an approval.
    ApprovalRequested,
    ApprovalResolved,
}

pub trait Driver: Send + std::fmt::Debug {
    fn abilities(&self) -> Abilities;
    /// Builds the command that starts the agent, and resets the driver's state.
    fn build_command(&mut self, launch: &LaunchContext<'_>) -> AgentCommand;
    /// Returns `None` if the agent's conversations cannot move to another sandbox.
    fn transcript_support(&self) -> Option<TranscriptSupport> {
        None
    }
    /// Path of the agent's login file in its home directory. With such a file the agent needs no gateway.
    fn login_path(&self) -> Option<&'static str> {
        None
    }
    /// Returns the first input of a new process.
    fn handshake(&mut self) -> Vec<u8> {
        Vec::new()
    }
    /// Encodes a message as input lines.
    fn encode_message(&mut self, message: &LeasedMessage, turn: AgentTurn) -> Vec<u8>;
    /// Adds a note from Atoll to the text that starts a turn.
    fn append_note(&self, content: &str, note: &str) -> String {
        format!("{content}\n\n[{note}]")
    }
    /// Returns true if the agent learns why a request was denied.
    fn relays_denial_reasons(&self) -> bool {
        false
    }
    /// Encodes the confirmation that the watcher has recorded the tool's file changes, if the agent waits for it.
    fn confirm_scan(&mut self, _tool_use_id: &str) -> Option<Vec<u8>> {
        None
    }
    /// Handles one non-blank line of output, without its line break.
    fn handle_line(&mut self, line: &[u8]) -> Vec<AgentOutput>;
    /// Encodes the answer to a request.
    fn answer_request(&mut self, request_id: &str, answer: RequestAnswer) -> Vec<u8>;
}

/// Returns true for messages from Atoll about the running turn, which never start one.
pub fn is_turn_note(message: &LeasedMessage) -> bool {
    let is_from_atoll = matches!(message.sender.as_deref(), Some(limit::LIMITS_SENDER | guardian::GUARDIAN_SENDER));
    is_from_atoll && matches!(message.message_type, MessageType::System | MessageType::GuardianNudge)
}

/// Builds an event; data that exceeds the bounds becomes [`AgentOutput::Unparsed`].
fn build_event(data: EventData, effect: EventEffect) -> AgentOutput {
    build_response_part(data, effect, &ResponseRef::Unknown)
}

/// Builds an event that is part of a model response.
fn build_response_part(mut data: EventData, effect: EventEffect, response: &ResponseRef) -> AgentOutput {
    let blob = clip_event(&mut data);
    let (event_type, data) = (EventType::new(data.event_type()), data.to_json());
    match (event_type, bounds::check_event_data(data.get())) {
        (Ok(event_type), Ok(())) => {
            AgentOutput::Event(AgentEvent { event_type, data, blob, effect, response: response.clone() })
        }
        (Err(error), _) => AgentOutput::Unparsed { reason: error.to_string() },
        (_, Err(error)) => AgentOutput::Unparsed { reason: error.to_string() },
    }
}

/// Parses a line that must be a JSON object of bounded size: serde would accept an array for a struct, too.
fn parse_object<'a, T: serde::Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    bounded::check_line_size(line)?;
    let text = std::str::from_utf8(line).map_err(|error| format!("not UTF-8: {error}"))?;
    if !text.trim_start().starts_with('{') {
        return Err("not an object".to_owned());
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Takes a field out of a value that may not be an object.
fn take_field(value: &mut Value, field: &str) -> Value {
    value.get_mut(field).map(Value::take).unwrap_or_default()
}

fn encode_line(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// Defines [`AGENT_NAMES`] and [`create_driver`] from one table.
macro_rules! define_drivers {
    ($($name:literal => $driver:expr,)+) => {
        /// Names of all agents with a driver.
        pub const AGENT_NAMES: &[&str] = &[$($name),+];

        /// Creates the driver of an agent.
        pub fn create_driver(name: &str) -> Option<Box<dyn Driver>> {
            match name {
                $($name => Some(Box::new($driver)),)+
                _ => None,
            }
        }
    };
}

/// Creates the driver of an agent of the Agent Client Protocol that the configuration names.
pub fn create_acp_driver(name: &str, launch: AcpLaunch) -> Box<dyn Driver> {
    Box::new(acp::AcpDriver::new(acp::AcpAgent::Named { name: name.to_owned(), launch }))
}

define_drivers! {
    "acp" => acp::AcpDriver::new(acp::AcpAgent::generic()),
    "claude" => claude::ClaudeDriver::default(),
    "codex" => codex::CodexDriver::default(),
    "demo" => demo::DemoDriver,
    "gemini" => acp::AcpDriver::new(acp::AcpAgent::Gemini),
    "opencode" => opencode::OpenCodeDriver::default(),
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<'a> LaunchContext<'a> {
        /// A context for a new conversation with default values.
        pub(super) fn minimal(worker_program: &'a Path, settings: &'a AgentSettings) -> Self {
            Self {
                worker_program,
                workspace: Path::new("/workspace"),
                home: Path::new("/home/agent"),
                previous_turns: 0,
                settings,
                agent_program: None,
                gateway: None,
                native_id: None,
            }
        }
    }

    #[test]
    fn every_agent_name_has_a_driver() {
        for name in AGENT_NAMES {
            assert!(create_driver(name).is_some(), "{name}");
        }
        assert_eq!(AGENT_NAMES, atoll_core::agent::BUILT_IN_AGENTS);
        assert!(create_driver("unknown").is_none());
    }
}
