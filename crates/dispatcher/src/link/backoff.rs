//! Exponential back-off with jitter.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const MAX_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Backoff {
    tries: u32,
    jitter: StdRng,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::seeded(rand::random())
    }
}

impl Backoff {
    /// A back-off with reproducible times.
    pub fn seeded(seed: u64) -> Self {
        Self { tries: 0, jitter: StdRng::seed_from_u64(seed) }
    }

    /// Time to wait now: between half and all of this attempt's time.
    pub fn next_wait(&mut self) -> Duration {
        let whole = FIRST_WAIT.saturating_mul(1 << self.tries.min(10)).min(MAX_WAIT);
        self.tries = self.tries.saturating_add(1);
        whole.mul_f64(self.jitter.random_range(0.5..=1.0))
    }

    pub const fn reset(&mut self) {
        self.tries = 0;
    }

    /// Waits, at least for the time that the server asked for.
    pub async fn wait(&mut self, minimum: Option<Duration>) {
        tokio::time::sleep(self.next_wait().max(minimum.unwrap_or_default())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_start_over() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..60).map(|_| backoff.next_wait()).collect();
        assert!(waits[0] >= FIRST_WAIT / 2 && waits[0] <= FIRST_WAIT);
        assert!(waits.iter().all(|wait| *wait <= MAX_WAIT));
        assert!(waits[20..].iter().all(|wait| *wait >= MAX_WAIT / 2));
        backoff.reset();
        assert!(backoff.next_wait() <= FIRST_WAIT);
    }
}
