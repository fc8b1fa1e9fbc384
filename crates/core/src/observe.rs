//! What a worker's event says about its sandbox beyond being in the log.

use crate::event::kind;
use crate::sandbox::Activity;

/// What an event means for the sandbox's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// The agent is doing something, or stands still: the new activity.
    Activity(Activity),
    /// A turn began.
    TurnStarted,
    /// The turn ended by itself.
    TurnEnded,
    /// The agent gave up.
    AgentFailed,
    /// The worker has sent all it had and goes.
    WorkerLeft,
    /// Nothing.
    Nothing,
}

/// Types that count as work. It is a list of what counts, so that an unknown type is never taken
/// for progress.
const WORK: &[&str] = &[
    kind::AGENT_ASSISTANT_MESSAGE,
    kind::AGENT_MESSAGE,
    kind::AGENT_THINKING,
    kind::AGENT_TOOL_USE,
    kind::AGENT_TOOL_COMPLETED,
    kind::AGENT_USER_TOOL_RESULT,
    kind::AGENT_FILE_EDITED,
    kind::AGENT_MESSAGE_INJECTED,
    kind::AGENT_SUBAGENT_INVOKED,
    kind::AGENT_SUBAGENT_COMPLETED,
    kind::AGENT_SKILL_INVOKED,
    kind::AGENT_SKILL_COMPLETED,
    kind::AGENT_PLAN,
    kind::APPROVAL_RESOLVED,
];

pub fn is_work(event_type: &str) -> bool {
    WORK.contains(&event_type)
}

pub fn observe(event_type: &str) -> Observation {
    match event_type {
        kind::AGENT_STARTED => Observation::TurnStarted,
        kind::AGENT_COMPLETED => Observation::TurnEnded,
        kind::AGENT_FAILED => Observation::AgentFailed,
        kind::AGENT_SHUTDOWN => Observation::WorkerLeft,
        kind::AGENT_WAITING | kind::AGENT_INTERRUPTED => Observation::Activity(Activity::WaitingMessage),
        kind::AGENT_RATE_LIMITED => Observation::Activity(Activity::RateLimited),
        kind::APPROVAL_REQUESTED => Observation::Activity(Activity::WaitingApproval),
        other if is_work(other) => Observation::Activity(Activity::Working),
        _ => Observation::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_agent_never_shows_as_working() {
        assert_eq!(observe("approval.requested"), Observation::Activity(Activity::WaitingApproval));
        assert_eq!(observe("agent.waiting"), Observation::Activity(Activity::WaitingMessage));
        assert_eq!(observe("agent.rate_limited"), Observation::Activity(Activity::RateLimited));
    }

    #[test]
    fn an_unknown_type_is_not_progress() {
        assert_eq!(observe("agent.spinning"), Observation::Nothing);
        assert!(!is_work("agent.heartbeat") && !is_work("agent.usage"));
    }
}
