//! Working until it is done: after each run of the agent its work is checked, and what fails goes back to it.
//!
//! `next` is one pure function: where an input leads, and which effects follow. What is checked and said is `check`.

use crate::time::Timestamp;
use crate::words;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub mod check;
mod settings;
#[cfg(test)]
mod tests;

pub use settings::{Continuous, LONGEST_CHECK_S, Limits, MOST_CHECKS, Requirement};

words! {
    /// Where the loop is.
    "continuous phase"
    Phase {
        /// The agent works.
        Working = "working",
        /// Its work is being checked.
        Validating = "validating",
        /// A run failed; the next one begins after a while.
        Resting = "resting",
        /// Every check passed.
        Passed = "passed",
        /// It ended before that; `stopped` says why.
        Stopped = "stopped",
    }
}

words! {
    /// Why the loop ended without having passed.
    "continuous stop"
    Stop {
        Iterations = "iterations",
        Cost = "cost",
        Duration = "duration",
        /// So many runs in a row failed.
        Errors = "errors",
        /// Nothing failed, but some check could not be decided.
        Undecided = "undecided",
        /// A person interrupted the agent.
        Interrupted = "interrupted",
        /// The sandbox was ended by somebody or something else.
        SandboxEnded = "sandbox_ended",
    }
}

/// How far it is. Stored beside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Progress {
    pub phase: Phase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stop>,
    /// Which run of the agent this is, from 1.
    pub iteration: u32,
    /// Runs in a row that failed.
    pub errors: u32,
    /// Counts validations, so that one that comes too late is known.
    pub round: u32,
    /// By the steady clock.
    pub started_at: Timestamp,
    /// What the sandbox had cost before, in millionths of a dollar.
    pub cost_before: i64,
}

impl Progress {
    pub const fn begin(facts: Facts) -> Self {
        Self {
            phase: Phase::Working,
            stopped: None,
            iteration: 1,
            errors: 0,
            round: 0,
            started_at: facts.steady,
            cost_before: facts.cost,
        }
    }

    pub const fn is_live(&self) -> bool {
        match self.phase {
            Phase::Working | Phase::Validating | Phase::Resting => true,
            Phase::Passed | Phase::Stopped => false,
        }
    }

    /// What the sandbox may have cost in all before the loop ends, in millionths of a dollar. Where it ended for that,
    /// it holds until there is other work: the agent takes a while to stop.
    pub fn most(&self, limits: &Limits) -> Option<i64> {
        let holds = self.is_live() || self.stopped == Some(Stop::Cost);
        limits.cost.filter(|_| holds).map(|cost| self.cost_before.saturating_add(cost))
    }
}

/// What is so at the moment of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub steady: Timestamp,
    /// Of the sandbox until now, in millionths of a dollar.
    pub cost: i64,
}

words! {
    /// What all checks of a round say together.
    "verdict"
    Verdict { Passed = "passed", Failed = "failed", Unknown = "unknown" }
}

/// What happens to a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The agent began to work, whoever told it to.
    RunBegan,
    /// Its turn ended and nothing is queued.
    RunEnded,
    /// The agent failed, crashed or gave up.
    RunFailed,
    /// The pause after a failed run is over.
    Rested,
    /// The checks of this round were made.
    Checked { round: u32, verdict: Verdict },
    /// A person interrupted it.
    Interrupted,
    /// Its time is over.
    Deadline,
    /// Nothing that it could ask of a model fits into what is left of its money.
    SpentOut,
    /// The sandbox is ending for another reason.
    SandboxEnds,
}

/// What follows, as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Check the work.
    Validate,
    /// Checks that may be under way are of no use any more.
    Abandon,
    /// Go on after this.
    Rest(Duration),
    /// Tell the agent what failed; it begins another run.
    Tell,
    /// It is over.
    Finish,
}

