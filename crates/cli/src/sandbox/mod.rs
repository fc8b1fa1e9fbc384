//! `atoll sandbox`: manages sandboxes.

mod blob;
mod cp;
pub mod create;
mod diff;
mod download;
mod exec;
mod exec_list;
mod files;
mod fork;
pub mod limits;
mod ls;
pub mod network;
mod pause;
mod ports;
pub mod readiness;
mod remove;
mod results;
mod shell;
mod show;
pub mod stop;
mod take_snapshot;
mod transcript;
mod usage;
mod worker_token;

use crate::connect::{Connect, ConnectedClient};
use crate::failure::Result;
use crate::output::Output;
use crate::stored_state::ReadingClient;

#[derive(Debug, clap::Args)]
pub struct SandboxArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create a sandbox
    New(Box<create::New>),
    /// List sandboxes, newest first
    #[command(alias = "list")]
    Ls(ls::List),
    /// Show a sandbox
    Show(show::Show),
    /// Run a command in a sandbox
    Exec(exec::Exec),
    /// List files of a sandbox
    Files(files::Files),
    /// Copy files to or from a sandbox
    Cp(cp::CopyCommand),
    /// Open a terminal in a sandbox
    Shell(shell::Shell),
    /// Show the agent's changes to the workspace
    Diff(diff::DiffArgs),
    /// Print a sandbox's transcript
    Transcript(transcript::Transcript),
    /// Print a text that is too long for an event
    Blob(blob::Blob),
    /// Pause a sandbox
    Pause(pause::Pause),
    /// Resume a paused sandbox
    Resume(pause::Resume),
    /// Fork a sandbox
    Fork(fork::Fork),
    /// Create a snapshot of a sandbox
    Snapshot(take_snapshot::TakeSnapshotArgs),
    /// Show a sandbox's resource usage
    Usage(usage::Usage),
    /// List the ports on which programs in a sandbox listen
    Ports(ports::Ports),
    /// Create, list or revoke links to a sandbox's ports
    Preview(ports::PreviewArgs),
    /// Show or change a sandbox's network policy
    Network(network::Network),
    /// Show or change the limits of a sandbox's agent
    Limits(limits::Limits),
    /// Export a sandbox's results and stop it
    Stop(stop::Stop),
    /// Remove a sandbox, also from lists; its log stays
    Rm(remove::Remove),
    /// Export a sandbox's results now
    Results(results::Results),
    /// Replace the token of a sandbox's worker
    WorkerToken(worker_token::WorkerToken),
}

impl SandboxArgs {
    /// The stored state suffices for the command.
    const fn only_reads(&self) -> bool {
        matches!(self.command, Command::Ls(_) | Command::Show(_) | Command::Diff(_) | Command::Transcript(_))
    }

    /// `exec` kills the command in the sandbox before this program ends.
    pub const fn handles_signals(&self) -> bool {
        matches!(self.command, Command::Exec(_))
    }
}

pub async fn run(sandbox: &SandboxArgs, output: &Output) -> Result {
    let client = if sandbox.only_reads() {
        ReadingClient::find(&sandbox.connect, output).await?
    } else {
        ConnectedClient::find(&sandbox.connect)?.into()
    };
    match &sandbox.command {
        Command::New(new) => create::run(new, &client, output).await,
        Command::Ls(list) => ls::run(list, &client, output).await,
        Command::Show(show) => show::run(show, &client, output).await,
        Command::Exec(exec) => exec::run(exec, &client, output).await,
        Command::Files(files) => files::run(files, &client, output).await,
        Command::Cp(copy) => cp::run(copy, &client, output).await,
        Command::Shell(shell) => shell::run(shell, &client, output).await,
        Command::Diff(diff) => diff::run(diff, &client, output).await,
        Command::Transcript(transcript) => transcript::run(transcript, &client, output).await,
        Command::Blob(blob) => blob::run(blob, &client, output).await,
        Command::Pause(pause) => pause::pause_sandbox(pause, &client, output).await,
        Command::Resume(resume) => pause::resume_sandbox(resume, &client, output).await,
        Command::Fork(fork) => fork::run(fork, &client, output).await,
        Command::Snapshot(snapshot) => take_snapshot::run(snapshot, &client, output).await,
        Command::Usage(usage) => usage::run(usage, &client, output).await,
        Command::Ports(ports) => ports::list_ports(ports, &client, output).await,
        Command::Preview(preview) => ports::run_preview(preview, &client, output).await,
        Command::Network(network) => network::run(network, &client, output).await,
        Command::Limits(limits) => limits::run(limits, &client, output).await,
        Command::Stop(stop) => stop::run(stop, &client, output).await,
        Command::Rm(remove) => remove::run(remove, &client, output).await,
        Command::Results(results) => results::run(results, &client, output).await,
        Command::WorkerToken(token) => worker_token::run(token, &client, output).await,
    }
}
