//! `atoll completions`: prints shell completions. They ask this program, so that they offer the server's live sandboxes.

use crate::cli::Cli;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::references::{SandboxRef, SessionRef, TargetRef, short_reference};
use crate::render::text;
use crate::runtime::build_runtime;
use atoll_api::{Sandbox, SandboxListQuery, SessionListQuery};
use atoll_core::reference::{LAST, short_id};
use clap::Command;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use std::any::TypeId;
use std::time::Duration;
use tokio::runtime::Builder;

/// Set by the scripts when they ask this program for candidates.
const COMPLETE_VARIABLE: &str = "_ATOLL_COMPLETE";
/// A person waits for the candidates.
const SERVER_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_CANDIDATES: i64 = 50;
const MAX_TITLE_CHARS: usize = 60;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll completions bash > ~/.local/share/bash-completion/completions/atoll
  atoll completions zsh > ~/.zfunc/_atoll
  atoll completions fish > ~/.config/fish/completions/atoll.fish

For sandboxes and sessions, the completions offer the live ones of the server in the data directory, or of
ATOLL_SERVER.")]
pub struct Completions {
    shell: clap_complete::Shell,
}

pub fn run(completions: &Completions, output: &Output) -> Result {
    let shells = Shells::builtins();
    let name = completions.shell.to_string();
    let shell = shells.completer(&name).ok_or_else(|| Failure::input(format!("no completions for {name}")))?;
    let mut script = Vec::new();
    shell.write_registration(COMPLETE_VARIABLE, "atoll", "atoll", "atoll", &mut script)?;
    output.print_line(String::from_utf8_lossy(&script).trim_end())
}

/// Answers a shell that asks for candidates, and exits; returns otherwise.
pub fn answer_shell() {
    CompleteEnv::with_factory(|| add_candidates(Cli::build_command())).var(COMPLETE_VARIABLE).complete();
}

/// Adds the candidates to every argument that takes a reference.
fn add_candidates(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let parsed = argument.get_value_parser().type_id();
        if parsed == TypeId::of::<SandboxRef>() || parsed == TypeId::of::<TargetRef>() {
            return argument.add(ArgValueCandidates::new(sandbox_candidates));
        }
        if parsed == TypeId::of::<SessionRef>() {
            return argument.add(ArgValueCandidates::new(session_candidates));
        }
        argument
    });
    command.mut_subcommands(add_candidates)
}

fn sandbox_candidates() -> Vec<CompletionCandidate> {
    let listed = ask_server(async |client| {
        let query = SandboxListQuery { live: true, limit: Some(MAX_CANDIDATES), ..SandboxListQuery::default() };
        client.list_sandboxes(&query).await.map(|page| page.items)
    });
    let mut candidates: Vec<_> = listed.iter().flat_map(candidates_of).collect();
    candidates.push(CompletionCandidate::new(LAST).help(Some("the newest sandbox".into())));
    candidates
}

/// The name or the short id, and the whole id for a user who began to type it.
fn candidates_of(sandbox: &Sandbox) -> [CompletionCandidate; 2] {
    let help = text::escape_clipped(&format!("{} ({})", sandbox.title, sandbox.activity), MAX_TITLE_CHARS);
    let candidate = |value: String| CompletionCandidate::new(value).help(Some(help.clone().into()));
    [candidate(short_reference(sandbox)), candidate(sandbox.id.to_string()).hide(true)]
}

fn session_candidates() -> Vec<CompletionCandidate> {
    let listed = ask_server(async |client| {
        let query = SessionListQuery { limit: Some(MAX_CANDIDATES), ..SessionListQuery::default() };
        client.list_sessions(&query).await.map(|page| page.items)
    });
    let candidate = |session: &atoll_api::Session| {
        let id = session.id.to_string();
        let help = text::escape_clipped(&session.title, MAX_TITLE_CHARS);
        let full = CompletionCandidate::new(&id).help(Some(help.clone().into())).hide(true);
        [CompletionCandidate::new(short_id(&id)).help(Some(help.into())), full]
    };
    listed.iter().flat_map(candidate).collect()
}

/// Sends one request; without a server there are no candidates.
fn ask_server<T>(send: impl AsyncFnOnce(&ConnectedClient) -> atoll_client::Result<Vec<T>>) -> Vec<T> {
    let connect = Connect { server: std::env::var(atoll_config::env::SERVER).ok(), ..Connect::default() };
    let Ok(runtime) = build_runtime(Builder::new_current_thread()) else { return Vec::new() };
    let listed = runtime.block_on(async {
        let client = ConnectedClient::find(&connect).ok()?;
        tokio::time::timeout(SERVER_TIMEOUT, send(&client)).await.ok()?.ok()
    });
    listed.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_candidates() {
        let root = add_candidates(Cli::build_command());
        let sandbox = root.find_subcommand("sandbox").unwrap().find_subcommand("show").unwrap();
        for command in [sandbox, root.find_subcommand("logs").unwrap()] {
            let argument = command.get_positionals().next().unwrap();
            assert!(argument.get::<ArgValueCandidates>().is_some(), "{}", command.get_name());
        }
    }
}
