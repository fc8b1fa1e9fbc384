//! `atoll run`: one task from start to end, watched and steered.

mod ending;
mod face;
mod git;
mod leaving;
mod orders;
mod place;
mod request;
pub mod signals;
mod story;
mod task;
mod terminal;
mod told;
mod watch;

use crate::arguments::word;
use crate::client::Connect;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::sandbox::limits::Allowance;
use crate::sandbox::network::Choice as Network;
use crate::settings::{self, ConfigFiles};
use crate::working::Working;
use atoll_core::id::SessionId;
use atoll_core::sandbox::ProviderKind;
use place::Choice;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll run \"fix the flaky test\" --repo .
  atoll run \"make it faster\" --repo . --check \"make test\"          until it passes
  atoll run --repo ~/src/site --json < prompt.md
  atoll run \"say hello\" --provider fake
  atoll run --session ses_… \"and now the tests\"

On a terminal, what you type goes to the agent while it works, or answers what it asks. Ctrl-C interrupts it,
a second one leaves.
With --repo the work ends up on a new branch of that repository; what is checked out there is not touched.
Without a running server one is started inside, on the same data directory, and ended with the run.

Exit codes: 0 done; 1 the work failed; 2 the sandbox or the set-up failed; 3 done, but the results could not
be taken out; 130 interrupted.")]
pub struct Run {
    /// What the agent is to do; `-`, or nothing with a pipe, reads it from the standard input
    prompt: Option<String>,
    /// A directory with a git repository for the agent to work on; it gets the last commit [default: none]
    #[arg(long, value_name = "PATH")]
    repo: Option<PathBuf>,
    /// The agent that works [default: agent.default, else the first that is here with its key]
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Go on in this session: its agent remembers, on its branch
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    /// Who makes the sandbox [default: provider.default]
    #[arg(long, value_name = "NAME", value_parser = word::<ProviderKind>)]
    provider: Option<ProviderKind>,
    /// End it after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,
    /// Keep the sandbox when the agent is done, and go on talking to it
    #[arg(long)]
    keep: bool,
    /// Memory for the agent and all it starts, in GB
    #[arg(long, value_name = "GB")]
    memory: Option<f64>,
    /// Processors for the agent and all it starts
    #[arg(long, value_name = "N")]
    cpu: Option<f64>,
    /// A path of the workspace that the agent must not change; several times
    #[arg(long = "protect", value_name = "PATH")]
    protected: Vec<String>,
    /// The model that the agent uses
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    #[command(flatten)]
    working: Working,
    #[command(flatten)]
    network: Network,
    #[command(flatten)]
    limits: Allowance,
    #[command(flatten)]
    files: ConfigFiles,
    #[command(flatten)]
    connect: Connect,
}

pub fn run(run: &Run, output: &Output) -> Result {
    let flag = run.connect.data_dir.as_ref().map(|dir| ("data_dir".to_owned(), dir.display().to_string()));
    let loaded = settings::load(flag.into_iter().collect(), &run.files)?;
    let wanted = request::Wanted::read(run)?;
    let choice = Choice::make(&run.connect, &loaded.config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::setup("runtime", format!("can't start threads: {error}")))?;
    let done = runtime.block_on(Box::pin(task::start_to_end(run, &wanted, choice, &loaded.config, output)));
    runtime.shutdown_background();
    done
}
