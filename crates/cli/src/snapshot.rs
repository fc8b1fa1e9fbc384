//! `atoll snapshot`: manages snapshots.

use crate::confirm::Confirm;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::{table, text, time};
use atoll_api::{RemoveSnapshotQuery, Snapshot as ApiSnapshot};
use atoll_core::id::ProjectId;
use atoll_core::size::format_bytes;
use atoll_core::time::Timestamp;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub struct SnapshotArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List snapshots
    #[command(after_help = "Examples:\n  atoll snapshot ls")]
    #[command(alias = "list")]
    Ls,
    /// Remove a snapshot; sandboxes that use it keep their files
    #[command(after_help = "Examples:\n  atoll snapshot rm with-dependencies")]
    Rm {
        /// Name of the snapshot
        name: String,
        /// Project of the snapshot [default: the default project]
        #[arg(long, value_name = "ID")]
        project: Option<ProjectId>,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Remove old snapshots
    #[command(after_help = "Examples:\n  atoll snapshot prune --older-than 30 --dry-run")]
    Prune {
        /// Minimum age, in days
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32))]
        older_than: u32,
        /// List the snapshots, and remove none
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        confirm: Confirm,
    },
}

pub async fn run(snapshot: &SnapshotArgs, output: &Output) -> Result {
    let client = ConnectedClient::find(&snapshot.connect)?;
    match &snapshot.command {
        Command::Ls => print_list(&list_snapshots(&client).await?, output),
        Command::Rm { name, project, confirm } => {
            confirm.require(&format!("removes the snapshot `{}`", text::escape_line(name)), output).await?;
            remove_snapshot(&client, name, *project, output).await
        }
        Command::Prune { older_than, dry_run, confirm } => {
            let age = Duration::from_secs(u64::from(*older_than) * 24 * 3600);
            let snapshots = list_snapshots(&client).await?;
            let old: Vec<_> = snapshots.iter().filter(|snapshot| is_older(snapshot, time::now(), age)).collect();
            if !dry_run && !old.is_empty() {
                let names: Vec<_> = old.iter().map(|old| text::escape_line(&old.snapshot.name)).collect();
                confirm.require(&format!("removes the snapshots {}", names.join(", ")), output).await?;
            }
            for snapshot in old {
                let name = &snapshot.snapshot.name;
                match dry_run {
                    true => output.print_line(&format!("would remove {}", text::escape_line(name)))?,
                    false => remove_snapshot(&client, name, Some(snapshot.project_id), output).await?,
                }
            }
            Ok(())
        }
    }
}

async fn list_snapshots(client: &ConnectedClient) -> Result<Vec<ApiSnapshot>> {
    Ok(client.list_snapshots().await?.items)
}

async fn remove_snapshot(client: &ConnectedClient, name: &str, project: Option<ProjectId>, output: &Output) -> Result {
    if name.contains(['/', '?', '#', '%']) {
        return Err(Failure::refused("not_found", format!("there is no snapshot `{}`", text::escape_line(name))));
    }
    let query = RemoveSnapshotQuery { project_id: project };
    let removed = client.remove_snapshot(name, &query).await?;
    output.print_result(&removed, || format!("{} is removed", text::escape_line(name)))
}

/// A snapshot of unknown age is not older.
fn is_older(snapshot: &ApiSnapshot, now: Timestamp, age: Duration) -> bool {
    snapshot.snapshot.created_at.is_some_and(|created| now.elapsed_since(created) > age)
}

fn print_list(snapshots: &[ApiSnapshot], output: &Output) -> Result {
    let now = time::now();
    table::print_list(output, snapshots, &["NAME", "SIZE", "IMAGE", "AGE", "PROJECT"], |row| {
        let snapshot = &row.snapshot;
        let bytes = snapshot.bytes.map_or_else(|| "-".to_owned(), format_bytes);
        let age = snapshot.created_at.map_or_else(|| "-".to_owned(), |at| time::format_age(at, now));
        let image = snapshot.image.as_deref().unwrap_or("-");
        [&snapshot.name, &bytes, image, &age, &row.project_id.to_string()].map(table::cell).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_known_age_is_older() {
        let now: Timestamp = "2026-02-01T00:00:00Z".parse().unwrap();
        let is_old = |created_at: serde_json::Value| {
            let snapshot = json!({
                "name": "x", "bytes": null, "image": null, "project_id": ProjectId::new(), "created_at": created_at,
            });
            is_older(&serde_json::from_value(snapshot).unwrap(), now, Duration::from_secs(30 * 24 * 3600))
        };
        assert!(is_old(json!("2026-01-01T00:00:00Z")));
        assert!(!is_old(json!("2026-01-31T00:00:00Z")) && !is_old(json!(null)));
    }
}
