use super::{AgentStatus, Signal};
use crate::limit::Limit;
use crate::message::DeliveryMethod;
use crate::sandbox::Activity::*;
use crate::sandbox::{Activity, SandboxState, TurnState};

const fn status(activity: Activity, turn: Option<i64>, turn_state: TurnState) -> AgentStatus {
    AgentStatus::restore(activity, turn, turn_state, None)
}

const fn at_limit(activity: Activity, turn_state: TurnState) -> AgentStatus {
    AgentStatus::restore(activity, Some(1), turn_state, Some(Limit::Turns))
}

const fn event(activity: Activity) -> Signal {
    Signal::EventReceived { activity, has_open_approval: false, is_between_runs: false }
}

const fn heartbeat(activity: Activity) -> Signal {
    Signal::HeartbeatReceived { activity, are_events_stored: true, is_between_runs: false }
}

const fn acknowledged(how: DeliveryMethod, turn: Option<i64>) -> Signal {
    Signal::MessageAcknowledged { how, turn }
}

/// Asserts the outcome of each signal in a running sandbox.
fn check(table: &[(AgentStatus, Signal, AgentStatus)]) {
    for (before, signal, after) in table {
        let mut status = *before;
        status.apply(SandboxState::Running, *signal);
        assert_eq!(status, *after, "{before:?} after {signal:?}");
    }
}

#[test]
fn turns_open_and_complete() {
    let (idle, open, done) = (TurnState::Idle, TurnState::Open, TurnState::Done);
    check(&[
        (AgentStatus::NEW, Signal::TurnStarted { turn: None }, status(Working, Some(1), open)),
        (status(WaitingMessage, Some(1), done), Signal::TurnStarted { turn: None }, status(Working, Some(2), open)),
        (status(WaitingMessage, Some(1), done), Signal::TurnStarted { turn: Some(7) }, status(Working, Some(7), open)),
        (
            status(Working, Some(2), open),
            Signal::TurnCompleted { turn: Some(2) },
            status(WaitingMessage, Some(2), done),
        ),
        (status(Working, Some(2), open), Signal::TurnCompleted { turn: None }, status(WaitingMessage, Some(2), done)),
        // The late end of an earlier turn does not end the current one.
        (
            status(Working, Some(2), open),
            Signal::TurnCompleted { turn: Some(1) },
            status(WaitingMessage, Some(2), open),
        ),
        (status(Working, Some(2), open), event(WaitingMessage), status(WaitingMessage, Some(2), idle)),
        (status(WaitingMessage, Some(2), done), event(WaitingMessage), status(WaitingMessage, Some(2), done)),
        (status(Working, Some(2), open), Signal::WorkerReplaced, status(Working, Some(2), idle)),
        (status(WaitingMessage, Some(2), done), Signal::WorkerReplaced, status(WaitingMessage, Some(2), done)),
    ]);
}

#[test]
fn an_acknowledged_message_opens_a_turn() {
    let (open, done) = (TurnState::Open, TurnState::Done);
    let waiting = status(WaitingMessage, Some(1), done);
    check(&[
        (waiting, acknowledged(DeliveryMethod::NewTurn, Some(2)), status(Working, Some(2), open)),
        (waiting, acknowledged(DeliveryMethod::NewTurn, None), status(Working, Some(1), open)),
        (waiting, acknowledged(DeliveryMethod::Restarted, None), status(Working, Some(1), open)),
        (waiting, acknowledged(DeliveryMethod::Injected, None), waiting),
        (waiting, acknowledged(DeliveryMethod::NewTurn, Some(1)), waiting),
        (
            status(WaitingApproval, Some(1), done),
            acknowledged(DeliveryMethod::NewTurn, None),
            status(WaitingApproval, Some(1), open),
        ),
    ]);
}

#[test]
fn events_and_heartbeats_report_the_activity() {
    let open = TurnState::Open;
    let working = status(Working, Some(1), open);
    let asking = status(WaitingApproval, Some(1), open);
    check(&[
        (working, event(WaitingApproval), asking),
        (asking, event(Working), working),
        (asking, Signal::EventReceived { activity: Working, has_open_approval: true, is_between_runs: false }, asking),
        (working, heartbeat(RateLimited), status(RateLimited, Some(1), open)),
        (
            working,
            Signal::HeartbeatReceived { activity: WaitingApproval, are_events_stored: false, is_between_runs: false },
            working,
        ),
        (
            working,
            Signal::HeartbeatReceived { activity: Stalled, are_events_stored: false, is_between_runs: false },
            status(Stalled, Some(1), open),
        ),
        (status(Unreachable, Some(1), open), heartbeat(Working), working),
    ]);
    for activity in [LimitPaused, Paused, Unreachable, TakingResults, Ended] {
        check(&[(working, heartbeat(activity), working)]);
    }
}

