//! Silent workers: when their heartbeats are overdue, and which step follows.

use super::restarts::RestartVerdict;
use std::time::Duration;

/// How overdue a worker's heartbeats are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// No heartbeat is overdue.
    None,
    /// One heartbeat is missing.
    Unreachable,
    /// Three heartbeats are missing: the server asks the provider.
    Dead,
}

impl Silence {
    /// Judges the time since the last heartbeat. The first missing one has half an interval of slack.
    pub fn judge(silent_for: Duration, interval: Duration) -> Self {
        if silent_for >= dead_after(interval) {
            Self::Dead
        } else if silent_for >= unreachable_after(interval) {
            Self::Unreachable
        } else {
            Self::None
        }
    }
}

/// The time without a heartbeat after which a worker is unreachable.
pub fn unreachable_after(interval: Duration) -> Duration {
    interval * 3 / 2
}

/// The time without a heartbeat after which the server asks the provider.
pub fn dead_after(interval: Duration) -> Duration {
    interval * 3
}

/// What a provider says about the sandbox of a silent worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxFinding {
    /// The provider no longer has it.
    Gone,
    /// It is there, but its worker has ended.
    WorkerEnded,
    /// It is there and runs.
    Running,
    /// It is there, and its processes are paused although no person paused it.
    Paused,
    /// The provider did not answer.
    Unknown,
}

/// The next step of the server for a sandbox with a silent worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryStep {
    /// Record that the sandbox is lost. Its session may get a new one.
    RecordLoss,
    /// Store what the worker left, and record its death.
    RecoverDeadWorker,
    /// Let the sandbox's processes continue.
    Resume,
    /// Replace the connections to the worker.
    Reconnect,
    /// End every process of the sandbox, and start the worker again over the same files.
    RestartWorker,
    /// Ask again after this time.
    Wait(Duration),
    /// The worker cannot be recovered: fail the sandbox. Its files stay.
    GiveUp,
}

/// Decides the next step. A reconnection comes before a restart, and `restart` bounds the restarts; it is `None` if the
/// provider cannot restart a worker.
pub const fn next_recovery_step(
    finding: SandboxFinding,
    has_reconnected: bool,
    restart: Option<RestartVerdict>,
    ask_again_after: Duration,
) -> RecoveryStep {
    match (finding, has_reconnected, restart) {
        (SandboxFinding::Gone, _, _) => RecoveryStep::RecordLoss,
        (SandboxFinding::WorkerEnded, _, _) => RecoveryStep::RecoverDeadWorker,
        (SandboxFinding::Paused, _, _) => RecoveryStep::Resume,
        (SandboxFinding::Unknown, _, _) => RecoveryStep::Wait(ask_again_after),
        (SandboxFinding::Running, false, _) => RecoveryStep::Reconnect,
        (SandboxFinding::Running, true, Some(RestartVerdict::Now)) => RecoveryStep::RestartWorker,
        (SandboxFinding::Running, true, Some(RestartVerdict::After(delay))) => RecoveryStep::Wait(delay),
        (SandboxFinding::Running, true, Some(RestartVerdict::Escalate) | None) => RecoveryStep::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missed_heartbeat_is_unreachable_and_three_are_dead() {
        let interval = Duration::from_secs(30);
        for (silent_s, silence) in [
            (0, Silence::None),
            (30, Silence::None),
            (44, Silence::None),
            (45, Silence::Unreachable),
            (89, Silence::Unreachable),
            (90, Silence::Dead),
            (86_400, Silence::Dead),
        ] {
            assert_eq!(Silence::judge(Duration::from_secs(silent_s), interval), silence, "{silent_s} s");
        }
    }

    #[test]
    fn a_silent_worker_is_reconnected_then_restarted_then_given_up() {
        use RecoveryStep as Step;
        use SandboxFinding as Finding;
        let (again, cool_down) = (Duration::from_secs(30), Duration::from_secs(60));
        let now = Some(RestartVerdict::Now);
        for (finding, has_reconnected, restart, step) in [
            (Finding::Gone, false, now, Step::RecordLoss),
            (Finding::Gone, true, None, Step::RecordLoss),
            (Finding::WorkerEnded, false, now, Step::RecoverDeadWorker),
            (Finding::WorkerEnded, true, Some(RestartVerdict::Escalate), Step::RecoverDeadWorker),
            (Finding::Paused, false, now, Step::Resume),
            (Finding::Unknown, false, now, Step::Wait(again)),
            (Finding::Unknown, true, None, Step::Wait(again)),
            (Finding::Running, false, now, Step::Reconnect),
            (Finding::Running, false, None, Step::Reconnect),
            (Finding::Running, true, now, Step::RestartWorker),
            (Finding::Running, true, Some(RestartVerdict::After(cool_down)), Step::Wait(cool_down)),
            (Finding::Running, true, Some(RestartVerdict::Escalate), Step::GiveUp),
            (Finding::Running, true, None, Step::GiveUp),
        ] {
            let decided = next_recovery_step(finding, has_reconnected, restart, again);
            assert_eq!(decided, step, "{finding:?} {has_reconnected} {restart:?}");
        }
    }
}
