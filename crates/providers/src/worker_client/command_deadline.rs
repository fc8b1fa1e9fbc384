//! A command's deadline. It stops while the sandbox is paused, which only the server knows.

use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TimeLeft {
    Unlimited,
    Until(Instant),
    Paused(Duration),
}

impl TimeLeft {
    fn pause(self, now: Instant) -> Self {
        match self {
            Self::Until(end) => Self::Paused(end.saturating_duration_since(now)),
            Self::Unlimited | Self::Paused(_) => self,
        }
    }

    fn resume(self, now: Instant) -> Self {
        match self {
            Self::Paused(left) => Self::from(now.checked_add(left)),
            Self::Unlimited | Self::Until(_) => self,
        }
    }
}

impl From<Option<Instant>> for TimeLeft {
    /// An instant out of range means no limit.
    fn from(end: Option<Instant>) -> Self {
        end.map_or(Self::Unlimited, Self::Until)
    }
}

pub(super) struct CommandDeadline(watch::Sender<TimeLeft>);

impl CommandDeadline {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self(watch::Sender::new(limit.and_then(|limit| Instant::now().checked_add(limit)).into()))
    }

    pub(super) fn pause(&self) {
        self.0.send_modify(|left| *left = left.pause(Instant::now()));
    }

    pub(super) fn resume(&self) {
        self.0.send_modify(|left| *left = left.resume(Instant::now()));
    }

    /// Returns when the deadline passes.
    pub(super) async fn wait_until_expired(&self) {
        let mut changes = self.0.subscribe();
        loop {
            let left = *changes.borrow_and_update();
            let end = async {
                match left {
                    TimeLeft::Until(end) => sleep_until(end).await,
                    TimeLeft::Unlimited | TimeLeft::Paused(_) => std::future::pending().await,
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
    async fn paused_time_does_not_count() {
        let clock = CommandDeadline::new(Some(3 * SECOND));
        let began = Instant::now();
        let pausing = async {
            tokio::time::sleep(2 * SECOND).await;
            clock.pause();
            tokio::time::sleep(50 * SECOND).await;
            // Pausing twice has no further effect.
            clock.pause();
            tokio::time::sleep(50 * SECOND).await;
            clock.resume();
            clock.resume();
        };
        tokio::join!(clock.wait_until_expired(), pausing);
        assert_eq!(began.elapsed().as_secs(), 103);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_it_never_expires() {
        for limit in [None, Some(Duration::MAX)] {
            let clock = CommandDeadline::new(limit);
            clock.pause();
            clock.resume();
            assert!(tokio::time::timeout(1_000_000 * SECOND, clock.wait_until_expired()).await.is_err());
        }
    }
}
