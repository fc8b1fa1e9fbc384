//! The anomaly of an agent: a composite of its latency, errors, resources and waiting messages.

/// Anomalies in a row before one is shown.
const SHOWN_AFTER: u32 = 3;
/// A composite of at least this is an anomaly.
const ANOMALY_SCORE: f64 = 0.4;
/// Standard deviations that count in full.
const FULL_LATENCY_Z: f64 = 4.0;
/// Multiple of the other agents' median of a resource that counts in full.
const FULL_RESOURCE_RATIO: f64 = 8.0;
/// Waiting messages that count in full.
const FULL_QUEUE: f64 = 10.0;

/// Measures of one agent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AnomalyMeasure {
    /// Distance of the newest tool calls from the agent's usual time, in standard deviations.
    pub latency_z: f64,
    /// Share of failed tool calls among the newest ones.
    pub error_rate: f64,
    /// The highest ratio of its processors or memory to the median of all agents.
    pub resource_ratio: f64,
    /// Messages that wait for it.
    pub waiting_messages: u32,
}

impl AnomalyMeasure {
    /// The composite from 0 to 1: errors count most, then latency, then resources and the queue.
    pub fn score(self) -> f64 {
        let share = |value: f64, full: f64| if value.is_finite() { (value / full).clamp(0.0, 1.0) } else { 0.0 };
        let composite = 0.4 * share(self.error_rate, 1.0)
            + 0.3 * share(self.latency_z, FULL_LATENCY_Z)
            + 0.15 * share(self.resource_ratio - 1.0, FULL_RESOURCE_RATIO - 1.0)
            + 0.15 * share(f64::from(self.waiting_messages), FULL_QUEUE);
        (composite * 100.0).round() / 100.0
    }
}

/// The ratio of a value to the median of all; 1 where nothing can be compared.
pub fn ratio_to_median(value: f64, all: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = all.iter().copied().filter(|one| one.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.get(sorted.len() / 2) {
        Some(median) if sorted.len() >= 3 && *median > 0.0 && value.is_finite() => value / median,
        Some(_) | None => 1.0,
    }
}

/// Anomalies in a row of one agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnomalyStreak(u32);

impl AnomalyStreak {
    /// Records the score of a round.
    pub fn record_score(&mut self, score: f64) {
        self.0 = if score >= ANOMALY_SCORE { self.0.saturating_add(1) } else { 0 };
    }

    pub const fn length(self) -> u32 {
        self.0
    }

    /// One bad round is noise.
    pub const fn is_shown(self) -> bool {
        self.0 >= SHOWN_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: AnomalyMeasure =
        AnomalyMeasure { latency_z: 0.0, error_rate: 0.0, resource_ratio: 1.0, waiting_messages: 0 };

    #[test]
    fn the_score_combines_four_measures() {
        for (measure, score) in [
            (CALM, 0.0),
            (AnomalyMeasure { error_rate: 1.0, ..CALM }, 0.4),
            (AnomalyMeasure { latency_z: 4.0, ..CALM }, 0.3),
            (AnomalyMeasure { latency_z: 400.0, ..CALM }, 0.3),
            (AnomalyMeasure { latency_z: -4.0, ..CALM }, 0.0),
            (AnomalyMeasure { resource_ratio: 8.0, ..CALM }, 0.15),
            (AnomalyMeasure { waiting_messages: 20, ..CALM }, 0.15),
            (AnomalyMeasure { latency_z: 2.0, error_rate: 0.5, waiting_messages: 5, ..CALM }, 0.43),
            (AnomalyMeasure { latency_z: 9.0, error_rate: 1.0, resource_ratio: 99.0, waiting_messages: 99 }, 1.0),
            (AnomalyMeasure { latency_z: f64::NAN, error_rate: f64::INFINITY, ..CALM }, 0.0),
        ] {
            assert_eq!(measure.score(), score, "{measure:?}");
        }
    }

    #[test]
    fn an_anomaly_is_shown_after_three_in_a_row() {
        let mut streak = AnomalyStreak::default();
        let shown: Vec<bool> = [0.5, 0.9, 0.39, 0.4, 0.4, 0.4, 1.0, 0.0]
            .into_iter()
            .map(|score| {
                streak.record_score(score);
                streak.is_shown()
            })
            .collect();
        assert_eq!(shown, [false, false, false, false, false, true, true, false]);
    }

    #[test]
    fn a_resource_is_compared_with_the_median_of_three_or_more() {
        assert_eq!(ratio_to_median(8.0, &[8.0, 1.0]), 1.0);
        assert_eq!(ratio_to_median(8.0, &[8.0, 2.0, 1.0]), 4.0);
        assert_eq!(ratio_to_median(8.0, &[8.0, 0.0, 0.0]), 1.0);
        assert_eq!(ratio_to_median(f64::NAN, &[1.0, 2.0, 3.0]), 1.0);
    }
}
