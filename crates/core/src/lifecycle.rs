//! The sandbox lifecycle as one pure function.
//!
//! `next` returns the phase that a trigger leads to, and the effects. The caller stores the new phase, the event and
//! the effects in one transaction; the effects run after the commit.

use crate::sandbox::{Outcome, SandboxState};

#[cfg(test)]
mod tests;

/// The state, and while completing also the pending outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifecyclePhase {
    pub state: SandboxState,
    pub pending_outcome: Option<Outcome>,
}

impl LifecyclePhase {
    pub const fn from_state(state: SandboxState) -> Self {
        Self { state, pending_outcome: None }
    }
}

/// An input to the sandbox lifecycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// The server has requested the sandbox from a provider.
    CreationRequested,
    /// The worker's first heartbeat arrived.
    FirstHeartbeat,
    /// The provider or the source failed, or no heartbeat arrived in time.
    CreationFailed,
    /// The project's set-up failed in the sandbox.
    SetupFailed,
    /// The turn ended and the inbox is empty.
    WorkDone,
    /// A limit ended the work early. The results are still collected.
    WorkUnfinished,
    /// A user stopped the sandbox and wants the results; `work_was_done` if the last turn had completed normally.
    StopAndExport { work_was_done: bool },
    /// A user stopped the sandbox and discards the results.
    StopAndDiscard { work_was_done: bool },
    /// The agent failed permanently, the timeout expired, the sandbox was lost, or the guardian stopped it.
    WorkFailed,
    /// The results have been collected.
    ResultsExported,
    /// Collecting the results failed.
    ResultsFailed,
    /// A user recovers the results of a failed sandbox; `results_had_failed` if that was the cause of the failure.
    Recover { results_had_failed: bool },
}

/// An effect of a transition, as data: the store writes effects as jobs beside the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifecycleEffect {
    /// Fail the sandbox if no heartbeat arrives within the provider's create timeout.
    StartCreateTimeout,
    /// Fail the sandbox when its own timeout expires.
    StartSandboxTimeout,
    /// Collect the results. Without a repository: wait for the worker's flush, up to the grace period.
    ExportResults,
    /// Remove the provider's sandbox now.
    RemoveNow,
    /// Remove the provider's sandbox after `keep_failed_for`.
    RemoveLater,
    /// Revoke the worker's token when the drain period ends.
    StartDrainTimeout,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    pub to: LifecyclePhase,
    /// Set when the sandbox has ended.
    pub outcome: Option<Outcome>,
    pub effects: Vec<LifecycleEffect>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("illegal transition: {trigger:?} in state {from}")]
pub struct IllegalTransition {
    pub from: SandboxState,
    pub trigger: Trigger,
}

fn move_to(state: SandboxState, effects: &[LifecycleEffect]) -> Result<Transition, IllegalTransition> {
    Ok(Transition { to: LifecyclePhase::from_state(state), outcome: None, effects: effects.to_vec() })
}

fn begin_completing(ending: Outcome) -> Result<Transition, IllegalTransition> {
    let phase = LifecyclePhase { state: SandboxState::Completing, pending_outcome: Some(ending) };
    Ok(Transition { to: phase, outcome: None, effects: vec![LifecycleEffect::ExportResults] })
}

fn end_with(outcome: Outcome) -> Result<Transition, IllegalTransition> {
    let (state, removal) = match outcome {
        Outcome::Succeeded | Outcome::Cancelled => (SandboxState::Completed, LifecycleEffect::RemoveNow),
        Outcome::Failed => (SandboxState::Failed, LifecycleEffect::RemoveLater),
    };
    let effects = vec![removal, LifecycleEffect::StartDrainTimeout];
    Ok(Transition { to: LifecyclePhase::from_state(state), outcome: Some(outcome), effects })
}

/// Fails without results: the event has the output, and no agent has worked on the files.
fn end_without_files() -> Result<Transition, IllegalTransition> {
    let effects = vec![LifecycleEffect::RemoveNow, LifecycleEffect::StartDrainTimeout];
    Ok(Transition { to: LifecyclePhase::from_state(SandboxState::Failed), outcome: Some(Outcome::Failed), effects })
}

const fn outcome_of_stop(work_was_done: bool) -> Outcome {
    if work_was_done { Outcome::Succeeded } else { Outcome::Cancelled }
}

/// Applies `trigger` to `phase`.
pub fn next(phase: LifecyclePhase, trigger: Trigger) -> Result<Transition, IllegalTransition> {
    use SandboxState as S;
    use Trigger as T;
    match (phase.state, trigger) {
        (S::Pending, T::CreationRequested) => move_to(S::Creating, &[LifecycleEffect::StartCreateTimeout]),
        (S::Creating, T::FirstHeartbeat) => move_to(S::Running, &[LifecycleEffect::StartSandboxTimeout]),
        (S::Creating, T::CreationFailed) => end_with(Outcome::Failed),
        (S::Creating, T::SetupFailed) => end_without_files(),
        (S::Running, T::WorkDone) => begin_completing(Outcome::Succeeded),
        (S::Running, T::WorkUnfinished) => begin_completing(Outcome::Failed),
        (S::Running, T::StopAndExport { work_was_done }) => begin_completing(outcome_of_stop(work_was_done)),
        (S::Running, T::WorkFailed) => end_with(Outcome::Failed),
        // The sandbox does not exist yet, so there are no results to collect.
        (S::Pending | S::Creating, T::StopAndExport { .. } | T::StopAndDiscard { .. }) => end_with(Outcome::Cancelled),
        (S::Running, T::StopAndDiscard { work_was_done }) => end_with(outcome_of_stop(work_was_done)),
        (S::Completing, T::StopAndDiscard { .. }) => end_with(Outcome::Cancelled),
        (S::Completing, T::ResultsExported) => end_with(phase.pending_outcome.unwrap_or(Outcome::Succeeded)),
        (S::Completing, T::ResultsFailed) => end_with(Outcome::Failed),
        (S::Failed, T::Recover { results_had_failed }) => {
            begin_completing(if results_had_failed { Outcome::Succeeded } else { Outcome::Failed })
        }
        (
            from @ (S::Pending | S::Creating | S::Running | S::Completing | S::Completed | S::Failed),
            trigger @ (T::CreationRequested
            | T::FirstHeartbeat
            | T::CreationFailed
            | T::SetupFailed
            | T::WorkDone
            | T::WorkUnfinished
            | T::StopAndExport { .. }
            | T::StopAndDiscard { .. }
            | T::WorkFailed
            | T::ResultsExported
            | T::ResultsFailed
            | T::Recover { .. }),
        ) => Err(IllegalTransition { from, trigger }),
    }
}
