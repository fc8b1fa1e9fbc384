//! One at a time does something to a sandbox.

use crate::locked;
use atoll_core::id::SandboxId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<SandboxId, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Does the work when nobody else does any to this one.
    pub async fn take<T>(&self, sandbox: SandboxId, work: impl Future<Output = T>) -> T {
        let turn = Arc::clone(locked(&self.0).entry(sandbox).or_default());
        let done = {
            let _turn = turn.lock().await;
            work.await
        };
        let mut turns = locked(&self.0);
        // The map's and ours: nobody else waits, and nobody can begin to before this is over.
        if Arc::strong_count(&turn) == 2 {
            turns.remove(&sandbox);
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
    async fn however_many_wait_one_works_and_nothing_is_kept() {
        let (turns, working, sandbox) = (Arc::new(Turns::default()), Arc::new(AtomicU32::new(0)), SandboxId::new());
        let mut all = JoinSet::new();
        for number in 0..20 {
            let (turns, working) = (Arc::clone(&turns), Arc::clone(&working));
            all.spawn(async move {
                // Some come when others are at work, or have just been.
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
                turns.take(sandbox, work).await;
            });
        }
        while let Some(ended) = all.join_next().await {
            ended.unwrap();
        }
        assert!(locked(&turns.0).is_empty());
    }
}
