//! Agents without progress: idle ones wait for a person, stalled ones say that they work.

use super::{HealthSettings, IdleAction};
use crate::provider::capabilities::{Capabilities, PauseAbility, WorkerHost};
use crate::sandbox::Activity;
use std::time::Duration;

/// Times after which an agent without progress counts as stalled or idle. `None` is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgressPolicy {
    pub stalled_after: Option<Duration>,
    pub idle_after: Option<Duration>,
}

/// The progress of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Normal,
    /// It reports that it works, but sends no work event.
    Stalled,
    /// It stayed stalled as long again: the server interrupts it.
    Stuck,
    /// It waits for a message, and its sandbox is not in use.
    Idle,
}

/// Judges the time since the last work event and since a person last used the sandbox. A person's use keeps a waiting
/// sandbox from being idle, but does not make a stalled agent work.
pub fn judge_progress(
    activity: Activity,
    since_work: Duration,
    since_use: Duration,
    policy: ProgressPolicy,
) -> Progress {
    let is_over = |limit: Option<Duration>, since: Duration| limit.is_some_and(|limit| since >= limit);
    match activity {
        Activity::Working if is_over(policy.stalled_after, since_work) => Progress::Stalled,
        Activity::Stalled if is_over(policy.stalled_after.map(|limit| limit * 2), since_work) => Progress::Stuck,
        Activity::WaitingMessage if is_over(policy.idle_after, since_work.min(since_use)) => Progress::Idle,
        Activity::Working | Activity::Stalled | Activity::WaitingMessage => Progress::Normal,
        // A person decides, a clock decides, or the agent is not running.
        Activity::Starting
        | Activity::WaitingApproval
        | Activity::RateLimited
        | Activity::Paused
        | Activity::LimitPaused
        | Activity::Unreachable
        | Activity::TakingResults
        | Activity::Ended => Progress::Normal,
    }
}

/// The policy of a sandbox: its own settings, else the server's.
pub fn progress_policy(own: Option<&HealthSettings>, of_server: ProgressPolicy) -> ProgressPolicy {
    let after = |seconds: Option<u32>, standard: Option<Duration>| match seconds {
        Some(0) => None,
        Some(seconds) => Some(Duration::from_secs(seconds.into())),
        None => standard,
    };
    ProgressPolicy {
        stalled_after: after(own.and_then(|own| own.stalled_after_s), of_server.stalled_after),
        idle_after: after(own.and_then(|own| own.idle_after_s), of_server.idle_after),
    }
}

/// What happens to an idle sandbox at a provider. A person started an external worker and ends it, too.
pub const fn idle_action(wanted: IdleAction, capabilities: &Capabilities) -> IdleAction {
    match (wanted, capabilities.pause, capabilities.worker) {
        (IdleAction::Keep, _, _) | (_, _, WorkerHost::Person) => IdleAction::Keep,
        (IdleAction::Pause, PauseAbility::None, _) | (IdleAction::End, _, _) => IdleAction::End,
        (IdleAction::Pause, PauseAbility::Memory | PauseAbility::Disk, _) => IdleAction::Pause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const POLICY: ProgressPolicy =
        ProgressPolicy { stalled_after: Some(Duration::from_secs(900)), idle_after: Some(Duration::from_secs(600)) };

    #[test]
    fn a_working_agent_stalls_and_a_waiting_one_is_idle() {
        use Activity as A;
        use Progress as P;
        for (activity, work_minutes, use_minutes, progress) in [
            (A::Working, 14, 60, P::Normal),
            (A::Working, 15, 60, P::Stalled),
            (A::Working, 15, 0, P::Stalled),
            (A::WaitingMessage, 9, 60, P::Normal),
            (A::WaitingMessage, 10, 60, P::Idle),
            (A::WaitingMessage, 60, 9, P::Normal),
            (A::WaitingMessage, 60, 10, P::Idle),
            (A::WaitingApproval, 600, 600, P::Normal),
            (A::RateLimited, 600, 600, P::Normal),
            (A::LimitPaused, 600, 600, P::Normal),
            (A::Paused, 600, 600, P::Normal),
            (A::Stalled, 29, 600, P::Normal),
            (A::Stalled, 30, 0, P::Stuck),
            (A::Unreachable, 600, 600, P::Normal),
            (A::Starting, 600, 600, P::Normal),
            (A::TakingResults, 600, 600, P::Normal),
            (A::Ended, 600, 600, P::Normal),
        ] {
            let judged = judge_progress(activity, MINUTE * work_minutes, MINUTE * use_minutes, POLICY);
            assert_eq!(judged, progress, "{activity} {work_minutes} {use_minutes}");
        }
        let never = ProgressPolicy { stalled_after: None, idle_after: None };
        assert_eq!(judge_progress(A::Working, MINUTE * 9999, MINUTE, never), P::Normal);
        assert_eq!(judge_progress(A::Stalled, MINUTE * 9999, MINUTE, never), P::Normal);
        assert_eq!(judge_progress(A::WaitingMessage, MINUTE * 9999, MINUTE * 9999, never), P::Normal);
    }

    #[test]
    fn a_sandbox_overrides_the_server_and_zero_is_never() {
        assert_eq!(progress_policy(None, POLICY), POLICY);
        let own = HealthSettings { idle_after_s: Some(5), stalled_after_s: Some(0), ..HealthSettings::default() };
        let expected = ProgressPolicy { stalled_after: None, idle_after: Some(Duration::from_secs(5)) };
        assert_eq!(progress_policy(Some(&own), POLICY), expected);
    }

    #[test]
    fn a_provider_that_cannot_pause_ends_an_idle_sandbox() {
        use IdleAction as I;
        let of = |pause: PauseAbility, worker: WorkerHost| Capabilities { pause, worker, ..Capabilities::NONE };
        for (wanted, pause, worker, action) in [
            (I::Pause, PauseAbility::Memory, WorkerHost::Server, I::Pause),
            (I::Pause, PauseAbility::Disk, WorkerHost::Provider, I::Pause),
            (I::Pause, PauseAbility::None, WorkerHost::Server, I::End),
            (I::End, PauseAbility::Memory, WorkerHost::Server, I::End),
            (I::Keep, PauseAbility::Memory, WorkerHost::Server, I::Keep),
            (I::End, PauseAbility::None, WorkerHost::Person, I::Keep),
            (I::Pause, PauseAbility::None, WorkerHost::Person, I::Keep),
        ] {
            assert_eq!(idle_action(wanted, &of(pause, worker)), action, "{wanted} {pause} {worker}");
        }
    }
}
