//! `atoll snapshot`: files of sandboxes that are kept by name.

use crate::client::{Client, Connect};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::{size, table, text, time};
use atoll_core::id::ProjectId;
use atoll_core::time::Timestamp;
use serde_json::Value;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub struct Snapshot {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the snapshots, with what each takes on disk
    #[command(after_help = "Examples:\n  atoll snapshot ls")]
    #[command(alias = "list")]
    Ls,
    /// Forget a snapshot; sandboxes that began with it keep their files
    #[command(after_help = "Examples:\n  atoll snapshot rm with-dependencies")]
    Rm {
        name: String,
        /// Whose it is [default: the default project's]
        #[arg(long, value_name = "ID")]
        project: Option<ProjectId>,
    },
    /// Forget all snapshots that are older than so many days
    #[command(after_help = "Examples:\n  atoll snapshot prune --older-than 30 --dry-run")]
    Prune {
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32))]
        older_than: u32,
        /// Only say which
        #[arg(long)]
        dry_run: bool,
    },
}

pub async fn run(snapshot: &Snapshot, output: &Output) -> Result {
    let client = Client::find(&snapshot.connect)?;
    match &snapshot.command {
        Command::Ls => list(&items(&client).await?, output),
        Command::Rm { name, project } => {
            forget(&client, name, project.map(|id| id.to_string()).as_deref(), output).await
        }
        Command::Prune { older_than, dry_run } => {
            let age = Duration::from_secs(u64::from(*older_than) * 24 * 3600);
            for (name, project) in older(&items(&client).await?, time::now(), age) {
                match dry_run {
                    true => output.line(&format!("{} would go", text::inline(&name)))?,
                    false => forget(&client, &name, Some(&project), output).await?,
                }
            }
            Ok(())
        }
    }
}

async fn items(client: &Client) -> Result<Vec<Value>> {
    let mut answer = client.get("/snapshots", &[]).await?;
    match answer["items"].take() {
        Value::Array(items) => Ok(items),
        _ => Err(client.not_atoll("snapshots without items")),
    }
}

async fn forget(client: &Client, name: &str, project: Option<&str>, output: &Output) -> Result {
    if name.contains(['/', '?', '#', '%']) {
        return Err(Failure::refused("not_found", format!("there is no snapshot `{}`", text::inline(name))));
    }
    let query: Vec<_> = project.map(|project| ("project_id", project.to_owned())).into_iter().collect();
    let gone = client.delete(&format!("/snapshots/{name}"), &query).await?;
    if output.json { output.object(&gone) } else { output.line(&format!("{} is gone", text::inline(name))) }
}

/// Names and projects.
fn older(items: &[Value], now: Timestamp, age: Duration) -> Vec<(String, String)> {
    let is_older = |item: &&Value| {
        let made = item["created_at"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
        made.is_some_and(|made| now.elapsed_since(made) > age)
    };
    let words = |item: &Value| Some((item["name"].as_str()?.to_owned(), item["project_id"].as_str()?.to_owned()));
    items.iter().filter(is_older).filter_map(words).collect()
}

fn list(items: &[Value], output: &Output) -> Result {
    if output.json {
        return items.iter().try_for_each(|item| output.object(item));
    }
    let now = time::now();
    let cells = items.iter().map(|item| {
        let said = |field: &str| item[field].as_str().unwrap_or("-");
        let bytes = item["bytes"].as_u64().map_or_else(|| "-".to_owned(), size::bytes);
        let age = item["created_at"].as_str().map_or_else(|| "-".to_owned(), |at| time::age(at, now));
        [said("name"), &bytes, said("image"), &age, said("project_id")].map(table::cell).into()
    });
    table::print(output, &["NAME", "SIZE", "IMAGE", "AGE", "PROJECT"], &cells.collect::<Vec<Vec<_>>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_is_surely_older_goes() {
        let items = [
            json!({ "name": "old", "project_id": "prj_1", "created_at": "2026-01-01T00:00:00Z" }),
            json!({ "name": "new", "project_id": "prj_1", "created_at": "2026-01-31T00:00:00Z" }),
            json!({ "name": "unknown", "project_id": "prj_1", "created_at": null }),
        ];
        let now: Timestamp = "2026-02-01T00:00:00Z".parse().unwrap();
        assert_eq!(older(&items, now, Duration::from_secs(30 * 24 * 3600)), [("old".to_owned(), "prj_1".to_owned())]);
    }
}
