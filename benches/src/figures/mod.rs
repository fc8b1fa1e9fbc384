//! The figures, one file each; what two of them share stands beside them.

mod agent_event;
mod claude;
mod commit_server;
mod docker;
mod fan_out;
mod files;
mod fork;
mod gateway;
mod ingest;
mod ingest_postgres;
mod ingest_sqlite;
mod local_work;
mod memory;
mod message;
pub mod million;
mod neighbour;
mod sandbox;
mod sandbox_memory;
mod sandboxes_at_once;
mod single_event;
mod tool_calls;
mod trajectory;

use crate::bench::Bench;
use crate::report::Figure;
use anyhow::Result;
use clap::ValueEnum;
use std::fmt;

/// The map: every figure and the file that measures it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Name {
    IngestSqlite,
    IngestPostgres,
    SingleEvent,
    Message,
    FanOut,
    Memory,
    Trajectory,
    Sandbox,
    Fork,
    SandboxesAtOnce,
    Neighbour,
    SandboxMemory,
    Docker,
    AgentEvent,
    ToolCalls,
    Claude,
    Files,
    Gateway,
}

impl Name {
    /// In the order in which they are run. The memory is looked at before pages are read from the same server.
    pub const ALL: [Self; 18] = [
        Self::IngestSqlite,
        Self::IngestPostgres,
        Self::SingleEvent,
        Self::Message,
        Self::FanOut,
        Self::Memory,
        Self::Trajectory,
        Self::Sandbox,
        Self::Fork,
        Self::SandboxesAtOnce,
        Self::Neighbour,
        Self::SandboxMemory,
        Self::Docker,
        Self::AgentEvent,
        Self::ToolCalls,
        Self::Claude,
        Self::Files,
        Self::Gateway,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::IngestSqlite => "ingest-sqlite",
            Self::IngestPostgres => "ingest-postgres",
            Self::SingleEvent => "single-event",
            Self::Message => "message",
            Self::FanOut => "fan-out",
            Self::Memory => "memory",
            Self::Trajectory => "trajectory",
            Self::Sandbox => "sandbox",
            Self::Fork => "fork",
            Self::SandboxesAtOnce => "sandboxes-at-once",
            Self::Neighbour => "neighbour",
            Self::SandboxMemory => "sandbox-memory",
            Self::Docker => "docker",
            Self::AgentEvent => "agent-event",
            Self::ToolCalls => "tool-calls",
            Self::Claude => "claude",
            Self::Files => "files",
            Self::Gateway => "gateway",
        }
    }

    /// A figure that can't be measured is a line of the table too; the others go on.
    pub async fn measure(self, bench: &mut Bench) -> Vec<Figure> {
        let measured: Result<Vec<Figure>> = match self {
            Self::IngestSqlite => Box::pin(ingest_sqlite::measure(bench)).await,
            Self::IngestPostgres => Box::pin(ingest_postgres::measure(bench)).await,
            Self::SingleEvent => Box::pin(single_event::measure(bench)).await,
            Self::Message => Box::pin(message::measure(bench)).await,
            Self::FanOut => Box::pin(fan_out::measure(bench)).await,
            Self::Memory => Box::pin(memory::measure(bench)).await,
            Self::Trajectory => Box::pin(trajectory::measure(bench)).await,
            Self::Sandbox => Box::pin(sandbox::measure(bench)).await,
            Self::Fork => fork::measure(bench),
            Self::SandboxesAtOnce => Box::pin(sandboxes_at_once::measure(bench)).await,
            Self::Neighbour => Box::pin(neighbour::measure(bench)).await,
            Self::SandboxMemory => Box::pin(sandbox_memory::measure(bench)).await,
            Self::Docker => Box::pin(docker::measure(bench)).await,
            Self::AgentEvent => Box::pin(agent_event::measure(bench)).await,
            Self::ToolCalls => Box::pin(tool_calls::measure(bench)).await,
            Self::Claude => Box::pin(claude::measure(bench)).await,
            Self::Files => Box::pin(files::measure(bench)).await,
            Self::Gateway => Box::pin(gateway::measure(bench)).await,
        };
        measured.unwrap_or_else(|error| vec![Figure::failed(self.as_str(), &error)])
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
