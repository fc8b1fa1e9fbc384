//! `atoll monitor`: shows what each live agent does.

use crate::connect::{Connect, ConnectedClient};
use crate::failure::Result;
use crate::output::Output;
use crate::render::table::{self, cell};
use crate::render::{text, time};
use atoll_api::{MonitoredAgent, MonitoringStatus};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll monitor
  atoll monitor --json | jq '.findings[].text'
  watch -n 5 atoll monitor

PHASE follows from an agent's newest steps. ERRORS is the share of failed tool calls. ANOMALY combines latency,
errors, resources and waiting messages, from 0 to 1.")]
pub struct Monitor {
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(monitor: &Monitor, output: &Output) -> Result {
    let status = ConnectedClient::find(&monitor.connect)?.monitoring_status().await?;
    if output.json {
        return output.print_response(&status);
    }
    let heads = ["SANDBOX", "AGENT", "ACTIVITY", "PHASE", "PROGRESS", "ERRORS", "ANOMALY", "TITLE"];
    let rows: Vec<_> = status.agents.iter().map(|agent| table_row(agent, &status)).collect();
    table::print_table(output, &heads, &rows)?;
    if let Some(coherence) = status.coherence {
        output.print_line(&format!("coherence: {coherence:.2}"))?;
    }
    for finding in &status.findings {
        let ids = finding.sandbox_ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        output.print_line(&text::escape_line(&format!("{}: {} ({ids})", finding.kind, finding.text)))?;
    }
    if status.truncated {
        output.print_line("There are more agents than the list has.")?;
    }
    Ok(())
}

fn table_row(agent: &MonitoredAgent, status: &MonitoringStatus) -> Vec<table::Cell> {
    let progress =
        agent.last_progress_at.map_or_else(|| "-".to_owned(), |at| time::format_duration(status.at.elapsed_since(at)));
    let phase = match agent.stuck {
        Some(_) => format!("{} (stuck)", agent.phase),
        None => agent.phase.to_string(),
    };
    vec![
        cell(agent.sandbox_id.to_string()),
        cell(agent.agent.as_deref().unwrap_or("-")),
        cell(agent.activity.as_str()),
        cell(phase),
        cell(progress),
        cell(format!("{:.0} %", agent.anomaly.error_rate * 100.0)),
        cell(format!("{:.2}", agent.anomaly.score)),
        cell(&agent.title),
    ]
}
