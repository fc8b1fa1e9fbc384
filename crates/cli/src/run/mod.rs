//! `atoll run`: runs one task, shows its progress and relays messages.

mod branch_diff;
mod interrupts;
mod progress;
mod request_queue;
pub mod run_server;
mod run_summary;
pub mod signals;
mod step;
mod task;
mod task_input;
mod terminal;
mod view;
mod watch;

use crate::agent_flags::AgentFlags;
use crate::arguments::parse_word;
use crate::connect::Connect;
use crate::failure::Result;
use crate::output::Output;
use crate::runtime::build_runtime;
use crate::sandbox::limits::LimitFlags;
use crate::sandbox::network::NetworkFlags;
use crate::settings::{self, ConfigFiles};
use atoll_core::id::SessionId;
use atoll_core::sandbox::ProviderKind;
use run_server::ServerChoice;
use std::path::PathBuf;
use tokio::runtime::Builder;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll run \"fix the flaky test\" --repo .
  atoll run \"make it faster\" --repo . --check \"make test\"
  atoll run --repo ~/src/site --json < prompt.md
  atoll run \"say hello\" --provider fake
  atoll run --session ses_… \"and now the tests\"

On a terminal, type to send messages to the agent or to answer its questions. Ctrl-C interrupts the agent;
a second Ctrl-C leaves. With --repo, the results become a new branch of that repository; its checkout
stays untouched. If no server runs, the command starts one on the same data directory and stops it at the
end.

Exit codes: 0 success; 1 the work failed; 2 the sandbox or the set-up failed; 3 the export of the results
failed; 130 interrupted.")]
pub struct Run {
    /// Prompt; by default or with `-` from piped stdin
    prompt: Option<String>,
    /// Git repository to work on, at its last commit [default: none]
    #[arg(long, value_name = "PATH")]
    repo: Option<PathBuf>,
    /// Agent to run [default: agent.default, or the first usable one]
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Continue this session, with its conversation and branch
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    /// Provider of the sandbox [default: provider.default]
    #[arg(long, value_name = "NAME", value_parser = parse_word::<ProviderKind>)]
    provider: Option<ProviderKind>,
    /// Stop after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,
    /// Keep the sandbox when the agent is done
    #[arg(long)]
    keep: bool,
    /// Memory limit, in GiB
    #[arg(long, value_name = "GiB")]
    memory: Option<f64>,
    /// Processor limit
    #[arg(long, value_name = "N")]
    cpu: Option<f64>,
    /// Protect a path of the workspace from changes (repeatable)
    #[arg(long = "protect", value_name = "PATH")]
    protected: Vec<String>,
    /// Model of the agent
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    #[command(flatten)]
    working: AgentFlags,
    #[command(flatten)]
    network: NetworkFlags,
    #[command(flatten)]
    limits: LimitFlags,
    #[command(flatten)]
    files: ConfigFiles,
    #[command(flatten)]
    connect: Connect,
}

pub fn run(run: &Run, output: &Output) -> Result {
    let loaded = settings::load_with_data_dir(run.connect.data_dir.as_deref(), &run.files)?;
    let input = task_input::TaskInput::read(run)?;
    let choice = ServerChoice::choose(&run.connect, &loaded.config)?;
    let runtime = build_runtime(Builder::new_multi_thread())?;
    let done = runtime.block_on(Box::pin(task::run_task(run, &input, choice, &loaded.config, output)));
    runtime.shutdown_background();
    done
}
