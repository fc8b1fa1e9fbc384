//! Medians and quantiles.

use std::time::Duration;

/// The median; NaN for no values, which meets no bar.
pub fn median_of(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// The quantile by nearest rank.
fn nearest_rank(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * part).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Latencies in milliseconds.
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
        nearest_rank(&mut self.0, 0.5)
    }

    pub fn p95(&mut self) -> f64 {
        nearest_rank(&mut self.0, 0.95)
    }

    pub fn p99(&mut self) -> f64 {
        nearest_rank(&mut self.0, 0.99)
    }

    pub fn max(&mut self) -> f64 {
        nearest_rank(&mut self.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_use_the_nearest_rank() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(
            (nearest_rank(&mut values, 0.5), nearest_rank(&mut values, 0.99), nearest_rank(&mut values, 1.0)),
            (50., 99., 100.)
        );
        assert_eq!((median_of([3.0, 1.0, 2.0]), median_of([4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
        assert!(median_of([]).is_nan());
    }
}
