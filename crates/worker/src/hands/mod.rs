//! The worker's hands: a small process of its own that runs as the agent does, and starts all that the agent's rights
//! are enough for: the agent itself, commands of an exec, the watching of files. Whatever it starts inherits its user,
//! its cgroup and that it has no capabilities, so that none of this is decided twice.
//!
//! `keeper` is the worker's side, `process` the other one, `wire` what goes between them. The worker does not trust
//! what its hands say further than the agent: they run as the same user.

use atoll_protocol::exec::Terminal;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

mod keeper;
mod process;
mod spawn;
mod starter;
#[cfg(test)]
mod tests;
mod tree;
mod watching;
mod wire;

pub use keeper::{Error, Handle, Keeper, Process, Streams};
pub use process::main;
pub use starter::Starter;
pub use watching::Seen;

/// What to start, beside the descriptors that become its input and outputs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub argv: Vec<String>,
    pub cwd: PathBuf,
    /// All that it gets.
    pub env: Vec<(String, String)>,
    /// Its end is the end of everything in its process group; else what it left behind lives on.
    pub whole: bool,
    /// It gets a terminal of this size, in place of descriptors.
    pub terminal: Option<Terminal>,
    /// Written before it starts.
    #[serde(default)]
    pub files: Vec<(PathBuf, String)>,
}

/// Files that are written, and others that are removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placing {
    pub files: Vec<Written>,
    pub removed: Vec<PathBuf>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub path: PathBuf,
    /// May be a secret.
    pub text: String,
}

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Written").field("path", &self.path).finish_non_exhaustive()
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Request {
    /// With its outputs as descriptors, and its input first if it has one.
    Spawn {
        id: u64,
        program: Program,
        has_input: bool,
    },
    Place {
        id: u64,
        placing: Placing,
    },
    /// To it and everything that it started and that did not leave its process group.
    Signal {
        id: u64,
        signal: i32,
    },
    /// To everything that it started, also what left its process group.
    Kill {
        id: u64,
    },
    /// Everything that it started stands still, or goes on.
    Hold {
        id: u64,
        still: bool,
    },
    /// Watch the files below `root`; what is seen is written to the descriptor that comes along.
    Watch {
        root: PathBuf,
    },
    /// Look now, and say when everything is told.
    Flush {
        number: u64,
    },
    Unwatch,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Reply {
    /// With the worker's end of its terminal as a descriptor, if it has one.
    Started {
        id: u64,
        pid: i32,
    },
    Failed {
        id: u64,
        error: String,
    },
    Ended {
        id: u64,
        ending: Ending,
    },
    /// With a sentence about what could not be done.
    Placed {
        id: u64,
        error: Option<String>,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    Exited(i32),
    Signalled(i32),
    /// Nobody can say: the process that waited for it was killed, and it was killed then too.
    Lost,
}
