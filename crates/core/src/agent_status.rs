//! The agent's activity and turn as one pure function.
//!
//! `AgentStatus` changes only through `apply`. The caller stores the new status in the transaction that stores its
//! cause.

use crate::limit::Limit;
use crate::message::DeliveryMethod;
use crate::sandbox::{Activity, SandboxState, TurnState};

#[cfg(test)]
mod tests;

/// Activity and turn of a sandbox's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentStatus {
    activity: Activity,
    turn: Option<i64>,
    turn_state: TurnState,
    pausing_limit: Option<Limit>,
}

/// A cause that can change the agent's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The sandbox entered its state.
    StateEntered,
    /// An event reported the start of a turn; without a number it is the next one.
    TurnStarted { turn: Option<i64> },
    /// An event reported the normal end of a turn.
    TurnCompleted { turn: Option<i64> },
    /// An event reported an activity. An agent with an open approval can still send output; it keeps waiting.
    EventReceived { activity: Activity, has_open_approval: bool, is_between_runs: bool },
    /// A heartbeat reported an activity.
    HeartbeatReceived { activity: Activity, are_events_stored: bool, is_between_runs: bool },
    /// The agent received a message.
    MessageAcknowledged { how: DeliveryMethod, turn: Option<i64> },
    /// A user paused the sandbox.
    Paused,
    /// A user resumed the sandbox.
    Resumed,
    /// The worker stopped the agent at a limit.
    LimitReached(Limit),
    /// The limit was raised, and the worker let the agent continue.
    LimitRaised(Limit),
    /// The continuous loop runs its checks or continues with another run.
    LoopContinues,
    /// A run of the continuous loop failed. The loop decides what follows.
    LoopRunFailed,
    /// A user interrupted the checks of a continuous loop: the work is not done.
    LoopInterrupted,
    /// The continuous loop ended, and the sandbox stays.
    LoopEnded,
    /// Another worker took over. The outcome of the old worker's turn is unknown.
    WorkerReplaced,
    /// The worker exited.
    WorkerLeft,
    /// The worker's heartbeats are overdue.
    HeartbeatsMissed,
    /// A heartbeat arrived after missing ones.
    HeartbeatsReturned,
    /// The agent reports that it works, but sends no work event.
    WorkMissing,
}

impl AgentStatus {
    /// The status of a new sandbox.
    pub const NEW: Self =
        Self { activity: Activity::Starting, turn: None, turn_state: TurnState::Idle, pausing_limit: None };

    /// The status as a store has saved it.
    pub const fn restore(
        activity: Activity,
        turn: Option<i64>,
        turn_state: TurnState,
        pausing_limit: Option<Limit>,
    ) -> Self {
        Self { activity, turn, turn_state, pausing_limit }
    }

    pub const fn activity(self) -> Activity {
        self.activity
    }

    /// Number of the current or last turn.
    pub const fn turn(self) -> Option<i64> {
        self.turn
    }

    pub const fn turn_state(self) -> TurnState {
        self.turn_state
    }

    /// The limit that pauses the agent.
    pub const fn pausing_limit(self) -> Option<Limit> {
        self.pausing_limit
    }

    pub const fn is_paused(self) -> bool {
        matches!(self.activity, Activity::Paused)
    }

    /// True if the last turn completed normally and no other has started.
    pub const fn is_turn_done(self) -> bool {
        matches!(self.turn_state, TurnState::Done)
    }

