//! Waiting between tries: longer each time, and never in step with other workers.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Backoff {
    tries: u32,
}

impl Backoff {
    /// How long to wait now: between half and all of what this try's turn is.
    pub fn next_wait(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.tries.min(10)).min(LONGEST);
        self.tries = self.tries.saturating_add(1);
        whole.mul_f64(rand::random_range(0.5..=1.0))
    }

    pub const fn reset(&mut self) {
        self.tries = 0;
    }

    /// Waits; at least as long as the server asked for.
    pub async fn wait(&mut self, asked: Option<Duration>) {
        tokio::time::sleep(self.next_wait().max(asked.unwrap_or_default())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_start_over() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..60).map(|_| backoff.next_wait()).collect();
        assert!(waits[0] >= FIRST / 2 && waits[0] <= FIRST);
        assert!(waits.iter().all(|wait| *wait <= LONGEST));
        assert!(waits[20..].iter().all(|wait| *wait >= LONGEST / 2));
        backoff.reset();
        assert!(backoff.next_wait() <= FIRST);
    }
}
