//! The command tree: every command and the module that runs it.

use crate::failure::{Failure, Result};
use crate::help::arrange_help;
use crate::output::Output;
use crate::runtime::build_runtime;
use crate::{
    agents, approvals, backup, cache, code, compare, completions, config, doctor, event_log, forge, gc, guardian,
    image, inbox, model_script, monitor, open, openapi, project, providers, pull_request, run as run_task, sandbox,
    sandbox_overview, secret, serve, session, setup, sign_in, snapshot, task, ticket, token, user, verify,
};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tokio::runtime::Builder;

/// Run coding agents in sandboxes you own.
#[derive(Debug, Parser)]
#[command(
    name = "atoll",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  atoll run \"fix the flaky test\"                       run one task in this repository and watch it
  atoll code \"make the parser faster\"                   let an agent work on this worktree
  atoll agents install claude                          install an agent
  atoll serve                                          start a server
  atoll open                                           open its web page
  atoll sandbox new \"fix the flaky test\"               create a sandbox on that server
  atoll ls                                             list running sandboxes
  atoll logs last --follow                             follow the log of the newest one
  atoll send last \"and now the tests\" --wait           send its agent a message

A command that takes a sandbox takes its id, the beginning or the end of its id, its name (--name), its
branch, or `last`: your newest sandbox.

Exit codes: 0 success; 1 the work failed; 2 set-up failed (no server, refused, bad input); 130 interrupted."
)]
pub struct Cli {
    /// Print JSON, one object per line
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the arguments of this process; the error contains help and version texts too.
    pub fn parse_arguments() -> Result<Self, clap::Error> {
        let mut command = Self::build_command();
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }

