//! Moves an agent's own transcript out of a sandbox and into the next one.
//!
//! `atoll-worker transcript` reads and writes the files. The spawner runs it with the agent's rights, so that it can
//! reach only the agent's files. `atoll_drivers::transcript` knows where each agent stores a transcript,
//! `transcript_file` opens files without following links, `session_dir` packs a whole directory, and `transcript_store`
//! transfers the bytes between that process and the server.

use atoll_drivers::create_driver;
use atoll_drivers::transcript::{TranscriptFiles, TranscriptStorage};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

mod session_dir;
mod transcript_file;
pub mod transcript_store;

pub use transcript_store::{Conversation, SavedTranscript, TranscriptFailure, TranscriptStore};

/// Precedes the directory with all sessions of an agent, in place of the agent and the conversation's id.
const DIRECTORY_FLAG: &str = "--directory";

/// `out` prints a transcript, `in` reads one and puts it in its place. Arguments: the direction, the agent, the
/// conversation's id, and the agent's program if it is needed; or the direction, `--directory` and its path.
pub fn main(arguments: &[String]) -> ExitCode {
    match run_transfer(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr().lock(), "{error}"));
            ExitCode::FAILURE
        }
    }
}

fn run_transfer(arguments: &[String]) -> Result<(), String> {
    let home = std::env::var_os("HOME").map(PathBuf::from).ok_or("HOME is not set")?;
    if let [direction, flag, directory] = arguments
        && flag == DIRECTORY_FLAG
    {
        return match direction.as_str() {
            "out" => session_dir::print_directory(&home, directory, io::stdout().lock()),
            "in" => session_dir::replace_directory(&home, directory, io::stdin().lock()),
            _ => Err(unknown_direction(direction)),
        };
    }
    let [direction, agent, id, rest @ ..] = arguments else {
        return Err("usage: atoll-worker transcript out|in AGENT ID [PROGRAM]".to_owned());
    };
    let support = create_driver(agent).and_then(|driver| driver.transcript_support());
    let support = support.ok_or_else(|| format!("transcripts of agent {agent} are not supported"))?;
    if !atoll_core::agent::is_valid_native_id(id) {
        return Err("invalid conversation id".to_owned());
    }
    match (direction.as_str(), support.storage) {
        ("out", TranscriptStorage::Files(files)) => print_transcript(&files, &home, id),
        ("out", TranscriptStorage::OpenCode) => {
            crate::opencode::print_transcript(&home, id).or_else(|_| export_from_opencode(rest, id))
        }
        ("in", TranscriptStorage::Files(files)) => place_transcript(&files, &home, id),
        ("in", TranscriptStorage::OpenCode) => import_into_opencode(rest, &home, id),
        _ => Err(unknown_direction(direction)),
    }
}

fn unknown_direction(direction: &str) -> String {
    format!("`{direction}` is not a direction: expected out or in")
}

fn print_transcript(files: &TranscriptFiles, home: &Path, id: &str) -> Result<(), String> {
    let found = transcript_file::find_transcript(files, home, id);
    let found = found.map_err(|error| format!("failed to search for the transcript: {error}"))?;
    let found = found.ok_or("the agent has no transcript of this conversation")?;
    transcript_file::print_lines(&found, &mut io::stdout().lock())
        .map_err(|error| format!("failed to read the transcript: {error}"))
}

fn place_transcript(files: &TranscriptFiles, home: &Path, id: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("failed to write the transcript: {error}");
    let workspace = std::env::current_dir().map_err(failed)?;
    let received = home.join(".atoll-transcript");
    transcript_file::receive_file(&mut io::stdin().lock(), &received).map_err(failed)?;
    let first_line = transcript_file::read_first_line(&received).map_err(failed)?;
    let path = home.join((files.restore_path)(id, &workspace, &first_line));
    transcript_file::move_into_place(&received, &path).map_err(failed)
}

fn opencode_program(rest: &[String]) -> &str {
    rest.first().map_or("opencode", String::as_str)
}

/// Exports with OpenCode's program, if no server runs.
fn export_from_opencode(rest: &[String], id: &str) -> Result<(), String> {
    let program = opencode_program(rest);
    let status = Command::new(program).args(["export", id]).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{program} export` ended with {status}")),
        Err(error) => Err(format!("failed to run {program}: {error}")),
    }
}

fn import_into_opencode(rest: &[String], home: &Path, id: &str) -> Result<(), String> {
    let program = opencode_program(rest);
    let file = home.join(format!(".atoll-{id}.json"));
    transcript_file::receive_file(&mut io::stdin().lock(), &file)
        .map_err(|error| format!("failed to write the transcript: {error}"))?;
    let mut command = Command::new(program);
    let status = command.arg("import").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).status();
    drop(std::fs::remove_file(&file));
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{program} import` ended with {status}")),
        Err(error) => Err(format!("failed to run {program}: {error}")),
    }
}
