//! One at a time of what is done to a sandbox as a whole: paused, resumed, forked, kept. The provider does its part and
//! the store another, and two of them between each other would leave the two apart.

use crate::problem::{Problem, Result};
use atoll_core::id::SandboxId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::OwnedMutexGuard;

/// Entries of sandboxes that nobody holds are removed when there are this many.
const TIDY: usize = 1000;

#[derive(Debug, Default)]
pub struct Holds(Mutex<HashMap<SandboxId, Weak<tokio::sync::Mutex<()>>>>);

impl Holds {
    pub async fn hold(&self, id: SandboxId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= TIDY {
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

/// To its end, also if whoever asked goes away: a dropped request must not leave half of it done.
pub async fn wholly<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    tokio::spawn(work).await.unwrap_or_else(|error| Err(Problem::internal(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::time::{Duration, timeout};

    #[tokio::test]
    async fn one_at_a_time_and_only_of_the_same_sandbox() {
        let (holds, one, other) = (Holds::default(), SandboxId::new(), SandboxId::new());
        let held = holds.hold(one).await;
        let _other = holds.hold(other).await;
        assert!(timeout(Duration::from_millis(50), holds.hold(one)).await.is_err());
        drop(held);
        drop(holds.hold(one).await);
    }

    #[tokio::test]
    async fn what_is_begun_is_ended_without_whoever_asked() {
        let (done, go) = (Arc::new(AtomicBool::new(false)), Arc::new(tokio::sync::Notify::new()));
        let (sets, waits) = (Arc::clone(&done), Arc::clone(&go));
        let asked = wholly(async move {
            waits.notified().await;
            sets.store(true, Ordering::SeqCst);
            Ok(())
        });
        assert!(timeout(Duration::from_millis(20), asked).await.is_err(), "whoever asked is gone");
        go.notify_one();
        timeout(Duration::from_secs(60), async {
            while !done.load(Ordering::SeqCst) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }
}
