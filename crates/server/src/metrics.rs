//! The names and descriptions of all metrics.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

pub const EVENTS_STORED: &str = "atoll_events_stored_total";
pub const EVENTS_DUPLICATE: &str = "atoll_events_duplicate_total";
pub const EVENTS_REJECTED: &str = "atoll_events_rejected_total";
pub const EVENTS_DROPPED: &str = "atoll_events_dropped_total";
pub const MESSAGES_QUEUED: &str = "atoll_messages_queued_total";
pub const MESSAGES_ACKNOWLEDGED: &str = "atoll_messages_acknowledged_total";
pub const INTERVENTIONS: &str = "atoll_guardian_interventions_total";
pub const JUDGEMENTS: &str = "atoll_guardian_judgements_total";
pub const SANDBOXES_MADE: &str = "atoll_sandboxes_made_total";
pub const SANDBOXES: &str = "atoll_sandboxes";
pub const READERS: &str = "atoll_readers";
pub const EVICTED_CONNECTIONS: &str = "atoll_evicted_connections_total";
pub const WORKERS: &str = "atoll_worker_streams";
pub const REQUESTS: &str = "atoll_http_requests_total";
pub const REQUEST_SECONDS: &str = "atoll_http_request_seconds";
pub const JOBS_DONE: &str = "atoll_jobs_done_total";
pub const JOBS_FAILED: &str = "atoll_jobs_failed_total";

const DESCRIPTIONS: &[(&str, &str)] = &[
    (EVENTS_STORED, "Events stored from workers"),
    (EVENTS_DUPLICATE, "Duplicate events from workers"),
    (EVENTS_REJECTED, "Rejected events, replaced by worker.rejected"),
    (EVENTS_DROPPED, "Events that the quota of their sandbox's log did not admit"),
    (MESSAGES_QUEUED, "Messages queued"),
    (MESSAGES_ACKNOWLEDGED, "Messages acknowledged"),
    (INTERVENTIONS, "Findings of the guardian, by action"),
    (JUDGEMENTS, "Responses of the judge, by result"),
    (SANDBOXES_MADE, "Sandboxes created, by provider"),
    (SANDBOXES, "Sandboxes now, by state"),
    (READERS, "Connected event readers"),
    (EVICTED_CONNECTIONS, "Connections without a principal that were closed to make room"),
    (WORKERS, "Workers connected by WebSocket"),
    (REQUESTS, "HTTP requests, by method and status class"),
    (REQUEST_SECONDS, "Time to answer an HTTP request"),
    (JOBS_DONE, "Background jobs done, by kind"),
    (JOBS_FAILED, "Failed job attempts, by kind"),
];

/// Installs the process's recorder. Servers in one process (in tests) share it.
pub fn install_recorder() -> PrometheusHandle {
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
            for (name, text) in DESCRIPTIONS {
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
        let names: Vec<_> = super::DESCRIPTIONS.iter().map(|(name, _)| *name).collect();
        insta::assert_json_snapshot!(names);
    }
}
