//! `atoll sandbox limits`, and how much a new sandbox's agent may use.

use crate::client::Client;
use crate::failure::Result;
use crate::output::Output;
use crate::render::fields::Fields;
use atoll_core::id::SandboxId;
use serde_json::{Map, Value, json};

/// How much a new sandbox's agent may use before it waits for a person.
#[derive(Debug, Clone, clap::Args)]
pub struct Allowance {
    /// Pause the agent after this many turns
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    turns: Option<u32>,
    /// Pause the agent when models have cost this much, in US dollars
    #[arg(long, value_name = "DOLLARS")]
    cost_usd: Option<f64>,
    /// Pause the agent when one turn takes this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    turn_s: Option<u32>,
    /// Pause the agent when nothing comes of a turn for this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    no_progress_s: Option<u32>,
}

impl Allowance {
    /// As the server takes it.
    pub fn body(&self) -> Option<Value> {
        let given = [
            ("turns", self.turns.map(Value::from)),
            ("cost_usd", self.cost_usd.map(Value::from)),
            ("turn_s", self.turn_s.map(Value::from)),
            ("no_progress_s", self.no_progress_s.map(Value::from)),
        ];
        let given: Map<String, Value> =
            given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        (!given.is_empty()).then_some(Value::Object(given))
    }
}

/// A figure, or `none` to take a limit away.
pub fn figure(text: &str) -> Result<Value, String> {
    match (text, text.parse::<u32>(), text.parse::<f64>()) {
        ("none", _, _) => Ok(Value::Null),
        (_, Ok(whole), _) if whole > 0 => Ok(whole.into()),
        (_, _, Ok(figure)) if figure > 0.0 && figure.is_finite() => Ok(json!(figure)),
        _ => Err("must be above 0, or `none`".to_owned()),
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox limits sbx_…                     what they are, what is used, and which one is reached
  atoll sandbox limits sbx_… --turns 20          an agent that waits for it goes on from there
  atoll sandbox limits sbx_… --cost-usd 5 --turn-s none

An agent is warned when most of a limit is used, and then paused until it is raised. It is never ended for one.")]
pub struct Limits {
    id: SandboxId,
    /// Turns, or `none`
    #[arg(long, value_name = "N", value_parser = figure)]
    turns: Option<Value>,
    /// What models may cost in US dollars, or `none`
    #[arg(long, value_name = "DOLLARS", value_parser = figure)]
    cost_usd: Option<Value>,
    /// Seconds that one turn may take, or `none`
    #[arg(long, value_name = "SECONDS", value_parser = figure)]
    turn_s: Option<Value>,
    /// Seconds without anything coming of a turn, or `none`
    #[arg(long, value_name = "SECONDS", value_parser = figure)]
    no_progress_s: Option<Value>,
}

pub async fn run(limits: &Limits, client: &Client, output: &Output) -> Result {
    let path = format!("/sandboxes/{}/limits", limits.id);
    let now = match wanted(limits) {
        Some(wanted) => client.patch(&path, &wanted).await?,
        None => client.get(&path, &[]).await?,
    };
    if output.json { output.object(&now) } else { show(&now, output) }
}

/// What to change; nothing where only a look is wanted.
fn wanted(limits: &Limits) -> Option<Value> {
    let given = [
        ("turns", &limits.turns),
        ("cost_usd", &limits.cost_usd),
        ("turn_s", &limits.turn_s),
        ("no_progress_s", &limits.no_progress_s),
    ];
    let given: Map<String, Value> =
        given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))).collect();
    (!given.is_empty()).then_some(Value::Object(given))
}

fn show(row: &Value, output: &Output) -> Result {
    let limit = |name: &str| match &row["limits"][name] {
        Value::Null => "none".to_owned(),
        value => value.to_string(),
    };
    Fields::new()
        .put("activity", row["activity"].as_str().unwrap_or_default())
        .maybe("paused by", &row["limit_paused"])
        .put("turns", format!("{} of {}", row["turns"], limit("turns")))
        .put("cost_usd", format!("{:.4} of {}", row["cost_usd"].as_f64().unwrap_or(0.0), limit("cost_usd")))
        .put("turn_s", limit("turn_s"))
        .put("no_progress_s", limit("no_progress_s"))
        .print(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_above_nothing_or_is_none() {
        assert_eq!(figure("5"), Ok(json!(5)));
        assert_eq!(figure("0.5"), Ok(json!(0.5)));
        assert_eq!(figure("none"), Ok(Value::Null));
        for wrong in ["0", "-1", "x", "", "inf", "nan"] {
            assert!(figure(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_what_is_named_is_changed() {
        let id = SandboxId::new();
        let limits =
            Limits { id, turns: Some(json!(3)), cost_usd: None, turn_s: Some(Value::Null), no_progress_s: None };
        assert_eq!(wanted(&limits), Some(json!({ "turns": 3, "turn_s": null })));
        let none = Limits { id, turns: None, cost_usd: None, turn_s: None, no_progress_s: None };
        assert_eq!(wanted(&none), None);
    }
}
