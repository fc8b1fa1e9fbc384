//! `atoll sandbox`: make, list, look at, work in, stop, remove.

mod diff;
mod end;
mod exec;
mod list;
pub mod new;
mod shell;
mod show;

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
    Ls(list::List),
    /// Show one sandbox
    Show(show::Show),
    /// Run a command in a sandbox
    Exec(exec::Exec),
    /// Open a terminal in a sandbox
    Shell(shell::Shell),
    /// Show what the agent has changed in the workspace
    Diff(diff::Diff),
    /// End a sandbox, with its results taken out first
    Stop(end::Stop),
    /// Remove a sandbox at its provider; its log stays
    Rm(end::Remove),
    /// Take the results out now
    Results(end::Results),
    /// Make a new token for the sandbox's worker; it ends the old one
    WorkerToken(new::WorkerToken),
}

pub async fn run(sandbox: &Sandbox, output: &Output) -> Result {
    let client = Client::find(&sandbox.connect)?;
    match &sandbox.command {
        Command::New(new) => new::run(new, &client, output).await,
        Command::Ls(list) => list::run(list, &client, output).await,
        Command::Show(show) => show::run(show, &client, output).await,
        Command::Exec(exec) => exec::run(exec, &client, output).await,
        Command::Shell(shell) => shell::run(shell, &client, output).await,
        Command::Diff(diff) => diff::run(diff, &client, output).await,
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
