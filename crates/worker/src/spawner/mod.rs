//! The spawner: a helper process with the agent's user and rights. It spawns every program (the agent, commands) and
//! watches files. Its children inherit its user, its cgroup and its lack of capabilities.
//!
//! `handle` is the worker's side, `server` the helper process, `packets` the protocol between them. The worker trusts
//! the spawner no more than the agent: they run as the same user.

use atoll_protocol::exec::TerminalSize;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

mod file_events;
mod handle;
mod launch;
mod packets;
mod process_tree;
mod program;
mod server;
#[cfg(test)]
mod tests;

pub use file_events::{MAX_WATCH_LINE_BYTES, WatchEvent};
pub use handle::{Error, SpawnedProcess, Spawner, SpawnerSupervisor, StdStreams};
pub use launch::SpawnerLauncher;
pub use server::main;

/// A program to spawn, without its standard streams.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramSpec {
    pub argv: Vec<String>,
    pub cwd: PathBuf,
    /// The complete environment.
    pub env: Vec<(String, String)>,
    /// Kill its process group when it exits; otherwise its children live on.
    pub kill_group_on_exit: bool,
    /// Size of its terminal, if it gets one in place of pipes.
    pub terminal: Option<TerminalSize>,
    /// Files to write before the start.
    #[serde(default)]
    pub files: Vec<(PathBuf, String)>,
}

/// Files to write and to remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileUpdate {
    pub files: Vec<FileToWrite>,
    pub removed: Vec<PathBuf>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileToWrite {
    pub path: PathBuf,
    /// May be a secret.
    pub text: String,
}

impl std::fmt::Debug for FileToWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileToWrite").field("path", &self.path).finish_non_exhaustive()
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Request {
    /// Descriptors: its stdin if it has one, stdout, stderr.
    Spawn {
        id: u64,
        program: ProgramSpec,
        has_input: bool,
    },
    Place {
        id: u64,
        update: FileUpdate,
    },
    /// Signals its process group.
    Signal {
        id: u64,
        signal: i32,
    },
    /// Kills it and everything that it started, in any process group.
    Kill {
        id: u64,
    },
    /// Pauses or resumes it and everything that it started.
    Hold {
        id: u64,
        paused: bool,
    },
    /// Watches the files below `root`. Descriptor: the pipe for events.
    Watch {
        root: PathBuf,
    },
    /// Reports all changes up to now.
    Flush {
        number: u64,
    },
    Unwatch,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Reply {
    /// Descriptor: the master end of its terminal, if it has one.
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
        ending: ExitStatus,
    },
    /// With an error message on failure.
    Placed {
        id: u64,
        error: Option<String>,
    },
}

/// The exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    Exited(i32),
    Signalled(i32),
    /// Unknown: the spawner died, and the worker killed the process.
    Lost,
}
