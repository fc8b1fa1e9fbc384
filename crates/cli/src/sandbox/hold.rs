//! `atoll sandbox pause`, `resume`, `fork`, `snapshot` and `usage`.

use crate::client::Client;
use crate::failure::Result;
use crate::output::Output;
use crate::render::fields::Fields;
use crate::render::{size, text};
use atoll_core::id::SandboxId;
use serde_json::{Map, Value, json};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox pause sbx_…                 everything in it stands still and keeps its memory
  atoll sandbox resume sbx_…")]
pub struct Pause {
    id: SandboxId,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  atoll sandbox resume sbx_…")]
pub struct Resume {
    id: SandboxId,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox fork sbx_…
  atoll sandbox fork sbx_… \"try it with a hash map instead\" --title 'hash map'

The fork begins with the files of the sandbox as they are now, and with its agent's conversation; from then on
both go their own ways. It is made between two turns of the agent, and what runs in the sandbox then ends.")]
pub struct Fork {
    id: SandboxId,
    /// What its agent is to do; without it the agent waits
    prompt: Option<String>,
    /// What the new session is called
    #[arg(long)]
    title: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox snapshot sbx_… with-dependencies
  atoll sandbox new \"fix it\" --snapshot with-dependencies
  atoll snapshot ls")]
pub struct Snapshot {
    id: SandboxId,
    /// 1 to 32 of a-z, 0-9, `.`, `_` and `-`
    name: String,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox usage sbx_…
  atoll sandbox usage sbx_… --json | jq .items")]
pub struct Usage {
    id: SandboxId,
}

pub async fn pause(pause: &Pause, client: &Client, output: &Output) -> Result {
    let row = client.post(&format!("/sandboxes/{}/pause", pause.id), &json!({})).await?;
    tell(&row, "is paused", output)
}

pub async fn resume(resume: &Resume, client: &Client, output: &Output) -> Result {
    let row = client.post(&format!("/sandboxes/{}/resume", resume.id), &json!({})).await?;
    tell(&row, "goes on", output)
}

pub async fn fork(fork: &Fork, client: &Client, output: &Output) -> Result {
    let fields = [("prompt", &fork.prompt), ("title", &fork.title)];
    let given = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), Value::from(value.clone()?))));
    let body = Value::Object(given.collect::<Map<_, _>>());
    let row = client.post(&format!("/sandboxes/{}/fork", fork.id), &body).await?;
    tell(&row, &format!("begins with the files of {}", fork.id), output)
}

pub async fn snapshot(snapshot: &Snapshot, client: &Client, output: &Output) -> Result {
    let path = format!("/sandboxes/{}/snapshot", snapshot.id);
    let made = client.post(&path, &json!({ "name": snapshot.name })).await?;
    if output.json {
        return output.object(&made);
    }
    output.line(&format!("{} is kept; begin with it: `atoll sandbox new --snapshot {0}`", snapshot.name))
}

pub async fn usage(usage: &Usage, client: &Client, output: &Output) -> Result {
    let series = client.get(&format!("/sandboxes/{}/resources", usage.id), &[]).await?;
    if output.json {
        return output.object(&series);
    }
    let (now, limits) = (&series["now"], &series["limits"]);
    if now.is_null() {
        return output.line("nothing runs in it any more");
    }
    let of = |used: String, limit: Option<String>| match limit {
        Some(limit) => format!("{used} of {limit}"),
        None => used,
    };
    let bytes = |field: &str| size::bytes(now[field].as_u64().unwrap_or(0));
    let gigabytes = |field: &str| limits[field].as_f64().map(|limit| format!("{limit} GiB"));
    let processors = now["cpu"].as_f64().map_or_else(|| "not measured yet".to_owned(), |cpu| format!("{cpu:.2}"));
    Fields::new()
        .put("processors", of(processors, limits["cpu"].as_f64().map(|cpu| cpu.to_string())))
        .put("memory", of(bytes("memory_bytes"), gigabytes("memory_gb")))
        .put("disk", of(bytes("disk_bytes"), gigabytes("disk_gb")))
        .put("processes", of(now["pids"].to_string(), limits["pids"].as_u64().map(|pids| pids.to_string())))
        .put("network", bytes("network_bytes"))
        .print(output)
}

fn tell(row: &Value, what: &str, output: &Output) -> Result {
    if output.json {
        return output.object(row);
    }
    output.line(&format!("{} {what}", text::inline(row["id"].as_str().unwrap_or_default())))
}
