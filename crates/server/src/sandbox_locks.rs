//! Per-sandbox locks for pause, resume, fork and snapshot. Each changes the provider and then the store; interleaved
//! operations would leave the two inconsistent.

use crate::problem::{Problem, Result};
use atoll_core::id::SandboxId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::OwnedMutexGuard;

/// Unused locks are pruned when there are this many entries.
const PRUNE_AT_LOCKS: usize = 1000;

#[derive(Debug, Default)]
pub struct SandboxLocks(Mutex<HashMap<SandboxId, Weak<tokio::sync::Mutex<()>>>>);

impl SandboxLocks {
    pub async fn lock(&self, id: SandboxId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= PRUNE_AT_LOCKS {
                all.retain(|_, lock| lock.strong_count() > 0);
            }
            let known = all.get(&id).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let lock = Arc::default();
                all.insert(id, Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}

/// Runs an operation to its end, even if the client disconnects.
pub async fn run_to_completion<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    tokio::spawn(work).await.unwrap_or_else(|error| Err(Problem::internal(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_test_wait::poll_until;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::time::{Duration, timeout};

    #[tokio::test]
    async fn locks_one_sandbox_at_a_time() {
        let (holds, one, other) = (SandboxLocks::default(), SandboxId::new(), SandboxId::new());
        let guard = holds.lock(one).await;
        let _other = holds.lock(other).await;
        assert!(timeout(Duration::from_millis(50), holds.lock(one)).await.is_err());
        drop(guard);
        drop(holds.lock(one).await);
    }

    #[tokio::test]
    async fn an_operation_outlives_its_request() {
        let (done, go) = (Arc::new(AtomicBool::new(false)), Arc::new(tokio::sync::Notify::new()));
        let (sets, waits) = (Arc::clone(&done), Arc::clone(&go));
        let operation = run_to_completion(async move {
            waits.notified().await;
            sets.store(true, Ordering::SeqCst);
            Ok(())
        });
        assert!(timeout(Duration::from_millis(20), operation).await.is_err(), "the request is cancelled");
        go.notify_one();
        poll_until("the operation's end", async || done.load(Ordering::SeqCst)).await;
    }
}