#[test]
fn a_pause_outlasts_reports_and_resumes_to_the_current_turn() {
    let (open, done) = (TurnState::Open, TurnState::Done);
    let (paused, stalled) = (status(Paused, Some(1), open), status(Stalled, Some(1), open));
    check(&[
        (status(Working, Some(1), open), Signal::Paused, paused),
        (paused, event(Working), paused),
        (paused, heartbeat(Working), paused),
        (paused, Signal::HeartbeatsMissed, paused),
        (paused, Signal::TurnCompleted { turn: None }, status(Paused, Some(1), done)),
        (paused, Signal::Resumed, status(Working, Some(1), open)),
        (status(Paused, Some(1), done), Signal::Resumed, status(WaitingMessage, Some(1), done)),
        (status(Working, Some(1), open), Signal::Resumed, status(Working, Some(1), open)),
        (at_limit(Paused, open), Signal::Resumed, at_limit(LimitPaused, open)),
        (paused, Signal::WorkerLeft, status(Unreachable, Some(1), open)),
        (status(Working, Some(1), open), Signal::HeartbeatsMissed, status(Unreachable, Some(1), open)),
        (status(Unreachable, Some(1), open), Signal::HeartbeatsReturned, status(Working, Some(1), open)),
        (status(Unreachable, Some(1), done), Signal::HeartbeatsReturned, status(WaitingMessage, Some(1), done)),
        (paused, Signal::HeartbeatsReturned, paused),
        (status(Working, Some(1), open), Signal::WorkMissing, stalled),
        (status(WaitingMessage, Some(1), done), Signal::WorkMissing, status(WaitingMessage, Some(1), done)),
        (at_limit(LimitPaused, open), Signal::WorkMissing, at_limit(LimitPaused, open)),
        (stalled, heartbeat(Working), stalled),
        (stalled, heartbeat(WaitingMessage), status(WaitingMessage, Some(1), open)),
        (stalled, Signal::Paused, paused),
        (stalled, event(Working), status(Working, Some(1), open)),
    ]);
}

#[test]
fn a_limit_pauses_until_it_is_raised() {
    let (open, done) = (TurnState::Open, TurnState::Done);
    let limited = at_limit(LimitPaused, open);
    check(&[
        (status(Working, Some(1), open), Signal::LimitReached(Limit::Turns), limited),
        (status(Paused, Some(1), open), Signal::LimitReached(Limit::Turns), at_limit(Paused, open)),
        (limited, event(Working), limited),
        (at_limit(Unreachable, open), heartbeat(Working), limited),
        (limited, Signal::LimitRaised(Limit::CostUsd), limited),
        (limited, Signal::LimitRaised(Limit::Turns), status(Working, Some(1), open)),
        (at_limit(LimitPaused, done), Signal::LimitRaised(Limit::Turns), status(WaitingMessage, Some(1), done)),
        (at_limit(Paused, open), Signal::LimitRaised(Limit::Turns), status(Paused, Some(1), open)),
        (at_limit(LimitPaused, done), Signal::LoopContinues, at_limit(LimitPaused, done)),
        (limited, Signal::LoopRunFailed, at_limit(LimitPaused, TurnState::Idle)),
    ]);
}

#[test]
fn a_continuous_loop_works_between_its_runs() {
    let (idle, open, done) = (TurnState::Idle, TurnState::Open, TurnState::Done);
    let between_event =
        Signal::EventReceived { activity: WaitingMessage, has_open_approval: false, is_between_runs: true };
    let between_beat =
        Signal::HeartbeatReceived { activity: WaitingMessage, are_events_stored: true, is_between_runs: true };
    check(&[
        (status(WaitingMessage, Some(1), done), Signal::LoopContinues, status(Working, Some(1), done)),
        (status(Working, Some(1), done), between_event, status(Working, Some(1), done)),
        (status(Working, Some(1), done), between_beat, status(Working, Some(1), done)),
        (status(Working, Some(1), open), Signal::LoopRunFailed, status(Working, Some(1), idle)),
        (status(Working, Some(1), done), Signal::LoopInterrupted, status(Working, Some(1), idle)),
        (status(Working, Some(1), open), Signal::LoopInterrupted, status(Working, Some(1), open)),
        (status(Working, Some(1), done), Signal::LoopEnded, status(WaitingMessage, Some(1), done)),
        (status(Working, Some(1), open), Signal::LoopEnded, status(Working, Some(1), open)),
    ]);
}

#[test]
fn a_state_sets_its_activity_and_clears_the_limit() {
    for (state, activity) in [
        (SandboxState::Pending, Starting),
        (SandboxState::Creating, Starting),
        (SandboxState::Running, Working),
        (SandboxState::Completing, TakingResults),
        (SandboxState::Completed, Ended),
        (SandboxState::Failed, Ended),
    ] {
        let mut entered = at_limit(LimitPaused, TurnState::Done);
        entered.apply(state, Signal::StateEntered);
        assert_eq!(entered, status(activity, Some(1), TurnState::Done), "{state}");
    }
}

#[test]
fn reports_do_not_change_the_activity_outside_of_running() {
    for state in SandboxState::ALL.iter().copied().filter(|state| *state != SandboxState::Running) {
        for signal in [
            event(Working),
            heartbeat(Working),
            Signal::TurnStarted { turn: None },
            Signal::TurnCompleted { turn: None },
            Signal::Paused,
            Signal::LimitReached(Limit::Turns),
            Signal::WorkerLeft,
            Signal::HeartbeatsMissed,
        ] {
            let mut after = status(TakingResults, Some(1), TurnState::Done);
            after.apply(state, signal);
            assert_eq!((after.activity(), after.pausing_limit()), (TakingResults, None), "{signal:?} in {state}");
        }
    }
}
