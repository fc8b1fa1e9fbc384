//! The flags of an agent's limits.

use atoll_core::sandbox::AgentLimits;

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitFlags {
    /// Pause the agent after this many turns
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    turns: Option<u32>,
    /// Pause the agent at this model cost, in US dollars
    #[arg(long, value_name = "DOLLARS")]
    cost_usd: Option<f64>,
    /// Pause the agent when a turn takes this long
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    turn_s: Option<u32>,
    /// Pause the agent when a turn makes no progress for this long
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    no_progress_s: Option<u32>,
}

impl LimitFlags {
    /// The limits of the request; `None` without any flag.
    pub fn settings(&self) -> Option<AgentLimits> {
        let Self { turns, cost_usd, turn_s, no_progress_s } = *self;
        let limits = AgentLimits { turns, cost_usd, turn_s, no_progress_s };
        (limits != AgentLimits::default()).then_some(limits)
    }
}
