//! Wakes the job runner after a commit, and hands it the jobs that a transaction has claimed for it.

use atoll_store::jobs::Job;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// A claimed job that is not finished after this time runs again.
pub const CLAIM_DURATION: Duration = Duration::from_secs(3600);

#[derive(Debug, Default)]
pub struct JobQueue {
    claimed: Mutex<Vec<Job>>,
    wake: Notify,
}

impl JobQueue {
    pub fn wake_runner(&self, claimed: Vec<Job>) {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner).extend(claimed);
        self.wake.notify_one();
    }

    /// Waits for the next `wake_runner`.
    pub async fn wait(&self) {
        self.wake.notified().await;
    }

    pub fn take_claimed(&self) -> Vec<Job> {
        std::mem::take(&mut *self.claimed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
