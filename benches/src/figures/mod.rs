//! The figures, one module each, and the helpers that several of them share.

mod agent_event;
mod checkouts;
mod claude;
mod commit_server;
mod docker;
mod fan_out;
mod file_copy;
mod first_command;
mod fork;
mod gateway;
pub mod generated_repository;
mod ingest;
mod ingest_postgres;
mod ingest_sqlite;
pub mod loaded_server;
mod local_sandboxes;
mod memory;
mod message;
mod neighbour;
mod sandbox;
mod sandbox_memory;
mod sandboxes_at_once;
mod setup;
mod single_event;
mod tool_calls;
mod trajectory;
mod web_page;
mod worktrees;

use crate::bench::Bench;
use crate::report::Figure;
use anyhow::Result;
use clap::ValueEnum;
use std::fmt;

/// Every figure, by the module that measures it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FigureName {
    IngestSqlite,
    IngestPostgres,
    SingleEvent,
    Message,
    FanOut,
    Memory,
    Trajectory,
    Sandbox,
    FirstCommand,
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
    Setup,
    Checkouts,
    Worktrees,
    Page,
}

impl FigureName {
    /// All figures in run order. `Memory` precedes `Trajectory`, which reads pages from the same server.
    pub const ALL: [Self; 23] = [
        Self::IngestSqlite,
        Self::IngestPostgres,
        Self::SingleEvent,
        Self::Message,
        Self::FanOut,
        Self::Memory,
        Self::Trajectory,
        Self::Sandbox,
        Self::FirstCommand,
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
        Self::Setup,
        Self::Checkouts,
        Self::Worktrees,
        Self::Page,
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
            Self::FirstCommand => "first-command",
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
            Self::Setup => "setup",
            Self::Checkouts => "checkouts",
            Self::Worktrees => "worktrees",
            Self::Page => "page",
        }
    }

    /// Measures one figure. A failure becomes a row of the table, and the run continues.
    pub async fn measure_figure(self, bench: &mut Bench) -> Vec<Figure> {
        let measured: Result<Vec<Figure>> = match self {
            Self::IngestSqlite => Box::pin(ingest_sqlite::measure_sqlite_ingest(bench)).await,
            Self::IngestPostgres => Box::pin(ingest_postgres::measure_postgres_ingest(bench)).await,
            Self::SingleEvent => Box::pin(single_event::measure_single_event(bench)).await,
            Self::Message => Box::pin(message::measure_delivery(bench)).await,
            Self::FanOut => Box::pin(fan_out::measure_fan_out(bench)).await,
            Self::Memory => Box::pin(memory::measure_server_memory(bench)).await,
            Self::Trajectory => Box::pin(trajectory::measure_trajectory(bench)).await,
            Self::Sandbox => Box::pin(sandbox::measure_sandbox(bench)).await,
            Self::FirstCommand => Box::pin(first_command::measure_first_command(bench)).await,
            Self::Fork => fork::measure_fork(bench),
            Self::SandboxesAtOnce => Box::pin(sandboxes_at_once::measure_concurrent_creation(bench)).await,
            Self::Neighbour => Box::pin(neighbour::measure_neighbour(bench)).await,
            Self::SandboxMemory => Box::pin(sandbox_memory::measure_sandbox_memory(bench)).await,
            Self::Docker => Box::pin(docker::measure_docker(bench)).await,
            Self::AgentEvent => Box::pin(agent_event::measure_agent_event(bench)).await,
            Self::ToolCalls => Box::pin(tool_calls::measure_tool_calls(bench)).await,
            Self::Claude => Box::pin(claude::measure_claude(bench)).await,
            Self::Files => Box::pin(file_copy::measure_file_copy(bench)).await,
            Self::Gateway => Box::pin(gateway::measure_gateway(bench)).await,
            Self::Setup => Box::pin(setup::measure_setup(bench)).await,
            Self::Checkouts => Box::pin(checkouts::measure_checkouts(bench)).await,
            Self::Worktrees => Box::pin(worktrees::measure_worktrees(bench)).await,
            Self::Page => web_page::measure_page(bench),
        };
        measured.unwrap_or_else(|error| vec![Figure::from_error(self.as_str(), &error)])
    }
}

impl fmt::Display for FigureName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
