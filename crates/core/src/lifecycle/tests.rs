use super::*;
use SandboxState as S;
use Trigger as T;
use proptest::prelude::*;

const TRIGGERS: [Trigger; 15] = [
    T::CreationRequested,
    T::FirstHeartbeat,
    T::CreationFailed,
    T::SetupFailed,
    T::WorkDone,
    T::WorkUnfinished,
    T::StopAndExport { work_was_done: true },
    T::StopAndExport { work_was_done: false },
    T::StopAndDiscard { work_was_done: true },
    T::StopAndDiscard { work_was_done: false },
    T::WorkFailed,
    T::ResultsExported,
    T::ResultsFailed,
    T::Recover { results_had_failed: true },
    T::Recover { results_had_failed: false },
];

/// Every legal transition; all others must be rejected.
const TABLE: &[(SandboxState, Trigger, SandboxState, Option<Outcome>)] = &[
    (S::Pending, T::CreationRequested, S::Creating, None),
    (S::Pending, T::StopAndExport { work_was_done: true }, S::Completed, Some(Outcome::Cancelled)),
    (S::Pending, T::StopAndExport { work_was_done: false }, S::Completed, Some(Outcome::Cancelled)),
    (S::Pending, T::StopAndDiscard { work_was_done: true }, S::Completed, Some(Outcome::Cancelled)),
    (S::Pending, T::StopAndDiscard { work_was_done: false }, S::Completed, Some(Outcome::Cancelled)),
    (S::Creating, T::FirstHeartbeat, S::Running, None),
    (S::Creating, T::CreationFailed, S::Failed, Some(Outcome::Failed)),
    (S::Creating, T::SetupFailed, S::Failed, Some(Outcome::Failed)),
    (S::Creating, T::StopAndExport { work_was_done: true }, S::Completed, Some(Outcome::Cancelled)),
    (S::Creating, T::StopAndExport { work_was_done: false }, S::Completed, Some(Outcome::Cancelled)),
    (S::Creating, T::StopAndDiscard { work_was_done: true }, S::Completed, Some(Outcome::Cancelled)),
    (S::Creating, T::StopAndDiscard { work_was_done: false }, S::Completed, Some(Outcome::Cancelled)),
    (S::Running, T::WorkDone, S::Completing, None),
    (S::Running, T::WorkUnfinished, S::Completing, None),
    (S::Running, T::StopAndExport { work_was_done: true }, S::Completing, None),
    (S::Running, T::StopAndExport { work_was_done: false }, S::Completing, None),
    (S::Running, T::StopAndDiscard { work_was_done: true }, S::Completed, Some(Outcome::Succeeded)),
    (S::Running, T::StopAndDiscard { work_was_done: false }, S::Completed, Some(Outcome::Cancelled)),
    (S::Running, T::WorkFailed, S::Failed, Some(Outcome::Failed)),
    (S::Completing, T::StopAndDiscard { work_was_done: true }, S::Completed, Some(Outcome::Cancelled)),
    (S::Completing, T::StopAndDiscard { work_was_done: false }, S::Completed, Some(Outcome::Cancelled)),
    (S::Completing, T::ResultsExported, S::Completed, Some(Outcome::Succeeded)),
    (S::Completing, T::ResultsFailed, S::Failed, Some(Outcome::Failed)),
    (S::Failed, T::Recover { results_had_failed: true }, S::Completing, None),
    (S::Failed, T::Recover { results_had_failed: false }, S::Completing, None),
];

#[test]
fn every_transition_is_in_the_table_or_rejected() {
    for &state in S::ALL {
        for trigger in TRIGGERS {
            let row = TABLE.iter().find(|(from, by, ..)| *from == state && *by == trigger);
            match (next(LifecyclePhase::from_state(state), trigger), row) {
                (Ok(step), Some((.., to, outcome))) => {
                    assert_eq!((step.to.state, step.outcome), (*to, *outcome), "{state} by {trigger:?}");
                }
                (Err(illegal), None) => assert_eq!(illegal, IllegalTransition { from: state, trigger }),
                (found, expected) => panic!("{state} by {trigger:?}: {found:?}, the table says {expected:?}"),
            }
        }
    }
}

#[test]
fn completing_keeps_the_pending_outcome() {
    for (trigger, ends) in [
        (T::WorkDone, Outcome::Succeeded),
        (T::WorkUnfinished, Outcome::Failed),
        (T::StopAndExport { work_was_done: false }, Outcome::Cancelled),
        (T::StopAndExport { work_was_done: true }, Outcome::Succeeded),
    ] {
        let completing = next(LifecyclePhase::from_state(S::Running), trigger).unwrap().to;
        assert_eq!(next(completing, T::ResultsExported).unwrap().outcome, Some(ends));
    }
}

#[test]
fn a_failed_set_up_keeps_no_files() {
    let step = next(LifecyclePhase::from_state(S::Creating), T::SetupFailed).unwrap();
    assert_eq!(step.effects, [LifecycleEffect::RemoveNow, LifecycleEffect::StartDrainTimeout]);
}

#[test]
fn recovered_results_don_t_turn_a_failure_into_a_success() {
    let completing = next(LifecyclePhase::from_state(S::Failed), T::Recover { results_had_failed: false }).unwrap().to;
    let out = next(completing, T::ResultsExported).unwrap();
    assert_eq!((out.to.state, out.outcome), (S::Failed, Some(Outcome::Failed)));
}

proptest! {
    /// For any path: an outcome exactly when ended, transitions only along the table, and every end removes the
    /// provider's sandbox and revokes the worker's token.
    #[test]
    fn any_path_keeps_the_invariants(steps in proptest::collection::vec(0..TRIGGERS.len(), 0..40)) {
        let mut phase = LifecyclePhase::from_state(S::Pending);
        for step in steps {
            let Ok(transition) = next(phase, TRIGGERS[step]) else { continue };
            prop_assert_eq!(transition.outcome.is_some(), transition.to.state.has_ended());
            prop_assert_eq!(transition.to.pending_outcome.is_some(), transition.to.state == S::Completing);
            if transition.to.state.has_ended() {
                prop_assert!(transition.effects.contains(&LifecycleEffect::StartDrainTimeout));
                prop_assert!(transition.effects.contains(&LifecycleEffect::RemoveNow) || transition.effects.contains(&LifecycleEffect::RemoveLater));
            }
            prop_assert!(phase.state != S::Completed, "nothing leaves completed");
            phase = transition.to;
        }
    }
}
