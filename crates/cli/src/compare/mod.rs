//! `atoll compare`: two sandboxes side by side.

mod summary;

use crate::client::{Client, Connect};
use crate::failure::Result;
use crate::output::Output;
use crate::reading::entry::Entry;
use crate::reading::{Reader, Show, Which};
use crate::render::table::{self, Cell, cell};
use crate::render::{text, time};
use atoll_core::id::SandboxId;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use summary::{Difference, Summary, Use, differences};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll compare sbx_… sbx_…
  atoll compare sbx_… sbx_… --json | jq .first_tool_difference")]
pub struct Compare {
    left: SandboxId,
    right: SandboxId,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(compare: &Compare, output: &Output) -> Result {
    let client = Client::find(&compare.connect)?;
    let left = summed_up(compare.left, &client, output).await?;
    let right = summed_up(compare.right, &client, output).await?;
    let (tool, input) = differences(&left.sequence, &right.sequence);
    if output.json {
        return output.object(&json!({
            "left": left,
            "right": right,
            "first_tool_difference": tool,
            "first_input_difference": input,
        }));
    }
    table::print(output, &["", "LEFT", "RIGHT"], &rows(&left, &right))?;
    output.line("")?;
    output.line(&parting("tools", "the same tools in the same order", tool.as_ref()))?;
    output.line(&parting("inputs", "the same inputs otherwise", input.as_ref()))
}

impl Show for Summary {
    fn entry(&mut self, entry: &Entry) -> Result {
        self.add(entry);
        Ok(())
    }

    fn truncated(&mut self, first_seq: i64, output: &Output) -> Result {
        self.first_seq = first_seq;
        output.note(&format!("events before {first_seq} of one side are no longer kept, and not counted"));
        Ok(())
    }
}

async fn summed_up(id: SandboxId, client: &Client, output: &Output) -> Result<Summary> {
    let mut summary = Summary::default();
    Reader::new(client, output, id, &Which::default())?.read(&mut summary).await?;
    summary.finish(&client.get(&format!("/sandboxes/{id}"), &[]).await?);
    Ok(summary)
}

fn rows(left: &Summary, right: &Summary) -> Vec<Vec<Cell>> {
    let both = |name: &str, shown: &dyn Fn(&Summary) -> String| vec![cell(name), cell(shown(left)), cell(shown(right))];
    let or_none = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let mut rows = vec![
        both("sandbox", &|side| side.id.clone()),
        both("state", &|side| side.state.clone()),
        both("outcome", &|side| or_none(&side.outcome)),
        both("reason", &|side| or_none(&side.reason)),
        both("agent", &|side| or_none(&side.agent)),
        both("model", &|side| or_none(&side.model)),
        both("duration", &|side| time::span(Duration::from_secs_f64(side.duration_s.max(0.0)))),
        both("turns", &|side| side.turns.to_string()),
        both("cost", &|side| format!("${:.4}", side.cost_usd)),
        both("events", &|side| side.events.to_string()),
    ];
    let count = |value: &u64| value.to_string();
    section(&mut rows, "", &left.events_by_type, &right.events_by_type, count);
    section(&mut rows, "tool ", &left.tools, &right.tools, count);
    section(&mut rows, "file ", &left.files, &right.files, |edits| {
        format!("{}× +{} -{}", edits.edits, edits.lines_added, edits.lines_removed)
    });
    rows
}

fn section<T>(
    rows: &mut Vec<Vec<Cell>>,
    before: &str,
    left: &BTreeMap<String, T>,
    right: &BTreeMap<String, T>,
    shown: impl Fn(&T) -> String,
) {
    let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let side = |of: &BTreeMap<String, T>, name: &String| cell(of.get(name).map_or_else(|| "-".to_owned(), &shown));
    for name in names {
        rows.push(vec![cell(format!("  {before}{}", text::clipped(name, 60))), side(left, name), side(right, name)]);
    }
}

fn parting(what: &str, same: &str, difference: Option<&Difference>) -> String {
    let Some(found) = difference else { return format!("{what}: {same}") };
    let side = |used: &Option<Use>| match used {
        Some(used) => text::clipped(&format!("{} {} (event {})", used.tool, used.input, used.seq), 100),
        None => "nothing more".to_owned(),
    };
    format!("{what}: first different at step {}: {} | {}", found.step, side(&found.left), side(&found.right))
}
