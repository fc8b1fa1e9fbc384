//! Measures commits. The server describes the metrics.

use std::time::Duration;

/// Histogram of the seconds of a write transaction, labelled with the `database`.
pub const COMMIT_SECONDS: &str = "atoll_store_commit_seconds";
/// Histogram of the units of work per commit, labelled with the `database`.
pub const COMMIT_UNITS: &str = "atoll_store_commit_units";

pub(crate) fn record_commit(database: &'static str, duration: Duration, units: usize) {
    metrics::histogram!(COMMIT_SECONDS, "database" => database).record(duration.as_secs_f64());
    metrics::histogram!(COMMIT_UNITS, "database" => database).record(u32::try_from(units).unwrap_or(u32::MAX));
}
