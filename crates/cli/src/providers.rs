//! `atoll providers`: lists the providers of a server.

use crate::connect::{Connect, ConnectedClient};
use crate::failure::Result;
use crate::output::Output;
use crate::render::table::{self, cell};
use crate::render::{text, time};
use atoll_api::{Circuit, Provider};
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll providers
  atoll providers --json | jq 'select(.available) | .name'

PAUSE, FORK, SNAPSHOT and NETWORK name the way in which a provider does it; MEMORY, CPU and DISK are the
most that one sandbox can have, `-` if the provider sets no maximum.")]
pub struct Providers {
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(providers: &Providers, output: &Output) -> Result {
    let listed = ConnectedClient::find(&providers.connect)?.list_providers().await?.items;
    if output.json {
        return output.print_responses(&listed);
    }
    let heads = [
        "NAME",
        "STATE",
        "ISOLATION",
        "PAUSE",
        "FORK",
        "SNAPSHOT",
        "NETWORK",
        "IMAGES",
        "MEMORY",
        "CPU",
        "DISK",
        "TIMEOUT",
    ];
    let rows: Vec<_> = listed.iter().map(table_row).collect();
    table::print_table(output, &heads, &rows)?;
    for provider in &listed {
        if let Some(detail) = &provider.detail {
            output.print_line(&text::escape_line(&format!("{}: {detail}", provider.name)))?;
        }
        if let Some(circuit) = &provider.circuit {
            output.print_line(&text::escape_line(&describe_circuit(provider, circuit)))?;
        }
    }
    Ok(())
}

fn describe_circuit(provider: &Provider, circuit: &Circuit) -> String {
    let again = match circuit.retry_at {
        Some(at) => format!("it gets no sandbox until {}", time::format_time(at)),
        None => "the next sandbox tries it again".to_owned(),
    };
    let detail = circuit.detail.as_deref().map(|detail| format!(": {detail}")).unwrap_or_default();
    format!("{}: failed {} times in a row, so {again}{detail}", provider.name, circuit.failures)
}

fn table_row(provider: &Provider) -> Vec<table::Cell> {
    let can = &provider.capabilities;
    let state = match (provider.available, provider.circuit.is_some(), provider.is_default) {
        (true, true, _) => "failing",
        (true, false, true) => "default",
        (true, false, false) => "available",
        (false, _, _) => "unavailable",
    };
    let most = |limit: Option<f64>, unit: &str| limit.map_or_else(|| "-".to_owned(), |limit| format!("{limit}{unit}"));
    let words = [
        provider.name.as_str(),
        state,
        can.isolation.as_str(),
        can.pause.as_str(),
        can.fork.as_str(),
        can.snapshot.as_str(),
        can.egress.as_str(),
        can.images.as_str(),
    ];
    let mut row: Vec<_> = words.map(cell).into();
    row.extend([most(can.max_memory_gb, " GiB"), most(can.max_cpu, ""), most(can.max_disk_gb, " GiB")].map(cell));
    row.push(cell(time::format_duration(Duration::from_secs(provider.create_timeout_s))));
    row
}