/// Where `input` leads. What makes no sense in a phase changes nothing: inputs come from several sides and may cross.
pub fn next(from: &Progress, input: Input, facts: Facts, limits: &Limits) -> (Progress, Vec<Effect>) {
    let mut to = from.clone();
    match (from.phase, input) {
        (Phase::Working, Input::RunEnded) => {
            to.phase = Phase::Validating;
            to.round = from.round.saturating_add(1);
            to.errors = 0;
            (to, vec![Effect::Validate])
        }
        (Phase::Working | Phase::Validating | Phase::Resting, Input::RunFailed) => {
            to.errors = from.errors.saturating_add(1);
            if to.errors >= limits.errors {
                return stop(to, Stop::Errors);
            }
            match limit_reached(&to, facts, limits) {
                Some(reason) => stop(to, reason),
                None => {
                    to.phase = Phase::Resting;
                    let pause = Duration::from_secs(1 << (to.errors - 1).min(5));
                    (to, vec![Effect::Abandon, Effect::Rest(pause)])
                }
            }
        }
        (Phase::Resting, Input::Rested) => {
            to.phase = Phase::Working;
            to.iteration = from.iteration.saturating_add(1);
            (to, vec![Effect::Tell])
        }
        (Phase::Validating, Input::Checked { round, verdict }) if round == from.round => match verdict {
            Verdict::Passed => {
                to.phase = Phase::Passed;
                (to, vec![Effect::Finish])
            }
            // The agent could do nothing about it.
            Verdict::Unknown => stop(to, Stop::Undecided),
            Verdict::Failed => match limit_reached(&to, facts, limits) {
                Some(reason) => stop(to, reason),
                None => {
                    to.phase = Phase::Working;
                    to.iteration = from.iteration.saturating_add(1);
                    (to, vec![Effect::Tell])
                }
            },
        },
        // Somebody told it more: what was to be checked is changing.
        (Phase::Validating | Phase::Resting, Input::RunBegan) => {
            to.phase = Phase::Working;
            (to, vec![Effect::Abandon])
        }
        // Work after the end is work of its own; but whoever took over by an interrupt has it.
        (Phase::Passed | Phase::Stopped, Input::RunBegan) if from.stopped != Some(Stop::Interrupted) => {
            let round = from.round;
            (Progress { round, ..Progress::begin(facts) }, Vec::new())
        }
        (Phase::Working | Phase::Validating | Phase::Resting, Input::Interrupted) => stop(to, Stop::Interrupted),
        (Phase::Working | Phase::Validating | Phase::Resting, Input::SandboxEnds) => stop(to, Stop::SandboxEnded),
        (Phase::Working | Phase::Validating | Phase::Resting, Input::Deadline)
            if facts.steady >= from.started_at + limits.duration =>
        {
            stop(to, Stop::Duration)
        }
        // What is being checked may still pass.
        (Phase::Working | Phase::Resting, Input::SpentOut) if limits.cost.is_some() => stop(to, Stop::Cost),
        (
            Phase::Working | Phase::Validating | Phase::Resting | Phase::Passed | Phase::Stopped,
            Input::RunBegan
            | Input::RunEnded
            | Input::RunFailed
            | Input::Rested
            | Input::Checked { .. }
            | Input::Interrupted
            | Input::Deadline
            | Input::SpentOut
            | Input::SandboxEnds,
        ) => (to, Vec::new()),
    }
}

/// Whether another run would be one too many.
fn limit_reached(progress: &Progress, facts: Facts, limits: &Limits) -> Option<Stop> {
    if progress.iteration >= limits.iterations {
        return Some(Stop::Iterations);
    }
    if limits.cost.is_some_and(|most| facts.cost.saturating_sub(progress.cost_before) >= most) {
        return Some(Stop::Cost);
    }
    (facts.steady >= progress.started_at + limits.duration).then_some(Stop::Duration)
}

fn stop(mut progress: Progress, reason: Stop) -> (Progress, Vec<Effect>) {
    progress.phase = Phase::Stopped;
    progress.stopped = Some(reason);
    (progress, vec![Effect::Abandon, Effect::Finish])
}

/// The reason in words, for the event and the sandbox's row.
pub fn sentence(stop: Stop, progress: &Progress, limits: &Limits) -> String {
    match stop {
        Stop::Iterations => format!("the checks still fail after {} runs, which is the limit", progress.iteration),
        Stop::Cost => {
            let most = limits.cost.map_or(0.0, |micros| micros as f64 / 1e6);
            format!("the checks have not passed, and ${most} for models has no room for more, which is the limit")
        }
        Stop::Duration => {
            format!("the checks have not passed within {} s, which is the limit", limits.duration.as_secs())
        }
        Stop::Errors => format!("{} runs in a row failed, which is the limit", progress.errors),
        Stop::Undecided => {
            "no check failed, but not all of them could be decided, and unknown is not passed".to_owned()
        }
        Stop::Interrupted => "a person interrupted it".to_owned(),
        Stop::SandboxEnded => "the sandbox was ended".to_owned(),
    }
}
