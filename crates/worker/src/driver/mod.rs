//! One driver per agent program: how it is started, how messages are told to it, and what its lines mean.
//!
//! A driver is pure: bytes in, meaning out. The executor owns the process, the turns and the clocks, so that these are
//! the same for every agent.

use crate::heartbeat::Settings;
use atoll_core::bounds;
use atoll_core::event::EventType;
use atoll_core::id::MessageId;
use atoll_core::message::{How, MessageType};
use atoll_core::{guardian, limit};
use atoll_protocol::{Gateway, LeasedMessage};
use serde_json::Value;
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod acp;
mod claude;
mod codex;
#[cfg(test)]
mod conformance;
mod demo;
mod opencode;
mod rpc;
#[cfg(test)]
mod settings_tests;
mod shown;
#[cfg(test)]
mod testing;
mod tools;

pub use atoll_core::agent::Abilities;
pub(crate) use tools::is_denied;

/// What a driver may need to know for starting its agent.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The worker's own program, as it is found in the sandbox.
    pub worker: &'a Path,
    pub workspace: &'a Path,
    /// The agent's home directory.
    pub home: &'a Path,
    /// How many turns there were before, of an agent that is started again.
    pub turns: i64,
    pub settings: &'a Settings,
    /// Where the agent's own program lies in the sandbox; absent for one that is looked for by its name.
    pub program: Option<&'a Path>,
    /// The models that the server lets it reach.
    pub gateway: Option<&'a Gateway>,
    /// The agent's own name for the conversation that it goes on with.
    pub native_id: Option<&'a str>,
}

/// How to start the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Command {
    pub argv: Vec<String>,
    /// Beside what every agent gets.
    pub env: Vec<(String, String)>,
    /// Written before it starts, each time: its settings, without any secret.
    pub files: Vec<Placed>,
    /// Settings that it has no way to follow. Said, never silent.
    pub ignored: Vec<Ignored>,
}

/// A setting that an agent does not follow.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Ignored {
    pub setting: String,
    pub reason: String,
}

impl Ignored {
    fn new(setting: &str, reason: impl Into<String>) -> Self {
        Self { setting: setting.to_owned(), reason: reason.into() }
    }
}

/// How the transcript that the agent keeps by itself is had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeping {
    pub agent: crate::transcript::Agent,
    /// Better while the agent runs: afterwards it takes long.
    pub live: bool,
    /// What the agent's program needs for it.
    pub env: Vec<(String, String)>,
}

/// A file of the agent's home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Below the home directory.
    pub path: PathBuf,
    pub text: String,
}

/// Where the agent is when it is told something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Idle,
    InTurn,
}

/// What a line of the agent says.
#[derive(Debug)]
pub enum Said {
    Event(Told),
    /// It has the message.
    Receipt {
        id: MessageId,
        how: How,
    },
    /// Its turn is over, and it takes the next message.
    Idle,
    /// It gives up; its end follows.
    Failed {
        error: String,
    },
    /// What the protocol wants said back to it, at once.
    Reply(Vec<u8>),
    /// Streamed text: shown while it comes, stored as a message when it is whole.
    Live(Box<RawValue>),
    /// It wants to know something, and waits for [`Driver::answer`].
    Asks(Ask),
    /// Its own name for the conversation.
    Native {
        id: String,
    },
    /// It was told to wait by its model.
    RateLimited {
        wait: Option<Duration>,
    },
    /// The answer that its model was giving has no further part.
    AnswerEnds {
        /// The tool under which a sub-agent has it.
        parent: Option<String>,
    },
    /// A tool has run; the agent waits until what it changed was looked at.
    ToolRan {
        tool_use_id: String,
    },
    /// Nobody knows, and why.
    Unparsed {
        reason: String,
    },
}

/// Something that the agent waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// The driver's own name for it; no two open ones have the same.
    pub id: String,
    pub kind: AskKind,
    pub tool_use_id: Option<String>,
    /// In the agent's words.
    pub tool: String,
    pub input: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskKind {
    /// Each tool before it runs: rules answer, no person does.
    BeforeTool,
    /// The agent's own rules leave this to a person.
    Permission,
    /// It has a question; the input holds it.
    Question,
}

/// What became of an [`Ask`].
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Allow {
        /// Other input than what the agent wanted.
        input: Option<Value>,
        /// Said to the agent beside it.
        context: Option<String>,
    },
    Deny {
        reason: String,
    },
    /// To a question.
    Words(Value),
}

/// An event of the agent; its turn and time are the executor's to say.
#[derive(Debug)]
pub struct Told {
    pub event_type: EventType,
    pub data: Box<RawValue>,
    pub mark: Mark,
    pub origin: Origin,
}

