//! How long a command may still run. Time in which its sandbox stands still does not count, and only out here one knows
//! of that.

use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Endless,
    Until(Instant),
    Standing(Duration),
}

impl Left {
    fn stand(self, now: Instant) -> Self {
        match self {
            Self::Until(end) => Self::Standing(end.saturating_duration_since(now)),
            Self::Endless | Self::Standing(_) => self,
        }
    }

    fn go_on(self, now: Instant) -> Self {
        match self {
            Self::Standing(left) => Self::from(now.checked_add(left)),
            Self::Endless | Self::Until(_) => self,
        }
    }
}

impl From<Option<Instant>> for Left {
    /// An end that no clock can show never comes.
    fn from(end: Option<Instant>) -> Self {
        end.map_or(Self::Endless, Self::Until)
    }
}

pub(super) struct Clock(watch::Sender<Left>);

impl Clock {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self(watch::Sender::new(limit.and_then(|limit| Instant::now().checked_add(limit)).into()))
    }

    pub(super) fn stand(&self) {
        self.0.send_modify(|left| *left = left.stand(Instant::now()));
    }

    pub(super) fn go_on(&self) {
        self.0.send_modify(|left| *left = left.go_on(Instant::now()));
    }

    /// Until no time is left.
    pub(super) async fn run_out(&self) {
        let mut changes = self.0.subscribe();
        loop {
            let left = *changes.borrow_and_update();
            let end = async {
                match left {
                    Left::Until(end) => sleep_until(end).await,
                    Left::Endless | Left::Standing(_) => std::future::pending().await,
                }
            };
            tokio::select! {
                () = end => return,
                changed = changes.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn time_that_a_sandbox_stands_still_does_not_count() {
        let clock = Clock::new(Some(3 * SECOND));
        let began = Instant::now();
        let pausing = async {
            tokio::time::sleep(2 * SECOND).await;
            clock.stand();
            tokio::time::sleep(50 * SECOND).await;
            // Twice is as once.
            clock.stand();
            tokio::time::sleep(50 * SECOND).await;
            clock.go_on();
            clock.go_on();
        };
        tokio::join!(clock.run_out(), pausing);
        assert_eq!(began.elapsed().as_secs(), 103);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_it_never_runs_out() {
        for limit in [None, Some(Duration::MAX)] {
            let clock = Clock::new(limit);
            clock.stand();
            clock.go_on();
            assert!(tokio::time::timeout(1_000_000 * SECOND, clock.run_out()).await.is_err());
        }
    }
}
