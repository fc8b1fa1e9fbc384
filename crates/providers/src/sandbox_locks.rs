//! A lock per sandbox.

use crate::lock_state;
use atoll_core::id::SandboxId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

#[derive(Default)]
pub(crate) struct SandboxLocks(Mutex<HashMap<SandboxId, Arc<tokio::sync::Mutex<()>>>>);

impl SandboxLocks {
    /// Runs `work` while holding the sandbox's lock.
    pub async fn run_exclusive<T>(&self, sandbox: SandboxId, work: impl Future<Output = T>) -> T {
        let turn = Arc::clone(lock_state(&self.0).entry(sandbox).or_default());
        let done = {
            let _turn = turn.lock().await;
            work.await
        };
        let mut locks = lock_state(&self.0);
        // Only the map and this call hold the lock, and `turns` stops a new one from waiting.
        if Arc::strong_count(&turn) == 2 {
            locks.remove(&sandbox);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::task::{JoinSet, yield_now};

    #[tokio::test]
    async fn one_task_at_a_time_runs_per_sandbox_and_no_lock_remains() {
        let (locks, working, sandbox) =
            (Arc::new(SandboxLocks::default()), Arc::new(AtomicU32::new(0)), SandboxId::new());
        let mut all = JoinSet::new();
        for number in 0..20 {
            let (locks, working) = (Arc::clone(&locks), Arc::clone(&working));
            all.spawn(async move {
                // Start while others hold or have just released the lock.
                for _ in 0..number * 3 {
                    yield_now().await;
                }
                let work = async {
                    assert_eq!(working.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    for _ in 0..5 {
                        yield_now().await;
                    }
                    working.fetch_sub(1, Ordering::SeqCst);
                };
                locks.run_exclusive(sandbox, work).await;
            });
        }
        while let Some(ended) = all.join_next().await {
            ended.unwrap();
        }
        assert!(lock_state(&locks.0).is_empty());
    }
}