/// Which answer of the model a part of one belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origin {
    /// The agent does not say. One with a result of a tool behind it is taken to be over.
    #[default]
    Unsaid,
    /// That of this name, the agent's own.
    Named { id: String, model: Option<String> },
    /// The one that is running: that it ends is told by [`Said::AnswerEnds`].
    Running,
}

/// What an event means for the executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    Plain,
    TurnBegins,
    TurnEnds,
    ToolBegins(String),
    ToolEnds(String),
    /// It waits for an approval.
    Asks,
    Answered,
}

pub trait Driver: Send + std::fmt::Debug {
    fn abilities(&self) -> Abilities;
    /// A process of it is about to be started: whatever was known of an earlier one is forgotten.
    fn command(&mut self, launch: &Launch<'_>) -> Command;
    /// None for an agent whose conversations can't be taken along.
    fn keeping(&self) -> Option<Keeping> {
        None
    }
    /// Where it looks for a login of its own, below its home. With that it speaks to its models by itself.
    fn login(&self) -> Option<&'static str> {
        None
    }
    /// What the started process is told before anything else.
    fn greeting(&mut self) -> Vec<u8> {
        Vec::new()
    }
    /// The line that tells the agent a message, with its end.
    fn tell(&mut self, message: &LeasedMessage, standing: Standing) -> Vec<u8>;
    /// What begins a turn, with a word of Atoll's own behind it.
    fn with_note(&self, content: &str, note: &str) -> String {
        format!("{content}\n\n[{note}]")
    }
    /// Whether it tells the agent why something was denied.
    fn tells_reasons(&self) -> bool {
        false
    }
    /// Everything that a tool changed has been looked at: the line that tells so to an agent that waits for it.
    fn tool_seen(&mut self, tool_use_id: &str) -> Option<Vec<u8>>;
    /// What a line of the agent says, without its end; never blank.
    fn line(&mut self, line: &[u8]) -> Vec<Said>;
    /// The line that answers what it asked.
    fn answer(&mut self, ask: &str, answer: Answer) -> Vec<u8>;
}

/// Said by Atoll itself about the running turn: it begins none.
pub fn is_aside(message: &LeasedMessage) -> bool {
    let by_itself = matches!(message.sender.as_deref(), Some(limit::SENDER | guardian::SENDER));
    by_itself && matches!(message.message_type, MessageType::System | MessageType::GuardianNudge)
}

/// An event whose data is known to be small. Whatever is wrong with it is a fault of its driver, and said.
fn event(event_type: &str, data: &Value, mark: Mark) -> Said {
    part(event_type, data, mark, &Origin::Unsaid)
}

/// The same for a part of an answer.
fn part(event_type: &str, data: &Value, mark: Mark, origin: &Origin) -> Said {
    let data = atoll_core::json::raw(data);
    match (EventType::new(event_type), bounds::event_data(data.get())) {
        (Ok(event_type), Ok(())) => Said::Event(Told { event_type, data, mark, origin: origin.clone() }),
        (Err(error), _) => Said::Unparsed { reason: error.to_string() },
        (_, Err(error)) => Said::Unparsed { reason: error.to_string() },
    }
}

/// What a line holds. A structure could be read from a list as well, which no agent means by one.
fn object<'a, T: serde::Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    let text = std::str::from_utf8(line).map_err(|error| format!("not UTF-8: {error}"))?;
    if !text.trim_start().starts_with('{') {
        return Err("not an object".to_owned());
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// A field, out of whatever an agent has put in the place of an object.
fn take(value: &mut Value, field: &str) -> Value {
    value.get_mut(field).map(Value::take).unwrap_or_default()
}

fn line_of(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// The names of all agents that there is a driver for.
pub const NAMES: &[&str] = &["acp", "claude", "codex", "demo", "gemini", "opencode"];

pub fn find(name: &str) -> Option<Box<dyn Driver>> {
    match name {
        "acp" => Some(Box::new(acp::Acp::new(acp::Program::Other))),
        "claude" => Some(Box::<claude::Claude>::default()),
        "codex" => Some(Box::<codex::Codex>::default()),
        "demo" => Some(Box::new(demo::Demo)),
        "gemini" => Some(Box::new(acp::Acp::new(acp::Program::Gemini))),
        "opencode" => Some(Box::<opencode::OpenCode>::default()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<'a> Launch<'a> {
        /// Of a new conversation, with nothing that is not needed.
        pub(super) fn plain(worker: &'a Path, settings: &'a Settings) -> Self {
            Self {
                worker,
                workspace: Path::new("/workspace"),
                home: Path::new("/home/agent"),
                turns: 0,
                settings,
                program: None,
                gateway: None,
                native_id: None,
            }
        }
    }

    #[test]
    fn every_name_has_a_driver() {
        for name in NAMES {
            assert!(find(name).is_some(), "{name}");
        }
        assert!(find("nobody").is_none());
    }
}
