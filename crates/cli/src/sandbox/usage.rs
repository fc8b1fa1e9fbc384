//! `atoll sandbox usage`.

use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use crate::render::fields::Fields;
use atoll_api::{ResourceQuery, ResourceSample};
use atoll_core::sandbox::Resources;
use atoll_core::size::format_bytes;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox usage sbx_…
  atoll sandbox usage sbx_… --json | jq .items")]
pub struct Usage {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
}

pub async fn run(usage: &Usage, client: &ConnectedClient, output: &Output) -> Result {
    let id = usage.id.resolve(client).await?;
    let series = client.get_resources(id, &ResourceQuery::default()).await?;
    if output.json {
        return output.print_response(&series);
    }
    match series.now {
        Some(now) => usage_fields(&now, series.limits.unwrap_or_default()).print(output),
        None => output.print_line("the sandbox is not running"),
    }
}

fn usage_fields(now: &ResourceSample, limits: Resources) -> Fields {
    let of = |used: String, limit: Option<String>| match limit {
        Some(limit) => format!("{used} of {limit}"),
        None => used,
    };
    let gigabytes = |limit: Option<f64>| limit.map(|limit| format!("{limit} GiB"));
    let processors = match now.cpu {
        Some(cpu) => of(format!("{cpu:.2}"), limits.cpu.map(|cpu| cpu.to_string())),
        None => "not measured yet".to_owned(),
    };
    let disk = match now.disk_bytes {
        Some(bytes) => of(format_bytes(bytes), gigabytes(limits.disk_gb)),
        None => "not measured".to_owned(),
    };
    Fields::new()
        .field("processors", processors)
        .field("memory", of(format_bytes(now.memory_bytes), gigabytes(limits.memory_gb)))
        .field("disk", disk)
        .field("processes", of(now.pids.to_string(), limits.pids.map(|pids| pids.to_string())))
        .field("network", format_bytes(now.network_bytes))
}
