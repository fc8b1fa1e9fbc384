//! Tracks paused sandboxes. Time-outs do not run while a sandbox is paused and start again when it resumes.

use crate::lock_state;
use atoll_core::provider::ProviderId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, timeout};

#[derive(Debug, Clone, Copy)]
enum PauseState {
    Paused,
    /// Was paused until this instant.
    ResumedAt(Instant),
}

/// The sandboxes that were ever paused and are not destroyed.
#[derive(Debug, Clone, Default)]
pub(crate) struct PausedSandboxes(Arc<Mutex<HashMap<ProviderId, PauseState>>>);

impl PausedSandboxes {
    pub(super) fn mark_paused(&self, sandbox: &ProviderId) {
        lock_state(&self.0).insert(sandbox.clone(), PauseState::Paused);
    }

    pub(super) fn mark_resumed(&self, sandbox: &ProviderId) {
        if let Some(state) = lock_state(&self.0).get_mut(sandbox) {
            *state = PauseState::ResumedAt(Instant::now());
        }
    }

    pub(super) fn forget_sandbox(&self, sandbox: &ProviderId) {
        lock_state(&self.0).remove(sandbox);
    }

    pub(super) fn is_paused(&self, sandbox: &ProviderId) -> bool {
        match lock_state(&self.0).get(sandbox) {
            Some(PauseState::Paused) => true,
            Some(PauseState::ResumedAt(_)) | None => false,
        }
    }

    pub(super) fn timeout_for(&self, sandbox: &ProviderId) -> PauseAwareTimeout {
        PauseAwareTimeout { pauses: self.clone(), sandbox: sandbox.clone() }
    }
}

/// A time-out for one sandbox that stops while it is paused.
#[derive(Debug, Clone)]
pub(crate) struct PauseAwareTimeout {
    pauses: PausedSandboxes,
    sandbox: ProviderId,
}

impl PauseAwareTimeout {
    /// Returns `None` if `work` takes longer than `longest`, not counting paused time.
    pub(super) async fn run_within<T>(&self, longest: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        let mut wait = longest;
        loop {
            if let Ok(done) = timeout(wait, &mut work).await {
                return Some(done);
            }
            wait = match lock_state(&self.pauses.0).get(&self.sandbox)? {
                PauseState::Paused => longest,
                PauseState::ResumedAt(then) => longest.checked_sub(then.elapsed()).filter(|left| !left.is_zero())?,
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
    async fn timeouts_stop_while_a_sandbox_is_paused() {
        let (pauses, one) = (PausedSandboxes::default(), ProviderId("one".into()));
        let patience = pauses.timeout_for(&one);
        let work = |seconds: u32| async move { sleep(SECOND * seconds).await };
        assert!(patience.run_within(SECOND * 10, work(9)).await.is_some());
        assert!(patience.run_within(SECOND * 10, work(11)).await.is_none());
        pauses.mark_paused(&one);
        assert!(patience.run_within(SECOND * 10, work(1000)).await.is_some());
        let waiting = patience.run_within(SECOND * 10, work(1000));
        let began = Instant::now();
        let (waited, ()) = tokio::join!(waiting, async {
            sleep(SECOND * 99).await;
            pauses.mark_resumed(&one);
        });
        assert!(waited.is_none() && began.elapsed() >= SECOND * 109 && began.elapsed() < SECOND * 112);
        pauses.forget_sandbox(&one);
        assert!(patience.run_within(SECOND * 10, work(11)).await.is_none());
    }
}
