//! Effects of a worker's events on the state of its sandbox.

use crate::event::kind;
use crate::sandbox::Activity;

/// Meaning of an event for the sandbox's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// The agent's new activity.
    Activity(Activity),
    /// A turn started.
    TurnStarted,
    /// The turn completed normally.
    TurnEnded,
    /// The agent failed.
    AgentFailed,
    /// The worker has sent everything and exits.
    WorkerExited,
    /// No effect.
    NoEffect,
}

/// Types that count as progress. This is an allowlist, so that an unknown type never counts.
const PROGRESS_TYPES: &[&str] = &[
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

pub fn is_progress(event_type: &str) -> bool {
    PROGRESS_TYPES.contains(&event_type)
}

/// True for the events that show that an agent works or has just worked: progress, and the limits of a turn.
pub fn is_work(event_type: &str) -> bool {
    is_progress(event_type)
        || matches!(
            event_type,
            kind::AGENT_STARTED | kind::AGENT_COMPLETED | kind::AGENT_INTERRUPTED | kind::APPROVAL_REQUESTED
        )
}

pub fn observe_event(event_type: &str) -> Observation {
    match event_type {
        kind::AGENT_STARTED => Observation::TurnStarted,
        kind::AGENT_COMPLETED => Observation::TurnEnded,
        kind::AGENT_FAILED => Observation::AgentFailed,
        kind::AGENT_SHUTDOWN => Observation::WorkerExited,
        kind::AGENT_WAITING | kind::AGENT_INTERRUPTED => Observation::Activity(Activity::WaitingMessage),
        kind::AGENT_RATE_LIMITED => Observation::Activity(Activity::RateLimited),
        kind::APPROVAL_REQUESTED => Observation::Activity(Activity::WaitingApproval),
        other if is_progress(other) => Observation::Activity(Activity::Working),
        _ => Observation::NoEffect,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_agent_is_not_working() {
        assert_eq!(observe_event("approval.requested"), Observation::Activity(Activity::WaitingApproval));
        assert_eq!(observe_event("agent.waiting"), Observation::Activity(Activity::WaitingMessage));
        assert_eq!(observe_event("agent.rate_limited"), Observation::Activity(Activity::RateLimited));
    }

    #[test]
    fn an_unknown_type_is_not_progress() {
        assert_eq!(observe_event("agent.spinning"), Observation::NoEffect);
        assert!(!is_progress("agent.heartbeat") && !is_progress("agent.usage"));
        for chatter in ["agent.spinning", "agent.heartbeat", "agent.usage", "agent.waiting", "agent.stream_error"] {
            assert!(!is_work(chatter), "{chatter}");
        }
        assert!(is_work("agent.started") && is_work("agent.completed") && is_work("agent.tool_use"));
    }
}