    /// Applies a signal to the agent of a sandbox in `state`.
    pub fn apply(&mut self, state: SandboxState, signal: Signal) {
        let is_running = state == SandboxState::Running;
        // Late events of a paused sandbox, or of an agent at a limit, do not change its activity.
        let is_free = is_running && !self.is_paused() && self.pausing_limit.is_none();
        match signal {
            Signal::StateEntered => {
                self.pausing_limit = None;
                self.activity = entry_activity(state);
            }
            Signal::TurnStarted { turn } => {
                self.turn = turn.or_else(|| Some(self.turn.unwrap_or(0).saturating_add(1)));
                self.turn_state = TurnState::Open;
                self.set_activity_if(is_free, Activity::Working);
            }
            Signal::TurnCompleted { turn } => {
                if self.is_current(turn) {
                    self.turn = turn.or(self.turn);
                    self.turn_state = TurnState::Done;
                }
                self.set_activity_if(is_free, Activity::WaitingMessage);
            }
            Signal::EventReceived { activity, has_open_approval, is_between_runs } => {
                // An agent that waits for a message is in no turn.
                if activity == Activity::WaitingMessage && self.turn_state == TurnState::Open {
                    self.turn_state = TurnState::Idle;
                }
                let still_asks =
                    activity == Activity::Working && self.activity == Activity::WaitingApproval && has_open_approval;
                let loop_works = activity == Activity::WaitingMessage && is_between_runs;
                self.set_activity_if(is_free && !still_asks && !loop_works, activity);
            }
            Signal::HeartbeatReceived { activity, are_events_stored, is_between_runs } => {
                let loop_works = activity == Activity::WaitingMessage && is_between_runs;
                let is_current = are_events_stored || !is_reported_by_events(activity);
                // Only a work event shows that a stalled agent works again.
                let is_stalled = self.activity == Activity::Stalled && activity == Activity::Working;
                let may_report = may_worker_report(activity) && !is_stalled;
                self.set_activity_if(is_free && is_current && may_report && !loop_works, activity);
                let is_at_limit = is_running && !self.is_paused() && self.pausing_limit.is_some();
                self.set_activity_if(is_at_limit, Activity::LimitPaused);
            }
            Signal::MessageAcknowledged { how, turn } => {
                let opens_turn = match (how, turn) {
                    (_, Some(turn)) => self.turn.is_none_or(|current| turn > current),
                    (DeliveryMethod::NewTurn | DeliveryMethod::Restarted, None) => true,
                    (DeliveryMethod::Injected, None) => false,
                };
                if opens_turn {
                    self.turn = turn.or(self.turn);
                    self.turn_state = TurnState::Open;
                    self.set_activity_if(self.activity == Activity::WaitingMessage, Activity::Working);
                }
            }
            Signal::Paused => self.set_activity_if(is_running, Activity::Paused),
            Signal::Resumed => self.set_activity_if(is_running && self.is_paused(), self.unpaused_activity()),
            Signal::LimitReached(limit) => {
                if is_running {
                    self.pausing_limit = Some(limit);
                }
                self.set_activity_if(is_running && !self.is_paused(), Activity::LimitPaused);
            }
            Signal::LimitRaised(limit) => {
                if self.pausing_limit == Some(limit) {
                    self.pausing_limit = None;
                    self.set_activity_if(self.activity == Activity::LimitPaused, self.unpaused_activity());
                }
            }
            Signal::LoopContinues => self.set_activity_if(is_free, Activity::Working),
            Signal::LoopRunFailed => {
                self.turn_state = TurnState::Idle;
                self.set_activity_if(is_free, Activity::Working);
            }
            Signal::LoopInterrupted => {
                if self.turn_state == TurnState::Done {
                    self.turn_state = TurnState::Idle;
                }
            }
            Signal::LoopEnded => {
                let is_idle = self.activity == Activity::Working && self.turn_state != TurnState::Open;
                self.set_activity_if(is_idle, Activity::WaitingMessage);
            }
            Signal::WorkerReplaced => {
                if self.turn_state == TurnState::Open {
                    self.turn_state = TurnState::Idle;
                }
            }
            Signal::WorkerLeft => self.set_activity_if(is_running, Activity::Unreachable),
            Signal::HeartbeatsMissed => self.set_activity_if(is_running && !self.is_paused(), Activity::Unreachable),
            Signal::HeartbeatsReturned => {
                self.set_activity_if(self.activity == Activity::Unreachable, self.unpaused_activity());
            }
            Signal::WorkMissing => {
                self.set_activity_if(is_free && self.activity == Activity::Working, Activity::Stalled)
            }
        }
    }

    const fn set_activity_if(&mut self, condition: bool, activity: Activity) {
        if condition {
            self.activity = activity;
        }
    }

    /// True unless the turn is older than the current one.
    fn is_current(self, turn: Option<i64>) -> bool {
        turn.is_none_or(|turn| self.turn.is_none_or(|current| turn >= current))
    }

    /// The activity of an agent that no user pauses.
    const fn unpaused_activity(self) -> Activity {
        match (self.pausing_limit, self.turn_state) {
            (Some(_), _) => Activity::LimitPaused,
            (None, TurnState::Open) => Activity::Working,
            (None, TurnState::Idle | TurnState::Done) => Activity::WaitingMessage,
        }
    }
}

const fn entry_activity(state: SandboxState) -> Activity {
    match state {
        SandboxState::Pending | SandboxState::Creating => Activity::Starting,
        SandboxState::Running => Activity::Working,
        SandboxState::Completing => Activity::TakingResults,
        SandboxState::Completed | SandboxState::Failed => Activity::Ended,
    }
}

/// True for activities that events report as well. A heartbeat with one of them counts once its events are stored, so
/// that the row is never ahead of the log.
pub const fn is_reported_by_events(activity: Activity) -> bool {
    match activity {
        Activity::Working | Activity::WaitingApproval | Activity::WaitingMessage | Activity::RateLimited => true,
        Activity::Starting
        | Activity::LimitPaused
        | Activity::Stalled
        | Activity::Paused
        | Activity::Unreachable
        | Activity::TakingResults
        | Activity::Ended => false,
    }
}

/// True for activities that a worker can observe; the server sets the others. Events report limits, because they name
/// the limit.
const fn may_worker_report(activity: Activity) -> bool {
    match activity {
        Activity::Starting
        | Activity::Working
        | Activity::WaitingApproval
        | Activity::WaitingMessage
        | Activity::RateLimited
        | Activity::Stalled => true,
        Activity::LimitPaused
        | Activity::Paused
        | Activity::Unreachable
        | Activity::TakingResults
        | Activity::Ended => false,
    }
}
