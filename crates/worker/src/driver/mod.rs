//! One driver per agent program: how it is started, how messages are told to it, and what its lines mean.
//!
//! A driver is pure: bytes in, meaning out. The executor owns the process, the turns and the clocks, so that these are
//! the same for every agent.

use atoll_core::event::EventType;
use atoll_core::id::MessageId;
use atoll_core::message::How;
use atoll_protocol::LeasedMessage;
use serde_json::value::RawValue;
use std::path::Path;

mod demo;

/// What an agent can do through its driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Take a message in the running turn.
    pub steer: bool,
    /// Take messages while it works, for later.
    pub queue: bool,
    /// Break off a turn and live on.
    pub interrupt: bool,
    pub approvals: bool,
    pub questions: bool,
    pub hooks: bool,
    pub resume: bool,
    pub fork: bool,
    pub usage: bool,
    pub plan: bool,
}

/// What a driver may need to know for starting its agent.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The worker's own program, as it is found in the sandbox.
    pub worker: &'a Path,
    /// How many turns there were before, of an agent that is started again.
    pub turns: i64,
}

/// How to start the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub argv: Vec<String>,
    /// Beside what every agent gets.
    pub env: Vec<(String, String)>,
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
    /// Nobody knows, and why.
    Unparsed {
        reason: String,
    },
}

/// An event of the agent; its turn and time are the executor's to say.
#[derive(Debug)]
pub struct Told {
    pub event_type: EventType,
    pub data: Box<RawValue>,
    pub mark: Mark,
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
    fn command(&self, launch: &Launch<'_>) -> Command;
    /// The line that tells the agent a message, with its end.
    fn tell(&mut self, message: &LeasedMessage, standing: Standing) -> Vec<u8>;
    /// Everything that a tool changed has been looked at: the line that tells so to an agent that waits for it.
    fn tool_seen(&mut self, tool_use_id: &str) -> Option<Vec<u8>>;
    /// What a line of the agent says, without its end; never blank.
    fn line(&mut self, line: &[u8]) -> Vec<Said>;
}

/// The names of all agents that there is a driver for.
pub const NAMES: &[&str] = &["demo"];

pub fn find(name: &str) -> Option<Box<dyn Driver>> {
    match name {
        "demo" => Some(Box::new(demo::Demo)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_driver() {
        for name in NAMES {
            assert!(find(name).is_some(), "{name}");
        }
        assert!(find("nobody").is_none());
    }
}
