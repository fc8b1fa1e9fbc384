//! How much of something an agent may use before a person is asked.

use crate::bounds::{self, OutOfBounds, refuse};
use crate::sandbox::AgentLimits;
use crate::words;

words! {
    "limit"
    Limit {
        /// Turns of the sandbox.
        Turns = "turns",
        /// What models cost.
        CostUsd = "cost_usd",
        /// How long one turn takes.
        TurnS = "turn_s",
        /// How long nothing comes of a turn.
        NoProgressS = "no_progress_s",
        /// What models cost, of all sandboxes of the project.
        ProjectBudget = "project_budget",
    }
}

impl Limit {
    /// Counted by the server, whose word it is to hold an agent back and to let it go on.
    pub const fn is_money(self) -> bool {
        match self {
            Self::CostUsd | Self::ProjectBudget => true,
            Self::Turns | Self::TurnS | Self::NoProgressS => false,
        }
    }
}

/// The agent is warned when so much of a limit is used; of turns, when the last one begins.
pub const WARNED_AT: f64 = 0.8;

/// Who says what a limit has to say, as the sender of a message.
pub const SENDER: &str = "atoll:limits";

impl AgentLimits {
    pub fn of(&self, limit: Limit) -> Option<f64> {
        match limit {
            Limit::Turns => self.turns.map(f64::from),
            Limit::CostUsd => self.cost_usd,
            Limit::TurnS => self.turn_s.map(f64::from),
            Limit::NoProgressS => self.no_progress_s.map(f64::from),
            // The project's, and not the agent's own.
            Limit::ProjectBudget => None,
        }
    }

    /// A limit of nothing would let nothing begin, and nobody would know why.
    pub fn check(&self, field: &str) -> Result<(), OutOfBounds> {
        for (name, given) in [("turns", self.turns), ("turn_s", self.turn_s), ("no_progress_s", self.no_progress_s)] {
            if given == Some(0) {
                return refuse(&format!("{field}.{name}"), "must be above 0");
            }
        }
        match self.cost_usd {
            Some(cost) => bounds::amount(&format!("{field}.cost_usd"), cost, 1e6),
            None => Ok(()),
        }
    }
}

/// What an agent is told when most of a limit is used.
pub fn warning(limit: Limit, value: f64) -> String {
    match limit {
        Limit::Turns => {
            format!(
                "Atoll: this is the last of {value} turns. Finish what you can and say what is left; after it you are paused until a person allows more."
            )
        }
        Limit::CostUsd => {
            format!(
                "Atoll: most of this sandbox's ${value} for models is spent. Come to an end with what matters most; when it is used up you are paused until a person allows more."
            )
        }
        Limit::TurnS => {
            format!(
                "Atoll: most of the {value} seconds for this turn are over. Come to an end with what matters most; after them you are paused until a person allows more."
            )
        }
        Limit::NoProgressS => {
            format!(
                "Atoll: nothing has come of this turn for most of {value} seconds. If you wait for something, stop waiting and try another way; else you are paused until a person allows more."
            )
        }
        Limit::ProjectBudget => {
            format!(
                "Atoll: most of this project's ${value} for models is spent, by all of its sandboxes together. Come to an end with what matters most; when it is used up you are paused until there is more."
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_nothing_is_refused_by_name() {
        let none = AgentLimits { turns: Some(0), ..AgentLimits::default() };
        assert_eq!(none.check("limits").unwrap_err().to_string(), "limits.turns: must be above 0");
        let free = AgentLimits { cost_usd: Some(0.0), ..AgentLimits::default() };
        assert!(free.check("limits").unwrap_err().to_string().starts_with("limits.cost_usd"));
        assert!(AgentLimits::default().check("limits").is_ok());
    }

    #[test]
    fn every_limit_has_its_figure_and_its_words() {
        let all = AgentLimits { turns: Some(1), cost_usd: Some(2.0), turn_s: Some(3), no_progress_s: Some(4) };
        let figures: Vec<f64> = Limit::ALL.iter().filter_map(|limit| all.of(*limit)).collect();
        assert_eq!(figures, [1.0, 2.0, 3.0, 4.0]);
        for limit in Limit::ALL {
            let words = warning(*limit, 7.0);
            assert!(words.starts_with("Atoll: ") && words.contains('7') && words.contains("paused"), "{words}");
            assert!(!words.contains('\n'), "the demo agent reads lines");
        }
    }
}
