//! `atoll`: the command line.

use atoll::cli::{self, Cli};
use atoll::failure::{Failure, SETUP_FAILED};
use atoll::launcher;
use atoll::output::{Output, note};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else exists in this process: the launcher wants to be alone.
    match std::env::args_os().nth(1).as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(launcher::ARGUMENT) => return atoll_jail::launcher_main(),
        Some(launcher::KEEPER) => return atoll_jail::keeper_main(),
        Some(_) | None => {}
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refused(&error),
    };
    let output = Output::new(cli.json);
    let done = cli::run(&cli, &output).and(output.flush());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            drop(output.flush());
            if let Some(text) = failure.shown(cli.json) {
                note(&text);
            }
            ExitCode::from(failure.exit())
        }
    }
}

/// Help and version are answers; everything else that clap has to say is a refusal.
fn refused(error: &clap::Error) -> ExitCode {
    let as_json = std::env::args_os().any(|argument| argument == "--json");
    if error.use_stderr() && as_json {
        let text = error.to_string();
        let detail = text.trim().strip_prefix("error: ").unwrap_or(text.trim());
        if let Some(line) = Failure::setup("usage", detail).shown(true) {
            note(&line);
        }
    } else {
        drop(error.print());
    }
    if error.use_stderr() { ExitCode::from(SETUP_FAILED) } else { ExitCode::SUCCESS }
}
