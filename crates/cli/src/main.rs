//! `atoll`: the command line.

use atoll::cli::{self, Cli};
use atoll::completions;
use atoll::failure::{Failure, SETUP_FAILED};
use atoll::launcher;
use atoll::output::{Output, print_note};
use std::process::ExitCode;

fn main() -> ExitCode {
    // The launcher must start before this process has threads or open files.
    match std::env::args_os().nth(1).as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(launcher::LAUNCHER_ARGUMENT) => return atoll_jail::launcher_main(),
        Some(launcher::SPAWNER_ARGUMENT) => return atoll_jail::launcher_spawner_main(),
        Some(_) | None => {}
    }
    completions::answer_shell();
    let cli = match Cli::parse_arguments() {
        Ok(cli) => cli,
        Err(error) => return print_usage_error(&error),
    };
    let output = Output::new(cli.json);
    let done = cli::run(&cli, &output).and(output.flush());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            drop(output.flush());
            if let Some(text) = failure.to_text(cli.json) {
                print_note(&text);
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Prints clap's message: help and version succeed, everything else is a usage error.
fn print_usage_error(error: &clap::Error) -> ExitCode {
    let as_json = std::env::args_os().any(|argument| argument == "--json");
    if error.use_stderr() && as_json {
        let text = error.to_string();
        let detail = text.trim().strip_prefix("error: ").unwrap_or(text.trim());
        if let Some(line) = Failure::setup("usage", detail).to_text(true) {
            print_note(&line);
        }
    } else {
        drop(error.print());
    }
    if error.use_stderr() { ExitCode::from(SETUP_FAILED) } else { ExitCode::SUCCESS }
}
