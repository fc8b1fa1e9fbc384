//! Turns for ingest: each sandbox stores one request at a time, so that the requests of a flooding sandbox wait for each
//! other and not the requests of other sandboxes for them. A waiting request has not sent its body yet.

use crate::problem::{Code, Problem, Result};
use atoll_core::id::SandboxId;
use atoll_core::log_quota::LogUsage;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Mutex as TurnMutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// Requests of one sandbox that wait or run; a worker needs one.
const MAX_WAITING: usize = 16;
/// Sandboxes whose gates stay in memory.
const MAX_IDLE_GATES: usize = 10_000;

#[derive(Debug, Clone)]
struct Gate {
    places: Arc<Semaphore>,
    turn: Arc<TurnMutex<Option<LogUsage>>>,
}

impl Gate {
    fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(MAX_WAITING)), turn: Arc::default() }
    }

    fn is_idle(&self) -> bool {
        self.places.available_permits() == MAX_WAITING && Arc::strong_count(&self.places) == 1
    }
}

/// One gate per sandbox.
#[derive(Debug, Default)]
pub struct IngestGates(Mutex<HashMap<SandboxId, Gate>>);

/// A sandbox's turn. The next request gets it when this is dropped.
#[derive(Debug)]
pub struct IngestTurn {
    /// The size of the log after the last request, if known.
    usage: OwnedMutexGuard<Option<LogUsage>>,
    _place: OwnedSemaphorePermit,
}

impl IngestGates {
    /// Waits for the sandbox's turn. Fails if too many requests of the sandbox wait.
    pub async fn enter(&self, sandbox: SandboxId) -> Result<IngestTurn> {
        let gate = self.gate(sandbox);
        let place = Arc::clone(&gate.places).try_acquire_owned().map_err(|_| {
            let detail = "too many requests of this sandbox are waiting; send one at a time";
            Problem::new(Code::RateLimited, detail).retry_after(1)
        })?;
        Ok(IngestTurn { usage: gate.turn.lock_owned().await, _place: place })
    }

    fn gate(&self, sandbox: SandboxId) -> Gate {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if gates.len() >= MAX_IDLE_GATES && !gates.contains_key(&sandbox) {
            gates.retain(|_, gate| !gate.is_idle());
        }
        gates.entry(sandbox).or_insert_with(Gate::new).clone()
    }
}

impl IngestTurn {
    /// Back-pressure: delays a request of a sandbox whose log is almost full.
    pub async fn delay_request(&self, bytes: usize) {
        if let Some(usage) = *self.usage {
            tokio::time::sleep(usage.delay(bytes as u64)).await;
        }
    }

    pub fn record_usage(&mut self, usage: LogUsage) {
        *self.usage = Some(usage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::time::Duration;
    use tokio::time::Instant;

    #[tokio::test]
    async fn requests_of_one_sandbox_wait_for_each_other_only() {
        let (gates, flooding, other) = (IngestGates::default(), SandboxId::new(), SandboxId::new());
        let first = gates.enter(flooding).await.unwrap();
        let mut waiting: Vec<_> = (1..MAX_WAITING).map(|_| Box::pin(gates.enter(flooding))).collect();
        for request in &mut waiting {
            assert!(request.now_or_never().is_none(), "a second request must wait");
        }
        let refused = gates.enter(flooding).now_or_never().unwrap().unwrap_err();
        assert_eq!(refused.code, Code::RateLimited);
        drop(gates.enter(other).now_or_never().unwrap().unwrap());
        drop(first);
        drop(waiting.remove(0).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_request_waits_if_the_log_is_almost_full() {
        let (gates, sandbox) = (IngestGates::default(), SandboxId::new());
        let mut turn = gates.enter(sandbox).await.unwrap();
        turn.record_usage(LogUsage { used: 3_500, quota: Some(4_000) });
        drop(turn);
        let began = Instant::now();
        gates.enter(sandbox).await.unwrap().delay_request(10).await;
        assert_eq!(began.elapsed(), Duration::from_secs(6));
        let began = Instant::now();
        gates.enter(SandboxId::new()).await.unwrap().delay_request(10).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
