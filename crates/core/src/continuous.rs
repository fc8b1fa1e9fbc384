//! Continuous mode: after each run of the agent its work is checked, and failed checks go back to the agent.
//!
//! `next` is a pure transition function: it returns the new state and the effects. `check` evaluates checks and formats their results.

use crate::string_enum;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub mod check;
mod settings;
#[cfg(test)]
mod tests;

pub use settings::{Continuous, LoopLimits, MAX_CHECK_TIMEOUT_S, MAX_CHECKS, Requirement};

string_enum! {
    /// Phase of the loop.
    "continuous phase"
    LoopPhase {
        /// The agent works.
        Working = "working",
        /// The checks run.
        Validating = "validating",
        /// A run failed; the next one starts after a back-off.
        Resting = "resting",
        /// Every check passed.
        Passed = "passed",
        /// The loop ended without passing; `stopped` has the reason.
        Stopped = "stopped",
    }
}

string_enum! {
    /// Reason why the loop ended without passing.
    "stop reason"
    StopReason {
        Iterations = "iterations",
        Cost = "cost",
        Duration = "duration",
        /// Too many runs in a row failed.
        Errors = "errors",
        /// No check failed, but some check could not be decided.
        Undecided = "undecided",
        /// A user interrupted the agent.
        Interrupted = "interrupted",
        /// The sandbox ended for another reason.
        SandboxEnded = "sandbox_ended",
    }
}

/// State of the loop. Stored beside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoopProgress {
    pub phase: LoopPhase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<StopReason>,
    /// Number of the current run, from 1.
    pub iteration: u32,
    /// Number of failed runs in a row.
    pub errors: u32,
    /// Counts validations, so that a late result is recognised.
    pub round: u32,
    /// By the steady clock.
    pub started_at: Timestamp,
    /// Cost of the sandbox before the loop, in millionths of a dollar.
    pub cost_before: i64,
}

impl LoopProgress {
    pub const fn start_loop(measurements: LoopMeasurements) -> Self {
        Self {
            phase: LoopPhase::Working,
            stopped: None,
            iteration: 1,
            errors: 0,
            round: 0,
            started_at: measurements.steady_now,
            cost_before: measurements.cost_micros,
        }
    }

    pub const fn is_live(&self) -> bool {
        match self.phase {
            LoopPhase::Working | LoopPhase::Validating | LoopPhase::Resting => true,
            LoopPhase::Passed | LoopPhase::Stopped => false,
        }
    }

    /// Total cost of the sandbox at which the loop ends, in millionths of a dollar.
    ///
    /// It stays in force after the loop has ended for its cost until new work starts: the agent takes a while to stop.
    pub fn max_total_cost_micros(&self, limits: &LoopLimits) -> Option<i64> {
        let holds = self.is_live() || self.stopped == Some(StopReason::Cost);
        limits.max_cost_micros.filter(|_| holds).map(|cost| self.cost_before.saturating_add(cost))
    }
}

/// Measurements at the time of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopMeasurements {
    pub steady_now: Timestamp,
    /// Cost of the sandbox so far, in millionths of a dollar.
    pub cost_micros: i64,
}

string_enum! {
    /// Combined verdict of all checks of a round.
    "verdict"
    CheckVerdict { Passed = "passed", Failed = "failed", Unknown = "unknown" }
}

/// An input to the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopInput {
    /// The agent started to work, for any reason.
    RunBegan,
    /// The turn ended and the inbox is empty.
    RunEnded,
    /// The agent failed or crashed.
    RunFailed,
    /// The back-off after a failed run is over.
    BackOffEnded,
    /// The checks of this round have finished.
    ChecksFinished { round: u32, verdict: CheckVerdict },
    /// A user interrupted the agent.
    Interrupted,
    /// The loop's time limit has expired.
    DeadlineReached,
    /// The rest of the loop's cost limit does not cover another model request.
    CostLimitReached,
    /// The sandbox is ending for another reason.
    SandboxEnding,
}

/// An effect of a transition, as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopEffect {
    /// Run the checks.
    RunChecks,
    /// Cancel checks that may be running.
    CancelChecks,
    /// Continue after this back-off.
    BackOff(Duration),
    /// Send the failed checks to the agent, which starts another run.
    PromptAgent,
    /// End the loop.
    EndLoop,
}

