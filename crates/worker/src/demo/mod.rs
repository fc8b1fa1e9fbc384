//! The process of the demo agent (`atoll_drivers::demo::agent`): standard input and output, real files and commands.
//!
//! `process_host` is its environment, `files` lists the repository, `failures` fails on purpose.

use atoll_drivers::demo::agent::{DemoAgent, DemoOptions};
use atoll_drivers::demo::demo_wire::WATCHED_ARGUMENT;
use futures_util::FutureExt;
use process_host::ProcessHost;
use std::process::ExitCode;
use std::time::Duration;

mod failures;
mod files;
mod process_host;

const STEP_PAUSE: Duration = Duration::from_millis(250);

/// Runs the agent until its input ends. Arguments: the number of previous turns, and whether it waits for scans.
pub fn main(arguments: &[String]) -> ExitCode {
    let options = DemoOptions {
        previous_turns: arguments.first().and_then(|turns| turns.parse().ok()).unwrap_or(0),
        is_watched: arguments.get(1).is_some_and(|word| word == WATCHED_ARGUMENT),
        step_pause: STEP_PAUSE,
    };
    let Ok(host) = ProcessHost::start(std::io::stdin()) else { return ExitCode::FAILURE };
    // The host blocks the thread instead of returning a pending future, so one poll runs the agent to its end.
    match DemoAgent::new(host, options).run().now_or_never() {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(_)) | None => ExitCode::FAILURE,
    }
}
