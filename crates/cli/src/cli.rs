//! The map: every command and the file that does it.

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::{
    agents, approvals, backup, compare, config, doctor, gc, image, inbox, model_script, openapi, project, reading,
    run as run_task, sandbox, secret, serve, session, snapshot, token, user, verify,
};
use clap::{Parser, Subcommand};

/// Run coding agents in sandboxes you own.
#[derive(Debug, Parser)]
#[command(
    name = "atoll",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  atoll run \"fix the flaky test\" --repo .              give an agent something to do, and watch
  atoll agents install claude                          get an agent
  atoll serve                                          start a server that stays
  atoll sandbox new \"fix the flaky test\"               give an agent something to do there
  atoll logs sbx_… --follow                            watch it
  atoll send sbx_… \"and now the tests\" --wait          talk to it

Exit codes: 0 done; 1 the work failed; 2 it could not be tried (no server, refused, bad input); 130 interrupted."
)]
pub struct Cli {
    /// Print JSON, one object a line
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Give an agent one task, watch it work, talk to it, get a branch
    Run(Box<run_task::Run>),
    /// Start the server
    Serve(serve::Serve),
    /// Make, list, look at, stop and remove sandboxes
    Sandbox(sandbox::Sandbox),
    /// Conversations with agents, which outlive their sandboxes
    Session(session::Session),
    /// Show a sandbox's events, a line each
    Events(reading::events::Events),
    /// Show what happened in a sandbox, to be read from top to bottom
    Logs(reading::logs::Logs),
    /// Say something to an agent
    Send(inbox::send::Send),
    /// List what was said to an agent, and what became of it
    Messages(inbox::list::Messages),
    /// Change, take back or move a queued message
    Message(inbox::queued::Message),
    /// List what agents wait for a person's word about
    Approvals(approvals::Approvals),
    /// Allow what an agent waits for, or answer its question
    Approve(approvals::Approve),
    /// Deny what an agent waits for
    Deny(approvals::Deny),
    /// Show which agents can work here and what each lacks, and get one
    Agents(agents::Agents),
    /// Compare two sandboxes
    Compare(compare::Compare),
    /// Files of sandboxes that are kept by name
    Snapshot(snapshot::Snapshot),
    /// Imported roots for sandboxes
    Image(image::Image),
    /// Projects and their members
    Project(project::Project),
    /// The people of a deployment
    User(user::User),
    /// What people and programs show to the server
    Token(token::Token),
    /// Values that stay in the server, and where they may go
    Secret(secret::Secret),
    /// Remove what retention says may go
    Gc(gc::Gc),
    /// Copy the database and the blobs while the server runs
    Backup(backup::Backup),
    /// Show every setting, its value and where it came from
    Config(config::Config),
    /// Look at everything that a server and its sandboxes need, and say what to mend
    Doctor(doctor::Doctor),
    /// Play one small task through, and say of every promise whether it held
    Verify(verify::Verify),
    /// Play a model from a script, to try agents without a real one
    ModelScript(model_script::ModelScript),
    /// Print completions for a shell
    Completions(openapi::Completions),
    /// Print the API's OpenAPI document
    Openapi(openapi::OpenApi),
}

pub fn run(cli: &Cli, output: &Output) -> Result {
    match &cli.command {
        Command::Run(run) => run_task::run(run, output),
        Command::Serve(serve) => serve::run(serve, output),
        Command::Verify(verify) => verify::run(verify, output),
        Command::Backup(backup) => backup::run(backup, output),
        Command::Config(config) => config::run(config, output),
        Command::Completions(completions) => openapi::completions(completions, output),
        Command::Openapi(_) => openapi::run(output),
        talking => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| Failure::setup("runtime", format!("can't start: {error}")))?;
            let done = runtime.block_on(async {
                let talked = Box::pin(talk(talking, output));
                if hears_signals(talking) {
                    return talked.await;
                }
                tokio::select! {
                    done = talked => done,
                    _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
                }
            });
            runtime.shutdown_background();
            done
        }
    }
}

/// Whether it has something to do before an interrupt ends it.
const fn hears_signals(command: &Command) -> bool {
    matches!(command, Command::Sandbox(sandbox) if sandbox.hears_signals())
}

/// The commands that ask a server, or are one for as long as they run.
async fn talk(command: &Command, output: &Output) -> Result {
    match command {
        Command::Sandbox(sandbox) => sandbox::run(sandbox, output).await,
        Command::Session(session) => session::run(session, output).await,
        Command::Events(events) => reading::events::run(events, output).await,
        Command::Logs(logs) => reading::logs::run(logs, output).await,
        Command::Send(send) => inbox::send::run(send, output).await,
        Command::Messages(messages) => inbox::list::run(messages, output).await,
        Command::Message(message) => inbox::queued::run(message, output).await,
        Command::Approvals(approvals) => approvals::list(approvals, output).await,
        Command::Approve(approve) => approvals::approve(approve, output).await,
        Command::Deny(deny) => approvals::deny(deny, output).await,
        Command::Agents(agents) => agents::run(agents, output).await,
        Command::Compare(compare) => compare::run(compare, output).await,
        Command::Snapshot(snapshot) => snapshot::run(snapshot, output).await,
        Command::Image(image) => image::run(image, output).await,
        Command::Project(project) => project::run(project, output).await,
        Command::User(user) => user::run(user, output).await,
        Command::Token(token) => token::run(token, output).await,
        Command::Gc(gc) => gc::run(gc, output).await,
        Command::Doctor(doctor) => doctor::run(doctor, output).await,
        Command::Secret(secret) => secret::run(secret, output).await,
        Command::ModelScript(model_script) => model_script::run(model_script, output).await,
        // Done before a runtime was made.
        Command::Run(_)
        | Command::Serve(_)
        | Command::Verify(_)
        | Command::Backup(_)
        | Command::Config(_)
        | Command::Completions(_)
        | Command::Openapi(_) => Ok(()),
    }
}

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;
