//! The life of a sandbox as one pure function.
//!
//! `next` says where a trigger leads from a phase and which effects follow. The caller stores the
//! new phase, the event and the effects in one transaction; effects run after the commit.

use crate::sandbox::{Outcome, SandboxState};

#[cfg(test)]
mod tests;

/// The state, and while completing also what the sandbox will end as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phase {
    pub state: SandboxState,
    pub ending: Option<Outcome>,
}

impl Phase {
    pub const fn of(state: SandboxState) -> Self {
        Self { state, ending: None }
    }
}

/// What can happen to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// A provider was asked to make it.
    ProviderAsked,
    /// The worker's first heartbeat arrived.
    FirstHeartbeat,
    /// Provider or source error, or no heartbeat in time.
    CreationFailed,
    /// The turn ended and nothing is queued.
    WorkDone,
    /// A limit ended the work before it was done: what there is of it is taken out nevertheless.
    WorkUnfinished,
    /// A person ended it and wants the results; `work_was_done` when the last turn had completed by itself.
    StopTaking { work_was_done: bool },
    /// A person ended it without the results.
    StopDiscarding { work_was_done: bool },
    /// The agent failed or crashed for good, time ran out, the sandbox was lost, the guardian ended it.
    WorkFailed,
    /// The results are out.
    ResultsOut,
    /// Taking the results out failed.
    ResultsFailed,
    /// A person wants what is left in a failed sandbox; `results_had_failed` when that was why it failed.
    Recover { results_had_failed: bool },
}

/// What follows a transition, as data: the store writes these as jobs beside the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Fail the sandbox if no heartbeat arrives in the provider's create timeout.
    WatchCreation,
    /// Fail the sandbox when its own timeout runs out.
    WatchTimeout,
    /// Take the results out; without a repository: wait for the worker's flush, or its grace.
    TakeResults,
    /// Remove the provider's sandbox now.
    RemoveNow,
    /// Remove the provider's sandbox when `keep_failed_for` is over.
    RemoveLater,
    /// End the worker's token when its draining time is over.
    WatchDrain,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    pub to: Phase,
    /// Set when the sandbox has ended.
    pub outcome: Option<Outcome>,
    pub effects: Vec<Effect>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sandbox that is {from} can't go on by {trigger:?}")]
pub struct Illegal {
    pub from: SandboxState,
    pub trigger: Trigger,
}

fn to(state: SandboxState, effects: &[Effect]) -> Result<Transition, Illegal> {
    Ok(Transition { to: Phase::of(state), outcome: None, effects: effects.to_vec() })
}

fn completing(ending: Outcome) -> Result<Transition, Illegal> {
    let phase = Phase { state: SandboxState::Completing, ending: Some(ending) };
    Ok(Transition { to: phase, outcome: None, effects: vec![Effect::TakeResults] })
}

fn ended(outcome: Outcome) -> Result<Transition, Illegal> {
    let (state, removal) = match outcome {
        Outcome::Succeeded | Outcome::Cancelled => (SandboxState::Completed, Effect::RemoveNow),
        Outcome::Failed => (SandboxState::Failed, Effect::RemoveLater),
    };
    let effects = vec![removal, Effect::WatchDrain];
    Ok(Transition { to: Phase::of(state), outcome: Some(outcome), effects })
}

const fn stopped(work_was_done: bool) -> Outcome {
    if work_was_done { Outcome::Succeeded } else { Outcome::Cancelled }
}

/// Where `trigger` leads from `phase`.
pub fn next(phase: Phase, trigger: Trigger) -> Result<Transition, Illegal> {
    use SandboxState as S;
    use Trigger as T;
    match (phase.state, trigger) {
        (S::Pending, T::ProviderAsked) => to(S::Creating, &[Effect::WatchCreation]),
        (S::Creating, T::FirstHeartbeat) => to(S::Running, &[Effect::WatchTimeout]),
        (S::Creating, T::CreationFailed) => ended(Outcome::Failed),
        (S::Running, T::WorkDone) => completing(Outcome::Succeeded),
        (S::Running, T::WorkUnfinished) => completing(Outcome::Failed),
        (S::Running, T::StopTaking { work_was_done }) => completing(stopped(work_was_done)),
        (S::Running, T::WorkFailed) => ended(Outcome::Failed),
        // Nothing was made yet that could be taken out.
        (S::Pending | S::Creating, T::StopTaking { .. } | T::StopDiscarding { .. }) => ended(Outcome::Cancelled),
        (S::Running, T::StopDiscarding { work_was_done }) => ended(stopped(work_was_done)),
        (S::Completing, T::StopDiscarding { .. }) => ended(Outcome::Cancelled),
        (S::Completing, T::ResultsOut) => ended(phase.ending.unwrap_or(Outcome::Succeeded)),
        (S::Completing, T::ResultsFailed) => ended(Outcome::Failed),
        (S::Failed, T::Recover { results_had_failed }) => {
            completing(if results_had_failed { Outcome::Succeeded } else { Outcome::Failed })
        }
        (
            from @ (S::Pending | S::Creating | S::Running | S::Completing | S::Completed | S::Failed),
            trigger @ (T::ProviderAsked
            | T::FirstHeartbeat
            | T::CreationFailed
            | T::WorkDone
            | T::WorkUnfinished
            | T::StopTaking { .. }
            | T::StopDiscarding { .. }
            | T::WorkFailed
            | T::ResultsOut
            | T::ResultsFailed
            | T::Recover { .. }),
        ) => Err(Illegal { from, trigger }),
    }
}
