//! Which sandboxes stand still. Nobody in one of those is silent: whoever waits for them waits on, and has all their
//! patience anew when it goes on.

use crate::locked;
use atoll_core::provider::ProviderId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, timeout};

#[derive(Debug, Clone, Copy)]
enum Stands {
    Still,
    /// It did until then.
    Until(Instant),
}

/// Those that were ever paused, until they are destroyed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standing(Arc<Mutex<HashMap<ProviderId, Stands>>>);

impl Standing {
    pub(super) fn stand(&self, sandbox: &ProviderId) {
        locked(&self.0).insert(sandbox.clone(), Stands::Still);
    }

    pub(super) fn go_on(&self, sandbox: &ProviderId) {
        if let Some(stands) = locked(&self.0).get_mut(sandbox) {
            *stands = Stands::Until(Instant::now());
        }
    }

    pub(super) fn forget(&self, sandbox: &ProviderId) {
        locked(&self.0).remove(sandbox);
    }

    pub(super) fn stands(&self, sandbox: &ProviderId) -> bool {
        match locked(&self.0).get(sandbox) {
            Some(Stands::Still) => true,
            Some(Stands::Until(_)) | None => false,
        }
    }

    pub(super) fn of(&self, sandbox: &ProviderId) -> Patience {
        Patience { standing: self.clone(), sandbox: sandbox.clone() }
    }
}

/// With one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    standing: Standing,
    sandbox: ProviderId,
}

impl Patience {
    /// Nothing where it takes longer, not counting the time in which the sandbox stands.
    pub(super) async fn within<T>(&self, longest: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        let mut wait = longest;
        loop {
            if let Ok(done) = timeout(wait, &mut work).await {
                return Some(done);
            }
            wait = match locked(&self.standing.0).get(&self.sandbox)? {
                Stands::Still => longest,
                Stands::Until(then) => longest.checked_sub(then.elapsed()).filter(|left| !left.is_zero())?,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn patience_does_not_end_with_whom_stands_still() {
        let (standing, one) = (Standing::default(), ProviderId("one".into()));
        let patience = standing.of(&one);
        let work = |seconds: u32| async move { sleep(SECOND * seconds).await };
        assert!(patience.within(SECOND * 10, work(9)).await.is_some());
        assert!(patience.within(SECOND * 10, work(11)).await.is_none());
        standing.stand(&one);
        assert!(patience.within(SECOND * 10, work(1000)).await.is_some());
        let waiting = patience.within(SECOND * 10, work(1000));
        let began = Instant::now();
        let (waited, ()) = tokio::join!(waiting, async {
            sleep(SECOND * 99).await;
            standing.go_on(&one);
        });
        assert!(waited.is_none() && began.elapsed() >= SECOND * 109 && began.elapsed() < SECOND * 112);
        standing.forget(&one);
        assert!(patience.within(SECOND * 10, work(11)).await.is_none());
    }
}
