//! `atoll attach`: opens the live view of a running sandbox. Leaving the view changes nothing.

use super::run_summary::reattach_lines;
use super::signals::Signals;
use super::watch::{RunWatcher, WatchEnd, WatchTarget};
use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::references::{SandboxRef, short_reference};
use crate::runtime::build_runtime;
use crate::sandbox::stop::{describe_sandbox, describe_target};
use tokio::runtime::Builder;
use tokio::time::Instant;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll attach
  atoll attach parser

The view is that of `atoll run`: type to send messages to the agent or to answer its questions. Ctrl-C
interrupts the agent, a second one leaves; Ctrl-D leaves at once. The sandbox keeps running.")]
pub struct Attach {
    /// Sandbox: id, end of the id, name, branch or `last`
    #[arg(default_value = "last")]
    id: SandboxRef,
    #[command(flatten)]
    connect: Connect,
}

pub fn run(attach: &Attach, output: &Output) -> Result {
    let runtime = build_runtime(Builder::new_multi_thread())?;
    let done = runtime.block_on(Box::pin(attach_view(attach, output)));
    runtime.shutdown_background();
    done
}

async fn attach_view(attach: &Attach, output: &Output) -> Result {
    let mut signals = Signals::listen()?;
    let client = ConnectedClient::find(&attach.connect)?;
    let sandbox = attach.id.find(&client).await?;
    let reference = short_reference(&sandbox);
    if !sandbox.state.is_live() {
        return Err(Failure::setup("sandbox_ended", format!("{} has ended", describe_target(&sandbox)))
            .with_hint(format!("`atoll logs {reference}` shows its log.")));
    }
    if !output.json {
        output.print_note(&format!("attached to {}", describe_target(&sandbox)));
    }
    let target = WatchTarget {
        sandbox: sandbox.id,
        reference: reference.clone(),
        attached_at: Some(sandbox.last_seq),
        agent: sandbox.agent.clone().unwrap_or_default(),
        // The view exports nothing by itself.
        has_repo: false,
        keep: false,
        is_embedded: false,
        delegated: None,
    };
    let watcher = RunWatcher::new(&target, &client, output, Instant::now());
    let result = Box::pin(watcher.run(&client, &mut signals)).await?;
    if output.json {
        return Ok(());
    }
    match result.end {
        WatchEnd::Ended => output.print_line(&describe_sandbox(&client.get_sandbox(sandbox.id).await?)),
        WatchEnd::Kept | WatchEnd::Detached | WatchEnd::Aborted => {
            output.print_line(&format!("{reference} keeps running"))?;
            reattach_lines(&reference).iter().try_for_each(|line| output.print_line(&line.to_ansi(output.colour)))
        }
    }
}
