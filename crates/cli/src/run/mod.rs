//! `atoll run`: runs one task, shows its progress and relays messages.

mod approval_notice;
pub mod attach;
mod branch_diff;
mod interrupts;
mod live_text;
pub mod progress;
pub mod replay;
mod request_queue;
pub mod run_server;
mod run_summary;
pub mod signals;
pub mod step;
mod task;
mod task_input;
pub mod terminal;
pub mod view;
pub mod watch;

use crate::connect::Connect;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::runtime::build_runtime;
use crate::setting_flags::{PlacementFlags, SettingFlags};
use crate::settings::{self, ConfigFiles};
use run_server::ServerChoice;
use tokio::runtime::Builder;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll run \"fix the flaky test\"
  atoll run \"make it faster\" --check \"make test\"
  atoll run --repo ~/src/site --json < prompt.md
  atoll run \"say hello\" --provider fake
  atoll run \"upgrade the parser\" --name parser --detach
  atoll run --session ses_… \"and now the tests\"
  atoll run --ticket ATL-12

On a terminal, type to send messages to the agent or to answer its questions. Ctrl-C interrupts the agent;
a second Ctrl-C ends the run and takes the results. SIGTERM, and SIGINT without a terminal, do both at once.
The agent works on the repository of the current directory (--repo, --no-repo). The results become a new
branch of it; its checkout stays untouched. If no server
runs, the command starts one on the same data directory and stops it at the end.

Exit codes: 0 success; 1 the work failed; 2 the sandbox or the set-up failed; 3 the export of the results
failed; 130 interrupted.")]
pub struct Run {
    /// Prompt; by default or with `-` from piped stdin
    prompt: Option<String>,
    /// Return when the sandbox runs; needs a running server
    #[arg(long, short = 'd')]
    detach: bool,
    /// Keep the sandbox when the agent is done
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    placement: PlacementFlags,
    #[command(flatten)]
    settings: SettingFlags,
    #[command(flatten)]
    files: ConfigFiles,
    #[command(flatten)]
    connect: Connect,
}

pub fn run(run: &Run, output: &Output) -> Result {
    let loaded = settings::load_with_data_dir(run.connect.data_dir.as_deref(), &run.files)?;
    let input = task_input::TaskInput::read(run)?;
    let choice = ServerChoice::choose("atoll run", &run.connect, &loaded.config)?;
    if run.detach && matches!(choice, ServerChoice::Embedded { .. }) {
        return Err(Failure::setup("no_server", "--detach needs a running server")
            .with_hint("Start one with `atoll serve` in another terminal, and try again."));
    }
    let runtime = build_runtime(Builder::new_multi_thread())?;
    let done = runtime.block_on(Box::pin(task::run_task(run, &input, choice, &loaded.config, output)));
    runtime.shutdown_background();
    done
}
