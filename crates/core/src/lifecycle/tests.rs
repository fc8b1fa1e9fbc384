use super::*;
use SandboxState as S;
use Trigger as T;
use proptest::prelude::*;

const TRIGGERS: [Trigger; 14] = [
    T::ProviderAsked,
    T::FirstHeartbeat,
    T::CreationFailed,
    T::WorkDone,
    T::WorkUnfinished,
    T::StopTaking { work_was_done: true },
    T::StopTaking { work_was_done: false },
    T::StopDiscarding { work_was_done: true },
    T::StopDiscarding { work_was_done: false },
    T::WorkFailed,
    T::ResultsOut,
    T::ResultsFailed,
    T::Recover { results_had_failed: true },
    T::Recover { results_had_failed: false },
];

/// Every legal step; whatever is not here must be refused.
const TABLE: &[(SandboxState, Trigger, SandboxState, Option<Outcome>)] = &[
    (S::Pending, T::ProviderAsked, S::Creating, None),
    (S::Pending, T::StopTaking { work_was_done: true }, S::Completed, Some(Outcome::Cancelled)),
    (S::Pending, T::StopTaking { work_was_done: false }, S::Completed, Some(Outcome::Cancelled)),
    (S::Pending, T::StopDiscarding { work_was_done: true }, S::Completed, Some(Outcome::Cancelled)),
    (S::Pending, T::StopDiscarding { work_was_done: false }, S::Completed, Some(Outcome::Cancelled)),
    (S::Creating, T::FirstHeartbeat, S::Running, None),
    (S::Creating, T::CreationFailed, S::Failed, Some(Outcome::Failed)),
    (S::Creating, T::StopTaking { work_was_done: true }, S::Completed, Some(Outcome::Cancelled)),
    (S::Creating, T::StopTaking { work_was_done: false }, S::Completed, Some(Outcome::Cancelled)),
    (S::Creating, T::StopDiscarding { work_was_done: true }, S::Completed, Some(Outcome::Cancelled)),
    (S::Creating, T::StopDiscarding { work_was_done: false }, S::Completed, Some(Outcome::Cancelled)),
    (S::Running, T::WorkDone, S::Completing, None),
    (S::Running, T::WorkUnfinished, S::Completing, None),
    (S::Running, T::StopTaking { work_was_done: true }, S::Completing, None),
    (S::Running, T::StopTaking { work_was_done: false }, S::Completing, None),
    (S::Running, T::StopDiscarding { work_was_done: true }, S::Completed, Some(Outcome::Succeeded)),
    (S::Running, T::StopDiscarding { work_was_done: false }, S::Completed, Some(Outcome::Cancelled)),
    (S::Running, T::WorkFailed, S::Failed, Some(Outcome::Failed)),
    (S::Completing, T::StopDiscarding { work_was_done: true }, S::Completed, Some(Outcome::Cancelled)),
    (S::Completing, T::StopDiscarding { work_was_done: false }, S::Completed, Some(Outcome::Cancelled)),
    (S::Completing, T::ResultsOut, S::Completed, Some(Outcome::Succeeded)),
    (S::Completing, T::ResultsFailed, S::Failed, Some(Outcome::Failed)),
    (S::Failed, T::Recover { results_had_failed: true }, S::Completing, None),
    (S::Failed, T::Recover { results_had_failed: false }, S::Completing, None),
];

#[test]
fn every_step_is_in_the_table_or_refused() {
    for &state in S::ALL {
        for trigger in TRIGGERS {
            let row = TABLE.iter().find(|(from, by, ..)| *from == state && *by == trigger);
            match (next(Phase::of(state), trigger), row) {
                (Ok(step), Some((.., to, outcome))) => {
                    assert_eq!((step.to.state, step.outcome), (*to, *outcome), "{state} by {trigger:?}");
                }
                (Err(illegal), None) => assert_eq!(illegal, Illegal { from: state, trigger }),
                (found, expected) => panic!("{state} by {trigger:?}: {found:?}, the table says {expected:?}"),
            }
        }
    }
}

#[test]
fn completing_remembers_what_it_ends_as() {
    for (trigger, ends) in [
        (T::WorkDone, Outcome::Succeeded),
        (T::WorkUnfinished, Outcome::Failed),
        (T::StopTaking { work_was_done: false }, Outcome::Cancelled),
        (T::StopTaking { work_was_done: true }, Outcome::Succeeded),
    ] {
        let completing = next(Phase::of(S::Running), trigger).unwrap().to;
        assert_eq!(next(completing, T::ResultsOut).unwrap().outcome, Some(ends));
    }
}

#[test]
fn recovered_results_don_t_turn_a_failure_into_a_success() {
    let completing = next(Phase::of(S::Failed), T::Recover { results_had_failed: false }).unwrap().to;
    let out = next(completing, T::ResultsOut).unwrap();
    assert_eq!((out.to.state, out.outcome), (S::Failed, Some(Outcome::Failed)));
}

proptest! {
    /// Along any path: an outcome exactly when ended, an end only by the table's edges, and every
    /// end removes the provider's sandbox and closes the worker's token.
    #[test]
    fn any_path_keeps_the_promises(steps in proptest::collection::vec(0..TRIGGERS.len(), 0..40)) {
        let mut phase = Phase::of(S::Pending);
        for step in steps {
            let Ok(taken) = next(phase, TRIGGERS[step]) else { continue };
            prop_assert_eq!(taken.outcome.is_some(), taken.to.state.has_ended());
            prop_assert_eq!(taken.to.ending.is_some(), taken.to.state == S::Completing);
            if taken.to.state.has_ended() {
                prop_assert!(taken.effects.contains(&Effect::WatchDrain));
                prop_assert!(taken.effects.contains(&Effect::RemoveNow) || taken.effects.contains(&Effect::RemoveLater));
            }
            prop_assert!(phase.state != S::Completed, "nothing leaves completed");
            phase = taken.to;
        }
    }
}
