//! `atoll compare`: compares two sandboxes.

mod summary;

use crate::connect::{Connect, ConnectedClient};
use crate::event_log::log_event::LogEvent;
use crate::event_log::{EventFilter, EventSink, LogReader};
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use crate::render::cost::format_cost;
use crate::render::table::{self, Cell, cell};
use crate::render::{text, time};
use crate::stored_state::ReadingClient;
use atoll_core::id::SandboxId;
use atoll_core::model::CostSource;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use summary::{Difference, SandboxSummary, ToolStep, find_differences};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll compare sbx_… sbx_…
  atoll compare sbx_… sbx_… --json | jq .first_tool_difference")]
pub struct Compare {
    /// First sandbox
    left: SandboxRef,
    /// Second sandbox
    right: SandboxRef,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(compare: &Compare, output: &Output) -> Result {
    let client = ReadingClient::find(&compare.connect, output).await?;
    let left = summarize_sandbox(compare.left.resolve(&client).await?, &client, output).await?;
    let right = summarize_sandbox(compare.right.resolve(&client).await?, &client, output).await?;
    let (tool, input) = find_differences(&left.sequence, &right.sequence);
    if output.json {
        return output.print_object(&json!({
            "left": left,
            "right": right,
            "first_tool_difference": tool,
            "first_input_difference": input,
        }));
    }
    table::print_table(output, &["", "LEFT", "RIGHT"], &table_rows(&left, &right))?;
    output.print_line("")?;
    output.print_line(&describe_difference("tools", "the same tools in the same order", tool.as_ref()))?;
    output.print_line(&describe_difference("inputs", "the same inputs otherwise", input.as_ref()))
}

impl EventSink for SandboxSummary {
    fn show_event(&mut self, event: &LogEvent) -> Result {
        self.add_event(event);
        Ok(())
    }

    fn show_truncation(&mut self, first_seq: i64, output: &Output) -> Result {
        self.first_seq = first_seq;
        output
            .print_note(&format!("retention has removed the events of one side before {first_seq}; they do not count"));
        Ok(())
    }
}

async fn summarize_sandbox(id: SandboxId, client: &ConnectedClient, output: &Output) -> Result<SandboxSummary> {
    let mut summary = SandboxSummary::default();
    LogReader::new(client, output, id, &EventFilter::default())?.read_all(&mut summary).await?;
    summary.add_sandbox(&client.get_sandbox(id).await?);
    Ok(summary)
}

fn table_rows(left: &SandboxSummary, right: &SandboxSummary) -> Vec<Vec<Cell>> {
    let both = |name: &str, format: &dyn Fn(&SandboxSummary) -> String| {
        vec![cell(name), cell(format(left)), cell(format(right))]
    };
    let or_dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let mut rows = vec![
        both("sandbox", &|side| side.id.clone()),
        both("state", &|side| side.state.clone()),
        both("outcome", &|side| or_dash(&side.outcome)),
        both("reason", &|side| or_dash(&side.reason)),
        both("agent", &|side| or_dash(&side.agent)),
        both("model", &|side| or_dash(&side.model)),
        both("duration", &|side| time::format_duration(Duration::from_secs_f64(side.duration_s.max(0.0)))),
        both("turns", &|side| side.turns.to_string()),
        both("cost", &|side| format_cost(side.cost_usd, CostSource::Prices)),
        both("events", &|side| side.events.to_string()),
    ];
    let count = |value: &u64| value.to_string();
    add_section(&mut rows, "", (&left.events_by_type, &right.events_by_type), count);
    add_section(&mut rows, "tool ", (&left.tools, &right.tools), count);
    add_section(&mut rows, "file ", (&left.files, &right.files), |edits| {
        format!("{}× +{} -{}", edits.edits, edits.lines_added, edits.lines_removed)
    });
    rows
}

fn add_section<T>(
    rows: &mut Vec<Vec<Cell>>,
    prefix: &str,
    (left, right): (&BTreeMap<String, T>, &BTreeMap<String, T>),
    format: impl Fn(&T) -> String,
) {
    let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let side = |of: &BTreeMap<String, T>, name: &String| cell(of.get(name).map_or_else(|| "-".to_owned(), &format));
    for name in names {
        let label = cell(format!("  {prefix}{}", text::escape_clipped(name, 60)));
        rows.push(vec![label, side(left, name), side(right, name)]);
    }
}

fn describe_difference(what: &str, same: &str, difference: Option<&Difference>) -> String {
    let Some(found) = difference else { return format!("{what}: {same}") };
    let side = |step: &Option<ToolStep>| match step {
        Some(step) => text::escape_clipped(&format!("{} {} (event {})", step.tool, step.input, step.seq), 100),
        None => "nothing more".to_owned(),
    };
    format!("{what}: first difference at step {}: {} | {}", found.step, side(&found.left), side(&found.right))
}
