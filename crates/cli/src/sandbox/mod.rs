//! `atoll sandbox`: make, list, look at, work in, stop, remove.

mod commands;
mod cp;
mod diff;
mod end;
mod exec;
mod files;
mod hold;
pub mod limits;
mod list;
pub mod network;
pub mod new;
mod shell;
mod show;
mod transcript;

use crate::client::{Client, Connect};
use crate::failure::Result;
use crate::output::Output;
use atoll_core::id::SandboxId;
use serde_json::Value;

#[derive(Debug, clap::Args)]
pub struct Sandbox {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make a sandbox, and with a prompt give its agent something to do
    New(Box<new::New>),
    /// List sandboxes, newest first
    #[command(alias = "list")]
    Ls(list::List),
    /// Show one sandbox
    Show(show::Show),
    /// Run a command in a sandbox
    Exec(exec::Exec),
    /// List the files of a sandbox
    Files(files::Files),
    /// Copy files and directories in or out
    Cp(cp::Copy),
    /// Open a terminal in a sandbox
    Shell(shell::Shell),
    /// Show what the agent has changed in the workspace
    Diff(diff::Diff),
    /// Print what was said and done in a sandbox, to keep or to read elsewhere
    Transcript(transcript::Transcript),
    /// Let everything in a sandbox stand still
    Pause(hold::Pause),
    /// Let a paused sandbox go on
    Resume(hold::Resume),
    /// Make another sandbox that begins with the files of this one
    Fork(hold::Fork),
    /// Keep a sandbox's files by name, to begin others with
    Snapshot(hold::Snapshot),
    /// Show what a sandbox uses now
    Usage(hold::Usage),
    /// Show or change what a sandbox may reach
    Network(network::Network),
    /// Show or change how much a sandbox's agent may use; one that waits goes on
    Limits(limits::Limits),
    /// End a sandbox, with its results taken out first
    Stop(end::Stop),
    /// Remove a sandbox at its provider; its log stays
    Rm(end::Remove),
    /// Take the results out now
    Results(end::Results),
    /// Make a new token for the sandbox's worker; it ends the old one
    WorkerToken(new::WorkerToken),
}

impl Sandbox {
    /// A command inside is ended before this program is.
    pub const fn hears_signals(&self) -> bool {
        matches!(self.command, Command::Exec(_))
    }
}

pub async fn run(sandbox: &Sandbox, output: &Output) -> Result {
    let client = Client::find(&sandbox.connect)?;
    match &sandbox.command {
        Command::New(new) => new::run(new, &client, output).await,
        Command::Ls(list) => list::run(list, &client, output).await,
        Command::Show(show) => show::run(show, &client, output).await,
        Command::Exec(exec) => exec::run(exec, &client, output).await,
        Command::Files(files) => files::run(files, &client, output).await,
        Command::Cp(copy) => cp::run(copy, &client, output).await,
        Command::Shell(shell) => shell::run(shell, &client, output).await,
        Command::Diff(diff) => diff::run(diff, &client, output).await,
        Command::Transcript(transcript) => transcript::run(transcript, &client, output).await,
        Command::Pause(pause) => hold::pause(pause, &client, output).await,
        Command::Resume(resume) => hold::resume(resume, &client, output).await,
        Command::Fork(fork) => hold::fork(fork, &client, output).await,
        Command::Snapshot(snapshot) => hold::snapshot(snapshot, &client, output).await,
        Command::Usage(usage) => hold::usage(usage, &client, output).await,
        Command::Network(network) => network::run(network, &client, output).await,
        Command::Limits(limits) => limits::run(limits, &client, output).await,
        Command::Stop(stop) => end::stop(stop, &client, output).await,
        Command::Rm(remove) => end::remove(remove, &client, output).await,
        Command::Results(results) => end::results(results, &client, output).await,
        Command::WorkerToken(token) => new::worker_token(token, &client, output).await,
    }
}

/// The id in an answer about a sandbox.
pub fn id_of(row: &Value, client: &Client) -> Result<SandboxId> {
    let id = row["id"].as_str().and_then(|id| id.parse().ok());
    id.ok_or_else(|| client.not_atoll("a sandbox without an id"))
}
