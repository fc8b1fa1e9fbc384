//! `atoll gc`: applies the retention rules now.

use crate::code::end_removed_worktrees;
use crate::confirm::Confirm;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::Result;
use crate::output::Output;
use crate::spinner::Spinner;
use atoll_api::{GcReport, GcRequest};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll gc --dry-run
  atoll gc
  atoll gc --all --dry-run
  atoll gc --all --yes

`retention.events` sets how long the server stores the events of ended sandboxes; by default forever. An
orphan is a sandbox at its provider that the server does not know; `health.reap_grace` sets its grace period.")]
pub struct Gc {
    /// Report what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Ignore the age of data of ended sandboxes
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(gc: &Gc, output: &Output) -> Result {
    let client = ConnectedClient::find(&gc.connect)?;
    if gc.all && !gc.dry_run {
        let found = client.collect_garbage(&GcRequest { dry_run: true, all: true }).await?;
        if found.events > 0 || found.blobs > 0 {
            let what = format!(
                "removes the logs of {} ended {} for ever: {} events, {} blobs",
                found.sandboxes,
                if found.sandboxes == 1 { "sandbox" } else { "sandboxes" },
                found.events,
                found.blobs
            );
            gc.confirm.require(&what, output).await?;
        }
    }
    let progress = Spinner::start(output, "removing expired data");
    let request = GcRequest { dry_run: gc.dry_run, all: gc.all };
    let report = client.collect_garbage(&request).await?;
    drop(progress);
    if !gc.dry_run
        && let Ok(data_dir) = gc.connect.data_dir()
    {
        let ended = end_removed_worktrees(&client, &data_dir).await?;
        if ended > 0 {
            output.print_note(&format!("ended {ended} sandboxes of removed worktrees"));
        }
    }
    output.print_result(&report, || {
        let verb = if gc.dry_run { "would remove" } else { "removed" };
        let GcReport { events, sandboxes, blobs, caches, orphans, waiting_orphans, lost_sandboxes, .. } = &report;
        let waiting = if *waiting_orphans > 0 {
            format!(" ({waiting_orphans} more wait for their grace period)")
        } else {
            String::new()
        };
        let lost = if *lost_sandboxes > 0 { format!("; {lost_sandboxes} sandboxes are lost") } else { String::new() };
        format!(
            "{verb} {events} events of {sandboxes} sandboxes, {blobs} blobs, {caches} set-up layers, \
             {orphans} orphaned sandboxes{waiting}{lost}"
        )
    })
}
