//! The usual time of an agent's tool calls, and how far the newest ones are from it.

use std::collections::VecDeque;

/// Calls before there is a usual time.
const MIN_CALLS: u32 = 10;
/// Calls whose mean is compared with the usual time.
const RECENT_CALLS: usize = 5;
/// The usual time follows a change within about this many calls.
const MEMORY_CALLS: f64 = 50.0;
/// Deviations below this share of the mean are noise.
const MIN_DEVIATION_SHARE: f64 = 0.1;

/// A decaying mean and variance of the logarithm of the seconds: times of calls differ by orders of magnitude.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LatencyBaseline {
    calls: u32,
    mean: f64,
    variance: f64,
    recent: VecDeque<f64>,
}

impl LatencyBaseline {
    /// Adds a call. A call enters the usual time only when newer ones have replaced it among the recent ones.
    pub(super) fn record_call(&mut self, seconds: f64) {
        self.recent.push_back(seconds.max(0.001).ln());
        if self.recent.len() <= RECENT_CALLS {
            return;
        }
        let Some(value) = self.recent.pop_front() else { return };
        self.calls = self.calls.saturating_add(1);
        let weight = (1.0 / f64::from(self.calls)).max(1.0 / MEMORY_CALLS);
        let distance = value - self.mean;
        self.mean += weight * distance;
        self.variance = (1.0 - weight) * (self.variance + weight * distance * distance);
    }

    /// The distance of the recent calls from the usual time in standard deviations; 0 while that is unknown.
    pub(super) fn z_score(&self) -> f64 {
        if self.calls < MIN_CALLS || self.recent.is_empty() {
            return 0.0;
        }
        let count = u32::try_from(self.recent.len()).unwrap_or(u32::MAX);
        let recent = self.recent.iter().sum::<f64>() / f64::from(count);
        let deviation = self.variance.sqrt().max(self.mean.abs() * MIN_DEVIATION_SHARE).max(MIN_DEVIATION_SHARE);
        (recent - self.mean) / deviation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(calls: impl IntoIterator<Item = f64>) -> LatencyBaseline {
        let mut latency = LatencyBaseline::default();
        calls.into_iter().for_each(|seconds| latency.record_call(seconds));
        latency
    }

    #[test]
    fn slower_calls_than_usual_have_a_high_score() {
        let usual = || [0.5, 1.0, 2.0].into_iter().cycle().take(30);
        assert_eq!(baseline([9.0; 8]).z_score(), 0.0, "too few calls");
        assert!(baseline(usual()).z_score().abs() < 1.0);
        assert!(baseline(usual().chain([60.0; 5])).z_score() > 4.0);
        assert!(baseline(usual().chain([0.01; 5])).z_score() < -4.0);
        let used_to_it = baseline(usual().chain([60.0; 400]));
        assert!(used_to_it.z_score() < 1.0, "a new usual time");
        assert!(used_to_it.recent.len() == RECENT_CALLS && used_to_it.z_score().is_finite());
    }
}
