//! Restarts of a service that ended: with a growing delay, and only so many in a while.

use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number of restarts within `RESTART_WINDOW`.
pub const MAX_RESTARTS: usize = 5;
pub const RESTART_WINDOW: Duration = Duration::from_secs(600);
const FIRST_DELAY: Duration = Duration::from_millis(250);

/// The recent restarts of one service. Times are relative to any fixed moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestartHistory {
    recent: VecDeque<Duration>,
}

impl RestartHistory {
    /// Records a restart and returns the delay before it; `None` if the service ended too often.
    pub fn plan_restart(&mut self, now: Duration) -> Option<Duration> {
        while self.recent.front().is_some_and(|at| now.saturating_sub(*at) >= RESTART_WINDOW) {
            self.recent.pop_front();
        }
        if self.recent.len() >= MAX_RESTARTS {
            return None;
        }
        let delay = FIRST_DELAY * 4_u32.pow(u32::try_from(self.recent.len()).unwrap_or(0));
        self.recent.push_back(now);
        Some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_until_the_restarts_are_used_up() {
        let mut history = RestartHistory::default();
        let delays: Vec<_> = (0..7).map(|second| history.plan_restart(Duration::from_secs(second))).collect();
        let millis = |delay| Some(Duration::from_millis(delay));
        assert_eq!(
            delays,
            [millis(250), millis(1_000), millis(4_000), millis(16_000), millis(64_000), None, None],
            "at most {MAX_RESTARTS} restarts"
        );
    }

    #[test]
    fn old_restarts_do_not_count() {
        let mut history = RestartHistory::default();
        let at = Duration::from_secs;
        for hour in 1..100 {
            assert_eq!(history.plan_restart(at(3600 * hour)), Some(FIRST_DELAY), "hour {hour}");
        }
        let mut history = RestartHistory::default();
        for second in 0..5 {
            assert!(history.plan_restart(at(second)).is_some());
        }
        assert_eq!(history.plan_restart(at(599)), None);
        let delay = history.plan_restart(at(600));
        assert_eq!(delay, Some(Duration::from_secs(64)), "one restart has left the window");
        assert_eq!(history.plan_restart(at(600)), None);
    }
}
