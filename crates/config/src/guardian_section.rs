//! The section `guardian`: thresholds of the detectors, bounds of the actions, and the judge.

use crate::format::{Integer, SWITCH, TEXT, TIME, TIME_OR_ZERO};
use crate::key::section;
use crate::sections::Config;
use atoll_core::guardian::{PolicyRules, Thresholds};
use std::time::Duration;

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

section! {
    /// The guardian. Projects can change the thresholds.
    Guardian at [guardian] {
        /// Let the guardian watch agents; it only observes unless a project allows more
        enabled: bool = true => SWITCH;
        /// Finding: equal tool calls in a row with equal results
        repeated_calls: u32 = 5 => Integer(2, 1000);
        /// Finding: equal errors within the last 24 results
        repeated_errors: u32 = 6 => Integer(2, 24);
        /// Finding: rounds of two calls in turn with equal results
        alternations: u32 = 5 => Integer(2, 1000);
        /// Finding: texts in a row without a tool call
        texts_without_action: u32 = 8 => Integer(1, 1000);
        /// Finding: edits of one file that undo an earlier one
        undone_edits: u32 = 4 => Integer(1, 1000);
        /// Finding: test runs in a row that are worse than the best one and no better than the last
        worse_test_runs: u32 = 3 => Integer(1, 1000);
        /// Finding: minutes of work without a changed file
        minutes_without_change: u32 = 30 => Integer(1, 100_000);
        /// Finding: changed files that are not the task's
        outside_files: u32 = 1 => Integer(1, 1000);
        /// Finding: model cost in US dollars per hour, measured over ten minutes
        cost_usd_per_hour: u32 = 30 => Integer(1, 1_000_000);
        /// Finding: thousands of tokens per hour, without those read from a cache
        kilotokens_per_hour: u32 = 20_000 => Integer(1, 1_000_000);
        /// Finding: percent of the context window that a prompt fills
        context_percent: u32 = 90 => Integer(1, 100);
        /// Time between two nudges to the same agent
        nudge_cool_down: Duration = Duration::from_secs(30) => TIME_OR_ZERO;
        /// Time between two interrupts or pauses of the same agent
        action_cool_down: Duration = minutes(5) => TIME_OR_ZERO;
        /// Maximum nudges per sandbox
        max_nudges: u32 = 10 => Integer(0, 1000);
        /// Maximum interrupts and maximum pauses per sandbox
        max_actions: u32 = 3 => Integer(0, 1000);
        /// Model of the judge, from `models`; if unset, there is no judge
        judge_model: Option<String> = None => TEXT, sample("claude-haiku-5-5");
        /// Time between two judgements of the same agent
        judge_interval: Duration = minutes(1) => TIME;
        /// Maximum judgements at the same time
        judge_concurrency: usize = 5 => Integer(1, 100);
    }
}

impl Guardian {
    pub const fn thresholds(&self) -> Thresholds {
        Thresholds {
            repeated_calls: self.repeated_calls,
            repeated_errors: self.repeated_errors,
            alternations: self.alternations,
            texts_without_action: self.texts_without_action,
            undone_edits: self.undone_edits,
            worse_test_runs: self.worse_test_runs,
            minutes_without_change: self.minutes_without_change,
            outside_files: self.outside_files,
            cost_usd_per_hour: self.cost_usd_per_hour,
            kilotokens_per_hour: self.kilotokens_per_hour,
            context_percent: self.context_percent,
        }
    }

    pub fn policy_rules(&self) -> PolicyRules {
        PolicyRules {
            nudge_cool_down: self.nudge_cool_down,
            action_cool_down: self.action_cool_down,
            max_nudges: self.max_nudges,
            max_actions: self.max_actions,
            ..PolicyRules::default()
        }
    }
}
