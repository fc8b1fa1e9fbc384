//! The names of all metrics, in one place, and how they are rendered.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

pub const EVENTS_STORED: &str = "atoll_events_stored_total";
pub const EVENTS_DUPLICATE: &str = "atoll_events_duplicate_total";
pub const EVENTS_REJECTED: &str = "atoll_events_rejected_total";
pub const MESSAGES_QUEUED: &str = "atoll_messages_queued_total";
pub const MESSAGES_ACKNOWLEDGED: &str = "atoll_messages_acknowledged_total";
pub const SANDBOXES_MADE: &str = "atoll_sandboxes_made_total";
pub const SANDBOXES: &str = "atoll_sandboxes";
pub const READERS: &str = "atoll_readers";
pub const WORKERS: &str = "atoll_worker_streams";
pub const REQUESTS: &str = "atoll_http_requests_total";
pub const REQUEST_SECONDS: &str = "atoll_http_request_seconds";
pub const JOBS_DONE: &str = "atoll_jobs_done_total";
pub const JOBS_FAILED: &str = "atoll_jobs_failed_total";

const DESCRIBED: &[(&str, &str)] = &[
    (EVENTS_STORED, "Events stored from workers"),
    (EVENTS_DUPLICATE, "Events that a worker sent again"),
    (EVENTS_REJECTED, "Events that were out of bounds and replaced by worker.rejected"),
    (MESSAGES_QUEUED, "Messages put into inboxes"),
    (MESSAGES_ACKNOWLEDGED, "Messages that reached an agent"),
    (SANDBOXES_MADE, "Sandboxes made, by provider"),
    (SANDBOXES, "Sandboxes now, by state"),
    (READERS, "Readers of events connected now"),
    (WORKERS, "Workers connected by stream now"),
    (REQUESTS, "HTTP requests, by method and status class"),
    (REQUEST_SECONDS, "Time to answer an HTTP request"),
    (JOBS_DONE, "Background jobs done, by kind"),
    (JOBS_FAILED, "Background jobs that failed and will be tried again, by kind"),
];

/// The process has one recorder; a second server in it (in tests) shares the first one's.
pub fn install() -> PrometheusHandle {
    static HANDLE: std::sync::OnceLock<PrometheusHandle> = std::sync::OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let builder = PrometheusBuilder::new();
            let builder = builder.set_buckets(&[0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0]);
            let recorder = match builder {
                Ok(builder) => builder.build_recorder(),
                Err(_) => PrometheusBuilder::new().build_recorder(),
            };
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed; /metrics stays empty");
            }
            for (name, text) in DESCRIBED {
                match *name {
                    READERS | WORKERS | SANDBOXES => metrics::describe_gauge!(*name, *text),
                    REQUEST_SECONDS => metrics::describe_histogram!(*name, *text),
                    _ => metrics::describe_counter!(*name, *text),
                }
            }
            handle
        })
        .clone()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_a_contract() {
        let names: Vec<_> = super::DESCRIBED.iter().map(|(name, _)| *name).collect();
        insta::assert_json_snapshot!(names);
    }
}
