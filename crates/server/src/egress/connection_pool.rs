//! Shares the proxy's connections fairly between sandboxes.
//!
//! A sandbox can always open a few connections. Beyond them it may hold as many as a part of what is still free, so that
//! some stay free however many sandboxes take all they can.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// Connections that every sandbox can open, even if others hold many.
const GUARANTEED_CONNECTIONS: usize = 16;
/// A sandbox may hold a quarter of the free connections.
const FREE_DIVISOR: usize = 4;

/// The connections of all sandboxes.
#[derive(Debug)]
pub struct ConnectionPool {
    most: usize,
    /// Most connections of one sandbox.
    most_of_one: usize,
    used: Mutex<usize>,
    released: Notify,
}

/// The connections of one sandbox.
#[derive(Debug, Default)]
pub struct ConnectionShare(AtomicUsize);

/// One connection; dropping it releases the connection.
#[derive(Debug)]
pub struct ConnectionPermit {
    pool: Arc<ConnectionPool>,
    share: Arc<ConnectionShare>,
}

impl ConnectionPool {
    pub fn new(most: usize, most_of_one: usize) -> Self {
        Self { most, most_of_one, used: Mutex::new(0), released: Notify::new() }
    }

    /// Waits until the sandbox may open another connection.
    pub async fn acquire(self: &Arc<Self>, share: &Arc<ConnectionShare>) -> ConnectionPermit {
        loop {
            let released = self.released.notified();
            if let Some(permit) = self.try_acquire(share) {
                return permit;
            }
            released.await;
        }
    }

    fn try_acquire(self: &Arc<Self>, share: &Arc<ConnectionShare>) -> Option<ConnectionPermit> {
        // All changes of the counters happen under this lock.
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let own = share.0.load(Ordering::Relaxed);
        if !may_open(own, self.most.saturating_sub(*used), self.most_of_one) {
            return None;
        }
        *used += 1;
        share.0.store(own + 1, Ordering::Relaxed);
        Some(ConnectionPermit { pool: Arc::clone(self), share: Arc::clone(share) })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut used = self.pool.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used = used.saturating_sub(1);
        let own = self.share.0.load(Ordering::Relaxed);
        self.share.0.store(own.saturating_sub(1), Ordering::Relaxed);
        drop(used);
        self.pool.released.notify_waiters();
    }
}

/// Returns true if a sandbox with `own` connections may open another one.
const fn may_open(own: usize, free: usize, most_of_one: usize) -> bool {
    own < GUARANTEED_CONNECTIONS || (own < most_of_one && own < free / FREE_DIVISOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(pool: &Arc<ConnectionPool>, share: &Arc<ConnectionShare>) -> Vec<ConnectionPermit> {
        std::iter::from_fn(|| pool.try_acquire(share)).collect()
    }

    #[test]
    fn many_greedy_sandboxes_leave_connections_to_the_next_one() {
        let pool = Arc::new(ConnectionPool::new(4096, 256));
        let greedy: Vec<_> = (0..64).map(|_| take_all(&pool, &Arc::default())).collect();
        assert_eq!(greedy[0].len(), 256, "alone, a sandbox gets its maximum");
        for (number, permits) in greedy.iter().enumerate() {
            assert!(permits.len() >= GUARANTEED_CONNECTIONS, "sandbox {number} has {}", permits.len());
        }
        let next = take_all(&pool, &Arc::default());
        assert!(next.len() >= GUARANTEED_CONNECTIONS, "{}", next.len());
        drop((greedy, next));
        assert_eq!(*pool.used.lock().unwrap(), 0);
        assert_eq!(take_all(&pool, &Arc::default()).len(), 256);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_sandbox_continues_when_a_connection_ends() {
        let pool = Arc::new(ConnectionPool::new(64, 20));
        let share = Arc::default();
        let mut permits = take_all(&pool, &share);
        assert_eq!(permits.len(), GUARANTEED_CONNECTIONS);
        let waiting = tokio::spawn({
            let (pool, share) = (Arc::clone(&pool), Arc::clone(&share));
            async move { pool.acquire(&share).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(permits.pop());
        drop(waiting.await.unwrap());
    }
}
