//! Usage limits of an agent. When one is reached, the agent is paused until a user allows more.

use crate::bounds::{self, OutOfBounds, reject_field};
use crate::sandbox::AgentLimits;
use crate::string_enum;

string_enum! {
    "limit"
    Limit {
        /// Number of turns of the sandbox.
        Turns = "turns",
        /// Model costs of the sandbox.
        CostUsd = "cost_usd",
        /// Duration of one turn.
        TurnS = "turn_s",
        /// Time without progress within a turn.
        NoProgressS = "no_progress_s",
        /// Model costs of all sandboxes of the project.
        ProjectBudget = "project_budget",
    }
}

impl Limit {
    /// True for limits on money, which the server counts: only the server pauses and resumes the agent for them.
    pub const fn is_money(self) -> bool {
        match self {
            Self::CostUsd | Self::ProjectBudget => true,
            Self::Turns | Self::TurnS | Self::NoProgressS => false,
        }
    }
}

/// Fraction of a limit at which the agent gets a warning. For turns, the warning comes when the last one starts.
pub const WARNING_FRACTION: f64 = 0.8;

/// Sender of limit warnings.
pub const LIMITS_SENDER: &str = "atoll:limits";

impl AgentLimits {
    pub fn value_of(&self, limit: Limit) -> Option<f64> {
        match limit {
            Limit::Turns => self.turns.map(f64::from),
            Limit::CostUsd => self.cost_usd,
            Limit::TurnS => self.turn_s.map(f64::from),
            Limit::NoProgressS => self.no_progress_s.map(f64::from),
            // A project setting, not one of the sandbox's limits.
            Limit::ProjectBudget => None,
        }
    }

    /// Rejects a limit of zero: the agent could never start, without an obvious reason.
    pub fn check_bounds(&self, field: &str) -> Result<(), OutOfBounds> {
        for (name, value) in [("turns", self.turns), ("turn_s", self.turn_s), ("no_progress_s", self.no_progress_s)] {
            if value == Some(0) {
                return reject_field(&format!("{field}.{name}"), "must be above 0");
            }
        }
        match self.cost_usd {
            Some(cost) => bounds::check_amount(&format!("{field}.cost_usd"), cost, 1e6),
            None => Ok(()),
        }
    }
}

/// Builds the warning to an agent that has used most of a limit.
pub fn warning_message(limit: Limit, value: f64) -> String {
    match limit {
        Limit::Turns => {
            format!(
                "Atoll: this is the last of {value} turns. Finish what you can and report what is left; after it you are paused until a person allows more."
            )
        }
        Limit::CostUsd => {
            format!(
                "Atoll: most of this sandbox's ${value} for models is spent. Finish the most important work; when it is used up you are paused until a person allows more."
            )
        }
        Limit::TurnS => {
            format!(
                "Atoll: most of the {value} seconds for this turn are over. Finish the most important work; after them you are paused until a person allows more."
            )
        }
        Limit::NoProgressS => {
            format!(
                "Atoll: this turn has made no progress for most of {value} seconds. If you wait for something, stop waiting and try another way; otherwise you are paused until a person allows more."
            )
        }
        Limit::ProjectBudget => {
            format!(
                "Atoll: most of this project's ${value} for models is spent, by all of its sandboxes together. Finish the most important work; when it is used up you are paused until there is more."
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_a_limit_of_zero() {
        let none = AgentLimits { turns: Some(0), ..AgentLimits::default() };
        assert_eq!(none.check_bounds("limits").unwrap_err().to_string(), "limits.turns: must be above 0");
        let free = AgentLimits { cost_usd: Some(0.0), ..AgentLimits::default() };
        assert!(free.check_bounds("limits").unwrap_err().to_string().starts_with("limits.cost_usd"));
        assert!(AgentLimits::default().check_bounds("limits").is_ok());
    }

    #[test]
    fn every_agent_limit_has_a_value_and_every_limit_a_warning() {
        let all = AgentLimits { turns: Some(1), cost_usd: Some(2.0), turn_s: Some(3), no_progress_s: Some(4) };
        let figures: Vec<f64> = Limit::ALL.iter().filter_map(|limit| all.value_of(*limit)).collect();
        assert_eq!(figures, [1.0, 2.0, 3.0, 4.0]);
        for limit in Limit::ALL {
            let words = warning_message(*limit, 7.0);
            assert!(words.starts_with("Atoll: ") && words.contains('7') && words.contains("paused"), "{words}");
            assert!(!words.contains('\n'), "the demo agent reads lines");
        }
    }
}
