//! The server's metrics: their recorder, and the labels that follow the configuration.

mod catalogue;
mod labels;
mod provider_calls;

pub use catalogue::*;
pub use labels::{model_label, project_label};
pub use provider_calls::ProviderCallMeter;

use metrics::Label;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::time::Duration;

const SECONDS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0];
const COUNTS: &[f64] = &[0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 1_000.0, 10_000.0, 100_000.0];

/// Installs the process's recorder. Servers in one process (in tests) share it.
pub fn install_recorder() -> PrometheusHandle {
    static HANDLE: std::sync::OnceLock<PrometheusHandle> = std::sync::OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let mut builder = PrometheusBuilder::new();
            for metric in METRICS {
                let buckets = match metric.kind {
                    MetricKind::Seconds => SECONDS,
                    MetricKind::Counts => COUNTS,
                    MetricKind::Counter | MetricKind::Gauge => continue,
                };
                // Only an empty list of buckets is an error.
                builder = match builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets) {
                    Ok(builder) => builder,
                    Err(_) => PrometheusBuilder::new(),
                };
            }
            let recorder = builder.build_recorder();
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed; /metrics stays empty");
            }
            METRICS.iter().for_each(register_metric);
            handle
        })
        .clone()
}

/// Records a duration in a histogram of seconds.
pub fn record_seconds(name: &'static str, labels: &[(&'static str, &'static str)], duration: Duration) {
    let labels: Vec<Label> = labels.iter().map(|(key, value)| Label::from_static_parts(key, value)).collect();
    metrics::histogram!(name, labels).record(duration.as_secs_f64());
}
