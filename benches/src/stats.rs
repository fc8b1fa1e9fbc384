//! Medians and quantiles.

use std::time::Duration;

/// Between the two in the middle, where there are two; of nothing, NaN, which no bar is met by.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// By nearest rank.
fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * part).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// How long things took, in milliseconds.
#[derive(Debug, Clone, Default)]
pub struct Latencies(Vec<f64>);

impl Latencies {
    pub fn push(&mut self, took: Duration) {
        self.0.push(took.as_secs_f64() * 1000.0);
    }

    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn p50(&mut self) -> f64 {
        quantile(&mut self.0, 0.5)
    }

    pub fn p95(&mut self) -> f64 {
        quantile(&mut self.0, 0.95)
    }

    pub fn p99(&mut self) -> f64 {
        quantile(&mut self.0, 0.99)
    }

    pub fn max(&mut self) -> f64 {
        quantile(&mut self.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_go_by_nearest_rank() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(
            (quantile(&mut values, 0.5), quantile(&mut values, 0.99), quantile(&mut values, 1.0)),
            (50., 99., 100.)
        );
        assert_eq!((median([3.0, 1.0, 2.0]), median([4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
        assert!(median([]).is_nan());
    }
}
