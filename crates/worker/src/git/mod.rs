//! Git inside a sandbox: what fills the workspace, what takes the work out of it, what shows it.
//!
//! Each is a job of its own, run as the agent's user in a jail with the workspace and no network.
//! What goes through is a bundle: the server never reads the workspace itself.
//!
//! - `git-in` makes a repository of a bundle on standard input;
//! - `git-out` commits what is left and writes a bundle of all that is new to standard output;
//! - `git-diff` lists or shows what differs from the start, and changes nothing.
//!
//! A job that fails says so in one line of JSON on standard error, `{"error", "code"}`, and ends with 1.

mod command;
mod diff;
mod error;
mod index;
mod input;
mod out;
mod repository;
#[cfg(test)]
mod tests;

pub use command::Place;
pub use error::Error;

use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_help_subcommand = true)]
struct Line {
    #[command(subcommand)]
    job: Job,
}

#[derive(Debug, Subcommand)]
enum Job {
    #[command(name = "git-in")]
    In(input::Request),
    #[command(name = "git-out")]
    Out(out::Request),
    #[command(name = "git-diff")]
    Diff(diff::Request),
}

/// Does the job that the arguments name, in the sandbox's workspace.
pub fn main(arguments: Vec<String>) -> ExitCode {
    let streams = || Ok((descriptor(io::stdin())?, descriptor(io::stdout())?));
    let done = streams()
        .map_err(|source| Error::Io { what: "starting the job", source })
        .and_then(|(input, output)| perform(arguments, &Place::default(), input, output));
    let (line, code) = match done {
        Ok(Value::Null) => return ExitCode::SUCCESS,
        Ok(report) => (report, ExitCode::SUCCESS),
        Err(error) => (json!({ "error": error.to_string(), "code": error.code() }), ExitCode::FAILURE),
    };
    drop(writeln!(io::stderr().lock(), "{line}"));
    code
}

/// A stream without the buffer that the standard library has before it: git is handed the rest of it.
fn descriptor(stream: impl AsFd) -> io::Result<File> {
    stream.as_fd().try_clone_to_owned().map(File::from)
}

/// What a job has to say beside its output.
fn perform(arguments: Vec<String>, place: &Place, input: File, output: File) -> Result<Value, Error> {
    let line = Line::try_parse_from(arguments).map_err(|error| {
        let text = error.render().to_string();
        let first = text.lines().next().unwrap_or_default();
        Error::Arguments { detail: first.trim_start_matches("error: ").to_owned() }
    })?;
    match line.job {
        Job::In(request) => input::fill(&request, place, input),
        Job::Out(request) => out::take(&request, place, output),
        Job::Diff(request) => diff::show(&request, place, output),
    }
}