/// Applies `input`. An input that does not fit the phase has no effect: inputs come from several sources and may cross.
pub fn next(
    from: &LoopProgress,
    input: LoopInput,
    measurements: LoopMeasurements,
    limits: &LoopLimits,
) -> (LoopProgress, Vec<LoopEffect>) {
    let mut to = from.clone();
    match (from.phase, input) {
        (LoopPhase::Working, LoopInput::RunEnded) => {
            to.phase = LoopPhase::Validating;
            to.round = from.round.saturating_add(1);
            to.errors = 0;
            (to, vec![LoopEffect::RunChecks])
        }
        (LoopPhase::Working | LoopPhase::Validating | LoopPhase::Resting, LoopInput::RunFailed) => {
            to.errors = from.errors.saturating_add(1);
            if to.errors >= limits.max_errors {
                return stop_loop(to, StopReason::Errors);
            }
            match limit_reached(&to, measurements, limits) {
                Some(reason) => stop_loop(to, reason),
                None => {
                    to.phase = LoopPhase::Resting;
                    let pause = Duration::from_secs(1 << (to.errors - 1).min(5));
                    (to, vec![LoopEffect::CancelChecks, LoopEffect::BackOff(pause)])
                }
            }
        }
        (LoopPhase::Resting, LoopInput::BackOffEnded) => {
            to.phase = LoopPhase::Working;
            to.iteration = from.iteration.saturating_add(1);
            (to, vec![LoopEffect::PromptAgent])
        }
        (LoopPhase::Validating, LoopInput::ChecksFinished { round, verdict }) if round == from.round => match verdict {
            CheckVerdict::Passed => {
                to.phase = LoopPhase::Passed;
                (to, vec![LoopEffect::EndLoop])
            }
            // The agent cannot do anything about an undecided check.
            CheckVerdict::Unknown => stop_loop(to, StopReason::Undecided),
            CheckVerdict::Failed => match limit_reached(&to, measurements, limits) {
                Some(reason) => stop_loop(to, reason),
                None => {
                    to.phase = LoopPhase::Working;
                    to.iteration = from.iteration.saturating_add(1);
                    (to, vec![LoopEffect::PromptAgent])
                }
            },
        },
        // A new message arrived: the work under validation is changing.
        (LoopPhase::Validating | LoopPhase::Resting, LoopInput::RunBegan) => {
            to.phase = LoopPhase::Working;
            (to, vec![LoopEffect::CancelChecks])
        }
        // Work after the end starts a new loop, except after a user's interrupt.
        (LoopPhase::Passed | LoopPhase::Stopped, LoopInput::RunBegan)
            if from.stopped != Some(StopReason::Interrupted) =>
        {
            let round = from.round;
            (LoopProgress { round, ..LoopProgress::start_loop(measurements) }, Vec::new())
        }
        (LoopPhase::Working | LoopPhase::Validating | LoopPhase::Resting, LoopInput::Interrupted) => {
            stop_loop(to, StopReason::Interrupted)
        }
        (LoopPhase::Working | LoopPhase::Validating | LoopPhase::Resting, LoopInput::SandboxEnding) => {
            stop_loop(to, StopReason::SandboxEnded)
        }
        (LoopPhase::Working | LoopPhase::Validating | LoopPhase::Resting, LoopInput::DeadlineReached)
            if measurements.steady_now >= from.started_at + limits.max_duration =>
        {
            stop_loop(to, StopReason::Duration)
        }
        // A running validation may still pass.
        (LoopPhase::Working | LoopPhase::Resting, LoopInput::CostLimitReached) if limits.max_cost_micros.is_some() => {
            stop_loop(to, StopReason::Cost)
        }
        (
            LoopPhase::Working | LoopPhase::Validating | LoopPhase::Resting | LoopPhase::Passed | LoopPhase::Stopped,
            LoopInput::RunBegan
            | LoopInput::RunEnded
            | LoopInput::RunFailed
            | LoopInput::BackOffEnded
            | LoopInput::ChecksFinished { .. }
            | LoopInput::Interrupted
            | LoopInput::DeadlineReached
            | LoopInput::CostLimitReached
            | LoopInput::SandboxEnding,
        ) => (to, Vec::new()),
    }
}

/// Returns the limit that forbids another run.
fn limit_reached(progress: &LoopProgress, measurements: LoopMeasurements, limits: &LoopLimits) -> Option<StopReason> {
    if progress.iteration >= limits.max_iterations {
        return Some(StopReason::Iterations);
    }
    if limits.max_cost_micros.is_some_and(|most| measurements.cost_micros.saturating_sub(progress.cost_before) >= most)
    {
        return Some(StopReason::Cost);
    }
    (measurements.steady_now >= progress.started_at + limits.max_duration).then_some(StopReason::Duration)
}

fn stop_loop(mut progress: LoopProgress, reason: StopReason) -> (LoopProgress, Vec<LoopEffect>) {
    progress.phase = LoopPhase::Stopped;
    progress.stopped = Some(reason);
    (progress, vec![LoopEffect::CancelChecks, LoopEffect::EndLoop])
}

/// Describes the stop reason, for the event and the sandbox's row.
pub fn describe_stop(stop: StopReason, progress: &LoopProgress, limits: &LoopLimits) -> String {
    match stop {
        StopReason::Iterations => format!("the checks still fail after {} runs (the limit)", progress.iteration),
        StopReason::Cost => {
            let most = limits.max_cost_micros.map_or(0.0, |micros| micros as f64 / 1e6);
            format!(
                "the checks have not passed, and the rest of the ${most} limit for models is too small for another request"
            )
        }
        StopReason::Duration => {
            format!("the checks have not passed within {} s (the limit)", limits.max_duration.as_secs())
        }
        StopReason::Errors => format!("{} runs in a row failed (the limit)", progress.errors),
        StopReason::Undecided => "no check failed, but at least one could not be decided".to_owned(),
        StopReason::Interrupted => "a user interrupted the agent".to_owned(),
        StopReason::SandboxEnded => "the sandbox ended".to_owned(),
    }
}
