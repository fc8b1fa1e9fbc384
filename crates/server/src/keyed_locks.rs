//! Locks by key. Pause, resume, fork and snapshot lock their sandbox: each changes the provider and then the store, and
//! interleaved operations would leave the two inconsistent. Set-up locks its layer.

use crate::problem::{Problem, Result};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::OwnedMutexGuard;

/// Unused locks are pruned when there are this many entries.
const PRUNE_AT_LOCKS: usize = 1000;

#[derive(Debug)]
pub struct KeyedLocks<K>(Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>);

impl<K> Default for KeyedLocks<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> KeyedLocks<K> {
    pub async fn lock(&self, key: K) -> OwnedMutexGuard<()> {
        let lock = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= PRUNE_AT_LOCKS {
                all.retain(|_, lock| lock.strong_count() > 0);
            }
            let known = all.get(&key).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let lock = Arc::default();
                all.insert(key, Arc::downgrade(&lock));
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
    async fn locks_one_key_at_a_time() {
        let (holds, one, other) = (KeyedLocks::default(), "one", "other");
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
