//! An agent's own transcript, on its way out of a sandbox and into the next one.
//!
//! What reads and writes it runs as the agent does, started by the hands: it can reach nothing that the agent could
//! not. `place` knows where each agent keeps what, `file` reads and writes without following a link; `keeper` is the
//! worker's side, which carries the bytes between that process and the server.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

mod file;
pub mod keeper;
mod place;

pub use keeper::{Conversation, Failure, Keeper, Saved};

/// The agents whose conversations can be taken along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    Claude,
    Codex,
    OpenCode,
}

impl Agent {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::OpenCode => "opencode",
        }
    }

    fn find(name: &str) -> Option<Self> {
        [Self::Claude, Self::Codex, Self::OpenCode].into_iter().find(|agent| agent.name() == name)
    }
}

/// `out` prints the transcript, `in` puts what it reads into its place. Then the agent, the conversation's name, and
/// the agent's program where it is needed.
pub fn main(arguments: &[String]) -> ExitCode {
    match work(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr().lock(), "{error}"));
            ExitCode::FAILURE
        }
    }
}

fn work(arguments: &[String]) -> Result<(), String> {
    let [direction, agent, id, rest @ ..] = arguments else { return Err("there is nothing to do".to_owned()) };
    let agent = Agent::find(agent).ok_or_else(|| format!("{agent} has no transcript that is known"))?;
    if !atoll_core::agent::is_native_id(id) {
        return Err("that is not the name of a conversation".to_owned());
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).ok_or("there is no home directory")?;
    match (direction.as_str(), agent) {
        ("out", Agent::Claude | Agent::Codex) => out(agent, &home, id),
        ("out", Agent::OpenCode) => crate::opencode::print_transcript(&home, id).or_else(|_| export(rest, id)),
        ("in", Agent::Claude | Agent::Codex) => put(agent, &home, id),
        ("in", Agent::OpenCode) => import(rest, &home, id),
        _ => Err(format!("`{direction}` is neither out nor in")),
    }
}

fn out(agent: Agent, home: &Path, id: &str) -> Result<(), String> {
    let found = place::search(agent, id).find(home).map_err(|error| format!("failed to look for it: {error}"))?;
    let found = found.ok_or_else(|| format!("{} has written no transcript of this conversation", agent.name()))?;
    file::print_lines(&found, &mut io::stdout().lock()).map_err(|error| format!("failed to read it: {error}"))
}

fn put(agent: Agent, home: &Path, id: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("failed to write it: {error}");
    let workspace = std::env::current_dir().map_err(failed)?;
    let beside = home.join(".atoll-transcript");
    file::take(&mut io::stdin().lock(), &beside).map_err(failed)?;
    let first = file::first_line(&beside).map_err(failed)?;
    let place = home.join(place::of(agent, id, &workspace, &first));
    file::move_to(&beside, &place).map_err(failed)
}

fn program(rest: &[String]) -> &str {
    rest.first().map_or("opencode", String::as_str)
}

/// With its own program, when there is no server of it to ask.
fn export(rest: &[String], id: &str) -> Result<(), String> {
    let program = program(rest);
    let status = Command::new(program).args(["export", id]).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{program} export` ended with {status}")),
        Err(error) => Err(format!("failed to run {program}: {error}")),
    }
}

fn import(rest: &[String], home: &Path, id: &str) -> Result<(), String> {
    let program = program(rest);
    let file = home.join(format!(".atoll-{id}.json"));
    file::take(&mut io::stdin().lock(), &file).map_err(|error| format!("failed to write it: {error}"))?;
    let mut command = Command::new(program);
    // What it says there is for people.
    let status = command.arg("import").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).status();
    drop(std::fs::remove_file(&file));
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{program} import` ended with {status}")),
        Err(error) => Err(format!("failed to run {program}: {error}")),
    }
}
