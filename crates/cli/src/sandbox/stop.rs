//! `atoll sandbox stop`.

use crate::confirm::Confirm;
use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::{SandboxRef, short_reference};
use crate::render::text;
use crate::spinner::Spinner;
use atoll_api::{Sandbox, StopSandbox};
use atoll_core::id::SandboxId;
use atoll_core::sandbox::{ResultsAction, ResultsState};
use std::time::Duration;

const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox stop last
  atoll sandbox stop sbx_… --detach         do not wait for the end
  atoll sandbox stop sbx_… --discard        stop without exporting results

The command waits until the sandbox has ended and its results are exported. Ctrl-C ends only the wait.")]
pub struct Stop {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
    /// Discard the results
    #[arg(long)]
    discard: bool,
    /// Return at once; do not wait until the sandbox has ended
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    confirm: Confirm,
}

pub async fn run(stop: &Stop, client: &ConnectedClient, output: &Output) -> Result {
    let found = stop.id.find(client).await?;
    if stop.discard && found.state.is_live() {
        stop.confirm.require(&format!("discards the results of {}", describe_target(&found)), output).await?;
    }
    let results = if stop.discard { ResultsAction::Discard } else { ResultsAction::Take };
    let mut sandbox = client.stop_sandbox(found.id, &StopSandbox { results }).await?;
    if !stop.detach {
        let _progress = Spinner::start(output, format!("stopping {}", short_reference(&found)));
        sandbox = wait_until_ended(found.id, client).await?;
    }
    output.print_result(&sandbox, || describe_sandbox(&sandbox))
}

/// Waits until the sandbox has ended.
pub async fn wait_until_ended(id: SandboxId, client: &ConnectedClient) -> Result<Sandbox> {
    let mut interval = FIRST_POLL_INTERVAL;
    loop {
        let sandbox = client.get_sandbox(id).await?;
        if !sandbox.state.is_live() {
            return Ok(sandbox);
        }
        tokio::time::sleep(interval).await;
        interval = (interval * 2).min(MAX_POLL_INTERVAL);
    }
}

/// The sandbox as a question names it: reference and title.
pub fn describe_target(sandbox: &Sandbox) -> String {
    text::escape_line(&format!("{} ({})", short_reference(sandbox), sandbox.title))
}

/// One line with the state, the outcome and the branch.
pub fn describe_sandbox(sandbox: &Sandbox) -> String {
    let outcome = sandbox.outcome.map(|outcome| format!(" ({outcome})")).unwrap_or_default();
    let branch = sandbox.branch.as_ref().filter(|_| sandbox.results == ResultsState::Taken && !sandbox.state.is_live());
    let branch = branch.map(|branch| format!("; its branch is {}", text::escape_line(branch))).unwrap_or_default();
    format!("{} is {}{outcome}{branch}", sandbox.id, sandbox.state)
}
