//! Git operations inside a sandbox: fill the workspace, export its commits, and diff it.
//!
//! Each job runs as the agent's user in a jail with the workspace and without network. Commits travel as bundles: the
//! server never reads the workspace itself.
//!
//! - `git-in` creates a repository from a bundle on stdin;
//! - `git-parts` adds submodules and large files to it;
//! - `git-out` commits the rest and writes a bundle of all new commits to stdout;
//! - `git-diff` lists or prints the differences from the start, and changes nothing;
//! - `git-sync-in` and `git-sync-out` copy a user's worktree in and its changes out;
//! - `git-exclude` keeps what set-up left out of the result;
//! - `cache-seal` and `cache-downloads` prepare the files of a set-up layer.
//!
//! A failed job prints one line of JSON on stderr, `{"error", "code"}`, and exits with 1.

mod checkout_parts;
mod checkout_switch;
mod command;
mod diff;
mod error;
mod exclude;
mod index;
mod input;
mod large_file_filters;
mod large_file_results;
mod layer_checkout;
mod out;
mod repository;
mod set_up_files;
mod sparse_checkout;
mod submodule_work;
#[cfg(test)]
mod tests;
mod worktree_sync;

pub use command::GitWorkspace;
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
    #[command(name = "git-parts")]
    Parts,
    #[command(name = "git-lfs-clean")]
    CleanLargeFile(large_file_filters::CleanRequest),
    #[command(name = "git-lfs-smudge")]
    SmudgeLargeFile,
    #[command(name = "git-out")]
    Out(out::Request),
    #[command(name = "git-diff")]
    Diff(diff::Request),
    #[command(name = "git-sync-in")]
    SyncIn,
    #[command(name = "git-sync-out")]
    SyncOut(worktree_sync::OutRequest),
    #[command(name = "git-exclude")]
    Exclude,
    #[command(name = "cache-seal")]
    SealCache,
    #[command(name = "cache-downloads")]
    KeepDownloads,
}

/// Runs the job that the arguments name, in the sandbox's workspace.
pub fn main(arguments: Vec<String>) -> ExitCode {
    let streams = || Ok((duplicate(io::stdin())?, duplicate(io::stdout())?));
    let done = streams()
        .map_err(|source| Error::Io { what: "starting the job", source })
        .and_then(|(input, output)| run_job(arguments, &GitWorkspace::default(), input, output));
    let (line, code) = match done {
        Ok(Value::Null) => return ExitCode::SUCCESS,
        Ok(report) => (report, ExitCode::SUCCESS),
        Err(error) => (json!({ "error": error.to_string(), "code": error.code() }), ExitCode::FAILURE),
    };
    drop(writeln!(io::stderr().lock(), "{line}"));
    code
}

/// Duplicates a standard stream without Rust's buffer: git reads the rest of it.
fn duplicate(stream: impl AsFd) -> io::Result<File> {
    stream.as_fd().try_clone_to_owned().map(File::from)
}

/// Runs a job and returns its report.
fn run_job(arguments: Vec<String>, workspace: &GitWorkspace, input: File, output: File) -> Result<Value, Error> {
    let line = Line::try_parse_from(arguments).map_err(|error| {
        let text = error.render().to_string();
        let first = text.lines().next().unwrap_or_default();
        Error::Arguments { detail: first.trim_start_matches("error: ").to_owned() }
    })?;
    match line.job {
        Job::In(request) => input::fill_workspace(&request, workspace, input),
        Job::Parts => checkout_parts::add_parts(workspace, input),
        Job::CleanLargeFile(request) => large_file_filters::clean_file(&request, input, output),
        Job::SmudgeLargeFile => large_file_filters::smudge_file(input, output),
        Job::Out(request) => out::export_work(&request, workspace, output),
        Job::Diff(request) => diff::diff_workspace(&request, workspace, output),
        Job::SyncIn => worktree_sync::receive_worktree(workspace, input),
        Job::SyncOut(request) => worktree_sync::send_worktree(&request, workspace, output),
        Job::Exclude => exclude::exclude_untracked(workspace),
        Job::SealCache => set_up_files::remove_transient_files(workspace),
        Job::KeepDownloads => set_up_files::keep_downloads(workspace),
    }
}
