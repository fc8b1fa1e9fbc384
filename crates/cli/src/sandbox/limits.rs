//! `atoll sandbox limits`.

use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use crate::render::cost::format_cost;
use crate::render::fields::Fields;
use atoll_api::{ChangeLimits, SandboxLimits};
use std::fmt::Display;
use std::str::FromStr;

/// A number above 0, or `none` to remove a limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitValue(Option<f64>);

impl LimitValue {
    pub const fn value(self) -> Option<f64> {
        self.0
    }
}

impl FromStr for LimitValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse::<f64>()) {
            ("none", _) => Ok(Self(None)),
            (_, Ok(number)) if number > 0.0 && number.is_finite() => Ok(Self(Some(number))),
            _ => Err("expected a number above 0, or `none`".to_owned()),
        }
    }
}

/// A whole number above 0, or `none` to remove a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitCount(Option<u32>);

impl FromStr for LimitCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse::<u32>()) {
            ("none", _) => Ok(Self(None)),
            (_, Ok(number)) if number > 0 => Ok(Self(Some(number))),
            _ => Err("expected a whole number above 0, or `none`".to_owned()),
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox limits sbx_…                     show the limits and their use
  atoll sandbox limits sbx_… --turns 20          raise a limit; a paused agent continues
  atoll sandbox limits sbx_… --cost-usd 5 --turn-s none

An agent gets a warning near a limit and is paused at the limit until it is raised. No limit ends an agent.")]
pub struct Limits {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
    /// Maximum number of turns, or `none`
    #[arg(long, value_name = "N")]
    turns: Option<LimitCount>,
    /// Maximum model cost in US dollars, or `none`
    #[arg(long, value_name = "DOLLARS")]
    cost_usd: Option<LimitValue>,
    /// Maximum duration of a turn, or `none`
    #[arg(long, value_name = "SECONDS")]
    turn_s: Option<LimitCount>,
    /// Maximum time without progress in a turn, or `none`
    #[arg(long, value_name = "SECONDS")]
    no_progress_s: Option<LimitCount>,
}

pub async fn run(limits: &Limits, client: &ConnectedClient, output: &Output) -> Result {
    let id = limits.id.resolve(client).await?;
    let current = match requested_change(limits) {
        Some(change) => client.change_limits(id, &change).await?,
        None => client.get_limits(id).await?,
    };
    if output.json { output.print_response(&current) } else { limit_fields(&current).print(output) }
}

/// The changed limits; `None` if the command only shows the current ones.
fn requested_change(limits: &Limits) -> Option<ChangeLimits> {
    let Limits { turns, cost_usd, turn_s, no_progress_s, .. } = limits;
    let has_change = turns.is_some() || cost_usd.is_some() || turn_s.is_some() || no_progress_s.is_some();
    has_change.then(|| ChangeLimits {
        turns: turns.map(|limit| limit.0),
        cost_usd: cost_usd.map(|limit| limit.0),
        turn_s: turn_s.map(|limit| limit.0),
        no_progress_s: no_progress_s.map(|limit| limit.0),
    })
}

fn limit_fields(current: &SandboxLimits) -> Fields {
    let limits = &current.limits;
    Fields::new()
        .field("activity", current.activity)
        .optional("paused by", current.limit_paused)
        .field("turns", format!("{} of {}", current.turns, or_none(limits.turns)))
        .field("cost_usd", format!("{} of {}", describe_cost(current), or_none(limits.cost_usd)))
        .field("turn_s", or_none(limits.turn_s))
        .field("no_progress_s", or_none(limits.no_progress_s))
}

fn describe_cost(current: &SandboxLimits) -> String {
    format_cost(current.cost_usd, current.cost_source).replace('$', "")
}

fn or_none(limit: Option<impl Display>) -> String {
    limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_limit_is_above_zero_or_none() {
        assert_eq!("0.5".parse(), Ok(LimitValue(Some(0.5))));
        assert_eq!("none".parse(), Ok(LimitValue(None)));
        assert_eq!("5".parse(), Ok(LimitCount(Some(5))));
        for wrong in ["0", "-1", "x", "", "inf", "nan"] {
            assert!(wrong.parse::<LimitValue>().is_err() && wrong.parse::<LimitCount>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn changes_only_the_given_limits() {
        let none =
            Limits { id: "last".parse().unwrap(), turns: None, cost_usd: None, turn_s: None, no_progress_s: None };
        assert!(requested_change(&none).is_none());
        let limits = Limits { turns: Some(LimitCount(Some(3))), turn_s: Some(LimitCount(None)), ..none };
        let change = serde_json::to_value(requested_change(&limits).unwrap()).unwrap();
        assert_eq!(change, json!({ "turns": 3, "turn_s": null }));
    }
}