    /// The command tree with arranged help texts.
    pub fn build_command() -> clap::Command {
        arrange_help(Self::command())
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run one task and export its results as a branch
    Run(Box<run_task::Run>),
    /// Delegate this worktree to an agent and bring its changes back
    Code(Box<code::Code>),
    /// Attach to a running sandbox: watch it and send messages
    Attach(run_task::attach::Attach),
    /// Start the server
    Serve(serve::Serve),
    /// Open the web page in a browser, signed in
    Open(open::Open),
    /// List running sandboxes
    Ls(sandbox_overview::List),
    /// Manage sandboxes
    Sandbox(sandbox::SandboxArgs),
    /// Manage sessions
    Session(session::SessionArgs),
    /// Queue tasks and manage them
    Task(task::TaskArgs),
    /// Manage tickets
    Ticket(ticket::TicketArgs),
    /// Show what the guardian found and did
    Guardian(guardian::GuardianArgs),
    /// Manage pull requests
    Pr(pull_request::PullRequestArgs),
    /// Print a sandbox's events, one per line
    Events(event_log::events::Events),
    /// Print a sandbox's log in readable form
    Logs(event_log::logs::Logs),
    /// Send a message to an agent
    Send(inbox::send::Send),
    /// List the messages of a session
    Messages(inbox::messages::Messages),
    /// Edit, cancel or move a queued message
    Message(inbox::message::MessageArgs),
    /// List pending approvals
    Approvals(approvals::Approvals),
    /// Approve a tool call, or answer a question
    Approve(approvals::Approve),
    /// Deny a tool call
    Deny(approvals::Deny),
    /// Play the log of a sandbox at the pace of the run
    Replay(run_task::replay::Replay),
    /// List, install and remove agents
    Agents(agents::Agents),
    /// Show what each agent does, and what needs attention
    Monitor(monitor::Monitor),
    /// List providers with their capabilities and limits
    Providers(providers::Providers),
    /// Compare two sandboxes
    Compare(compare::Compare),
    /// Manage snapshots
    Snapshot(snapshot::SnapshotArgs),
    /// Manage set-up layers
    Cache(cache::CacheArgs),
    /// Manage images
    Image(image::Image),
    /// Manage projects and their members
    Project(project::Project),
    /// Manage users
    User(user::User),
    /// Manage API tokens
    Token(token::TokenArgs),
    /// List and end sign-ins to the web page
    SignIn(sign_in::SignInArgs),
    /// Manage secrets
    Secret(secret::SecretArgs),
    /// Log in to GitHub, so that your work uses your account
    Forge(forge::ForgeArgs),
    /// Remove expired data now
    Gc(gc::Gc),
    /// Back up the database and the blobs
    Backup(backup::Backup),
    /// Show every setting, its value and its source
    Config(config::Config),
    /// Show how a project would be prepared in its sandbox
    Setup(setup::Setup),
    /// Check the requirements of a server and its sandboxes
    Doctor(doctor::Doctor),
    /// Run a small task and verify Atoll's guarantees
    Verify(verify::Verify),
    /// Serve a scripted model, to test agents without a real one
    ModelScript(model_script::ModelScript),
    /// Print shell completions
    Completions(completions::Completions),
    /// Print the API's OpenAPI document
    Openapi(openapi::OpenApi),
}

pub fn run(cli: &Cli, output: &Output) -> Result {
    match &cli.command {
        Command::Run(run) => run_task::run(run, output),
        Command::Code(code) => code::run(code, output),
        Command::Serve(serve) => serve::run(serve, output),
        Command::Attach(attach) => run_task::attach::run(attach, output),
        Command::Verify(verify) => verify::run(verify, output),
        Command::Secret(secret) => secret::run(secret, output),
        Command::Backup(backup) => backup::run(backup, output),
        Command::Config(config) => config::run(config, output),
        Command::Setup(setup) => setup::run(setup, output),
        Command::Completions(completions) => completions::run(completions, output),
        Command::Openapi(_) => openapi::run(output),
        talking => {
            let runtime = build_runtime(Builder::new_current_thread())?;
            let done = runtime.block_on(async {
                let talked = Box::pin(run_async(talking, output));
                if handles_signals(talking) {
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

/// The command handles SIGINT itself, to clean up first.
const fn handles_signals(command: &Command) -> bool {
    matches!(command, Command::Sandbox(sandbox) if sandbox.handles_signals())
}

/// Runs the commands that need an async runtime.
async fn run_async(command: &Command, output: &Output) -> Result {
    match command {
        Command::Open(open) => open::run(open, output).await,
        Command::SignIn(sign_in) => sign_in::run(sign_in, output).await,
        Command::Ls(list) => sandbox_overview::run(list, output).await,
        Command::Sandbox(sandbox) => sandbox::run(sandbox, output).await,
        Command::Session(session) => session::run(session, output).await,
        Command::Task(task) => task::run(task, output).await,
        Command::Ticket(ticket) => ticket::run(ticket, output).await,
        Command::Guardian(guardian) => guardian::run(guardian, output).await,
        Command::Pr(pull_request) => pull_request::run(pull_request, output).await,
        Command::Events(events) => event_log::events::run(events, output).await,
        Command::Logs(logs) => event_log::logs::run(logs, output).await,
        Command::Send(send) => inbox::send::run(send, output).await,
        Command::Messages(messages) => inbox::messages::run(messages, output).await,
        Command::Message(message) => inbox::message::run(message, output).await,
        Command::Approvals(approvals) => approvals::list(approvals, output).await,
        Command::Approve(approve) => approvals::approve(approve, output).await,
        Command::Deny(deny) => approvals::deny(deny, output).await,
        Command::Replay(replay) => run_task::replay::run(replay, output).await,
        Command::Agents(agents) => agents::run(agents, output).await,
        Command::Monitor(monitor) => monitor::run(monitor, output).await,
        Command::Providers(providers) => providers::run(providers, output).await,
        Command::Compare(compare) => compare::run(compare, output).await,
        Command::Snapshot(snapshot) => snapshot::run(snapshot, output).await,
        Command::Cache(cache) => cache::run(cache, output).await,
        Command::Image(image) => image::run(image, output).await,
        Command::Project(project) => project::run(project, output).await,
        Command::User(user) => user::run(user, output).await,
        Command::Token(token) => token::run(token, output).await,
        Command::Forge(forge) => forge::run(forge, output).await,
        Command::Gc(gc) => gc::run(gc, output).await,
        Command::Doctor(doctor) => doctor::run(doctor, output).await,
        Command::ModelScript(model_script) => model_script::run(model_script, output).await,
        // `run` has handled these without a runtime.
        Command::Run(_)
        | Command::Code(_)
        | Command::Attach(_)
        | Command::Serve(_)
        | Command::Verify(_)
        | Command::Secret(_)
        | Command::Backup(_)
        | Command::Config(_)
        | Command::Setup(_)
        | Command::Completions(_)
        | Command::Openapi(_) => Ok(()),
    }
}

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;
