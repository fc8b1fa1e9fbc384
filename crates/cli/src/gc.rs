//! `atoll gc`: remove what retention says may go.

use crate::client::{Client, Connect};
use crate::failure::Result;
use crate::output::Output;
use serde_json::json;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll gc --dry-run
  atoll gc
  atoll gc --all --dry-run

`retention.events` says how long the events of ended sandboxes are kept; the default is for ever.")]
pub struct Gc {
    /// Only say what would go
    #[arg(long)]
    dry_run: bool,
    /// Everything of ended sandboxes, whatever its age
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(gc: &Gc, output: &Output) -> Result {
    let client = Client::find(&gc.connect)?;
    let swept = client.post_long("/gc", &json!({ "dry_run": gc.dry_run, "all": gc.all })).await?;
    if output.json {
        return output.object(&swept);
    }
    let verb = if gc.dry_run { "would remove" } else { "removed" };
    let count = |field: &str| swept[field].as_i64().unwrap_or(0);
    output.line(&format!(
        "{verb} {} events of {} sandboxes, {} blobs",
        count("events"),
        count("sandboxes"),
        count("blobs")
    ))
}
