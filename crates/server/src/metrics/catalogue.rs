//! Every metric with its type, labels and help: a contract, and the source of `docs/metrics.md`.

use super::labels::OTHER;
use super::provider_calls::CANCELLED;
use atoll_core::guardian::GuardianAction;
use atoll_core::job::JobKind;
use atoll_core::message::DeliveryMethod;
use atoll_core::model::ModelApi;
use atoll_core::provider::ERROR_CODES;
use atoll_core::sandbox::{Activity, ProviderKind, SandboxState};
use metrics::Label;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    /// A histogram of seconds.
    Seconds,
    /// A histogram of counts.
    Counts,
}

impl MetricKind {
    /// The type in the exposition format.
    #[cfg(test)]
    const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Seconds | Self::Counts => "histogram",
        }
    }
}

/// The values that a label can have.
#[derive(Debug, Clone, Copy)]
pub enum LabelValues {
    /// Values of the program; a series of each exists from the start.
    Fixed(fn() -> Vec<&'static str>),
    /// Bounded values that the program does not list, with a description.
    Bounded(&'static str),
}

#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    pub labels: &'static [(&'static str, LabelValues)],
    pub help: &'static str,
}

macro_rules! metrics_table {
    ($($constant:tt = $name:literal $kind:ident [$($label:literal: $values:expr),*] $help:literal;)+) => {
        $(pub const $constant: &str = $name;)+

        pub const METRICS: &[Metric] = &[$(Metric {
            name: $name,
            kind: MetricKind::$kind,
            labels: &[$(($label, $values)),*],
            help: $help,
        }),+];
    };
}

macro_rules! all_values {
    ($set:ty) => {
        LabelValues::Fixed(|| <$set>::ALL.iter().map(|value| value.as_str()).collect())
    };
}

const ACTIONS: LabelValues = all_values!(GuardianAction);
const JUDGEMENT_RESULTS: LabelValues = LabelValues::Fixed(|| vec!["report", "bad"]);
const STATES: LabelValues = all_values!(SandboxState);
const ACTIVITIES: LabelValues = all_values!(Activity);
const PROVIDERS: LabelValues = all_values!(ProviderKind);
const JOB_KINDS: LabelValues = all_values!(JobKind);
const APIS: LabelValues = all_values!(ModelApi);
const DELIVERIES: LabelValues = all_values!(DeliveryMethod);
const CREATION_PHASES: LabelValues = LabelValues::Fixed(|| vec!["prepare", "provider", "worker", "setup", "total"]);
const WAITING_STATES: LabelValues = LabelValues::Fixed(|| vec!["queued", "leased"]);
const GATEWAY_STATUSES: LabelValues = LabelValues::Fixed(|| vec!["2xx", "3xx", "4xx", "5xx", "refused"]);
const TOKEN_KINDS: LabelValues = LabelValues::Fixed(|| vec!["input", "output", "cache_read", "cache_write"]);
const EGRESS_REASONS: LabelValues = LabelValues::Fixed(|| crate::egress::REFUSAL_CODES.to_vec());
const FAILURE_CODES: LabelValues = LabelValues::Fixed(|| ERROR_CODES.iter().copied().chain([CANCELLED]).collect());
const DATABASES: LabelValues = LabelValues::Fixed(|| vec!["sqlite", "postgres"]);
const OPERATIONS: LabelValues = LabelValues::Bounded("a method of the provider trait, such as `create`");
const METHODS: LabelValues =
    LabelValues::Bounded("`GET`, `HEAD`, `POST`, `PUT`, `PATCH`, `DELETE`, `OPTIONS` or `other`");
const STATUSES: LabelValues = LabelValues::Bounded("`1xx` to `5xx`");
const MODELS: LabelValues = LabelValues::Bounded("a model of the configuration or of the price list, else `other`");
const PROJECTS: LabelValues = LabelValues::Bounded("the id of one of the first 100 projects with a cost, else `other`");

metrics_table! {
    EVENTS_STORED = "atoll_events_stored_total" Counter [] "Events stored from workers";
    EVENTS_DUPLICATE = "atoll_events_duplicate_total" Counter [] "Duplicate events from workers";
    EVENTS_REJECTED = "atoll_events_rejected_total" Counter [] "Rejected events, replaced by worker.rejected";
    EVENTS_DROPPED = "atoll_events_dropped_total" Counter [] "Events that the quota of their sandbox's log did not admit";
    INGEST_SECONDS = "atoll_ingest_seconds" Seconds [] "Time to store a batch of events, with the wait for the sandbox's turn";
    INGEST_LAG_SECONDS = "atoll_ingest_lag_seconds" Seconds [] "Age of a batch's oldest event when it is stored, by the worker's clock";
    SPOOL_BACKLOG = "atoll_spool_backlog_events" Counts [] "Events in a worker's spool that the server has not stored, at each heartbeat";
    MESSAGES_QUEUED = "atoll_messages_queued_total" Counter [] "Messages queued";
    MESSAGES_ACKNOWLEDGED = "atoll_messages_acknowledged_total" Counter ["how": DELIVERIES] "Messages acknowledged, by how they reached the agent";
    MESSAGE_SECONDS = "atoll_message_seconds" Seconds ["how": DELIVERIES] "Time from a message to its acknowledgement";
    MESSAGES_WAITING = "atoll_messages_waiting" Gauge ["state": WAITING_STATES] "Messages of live sandboxes that their agents do not have yet";
    INTERVENTIONS = "atoll_guardian_interventions_total" Counter ["action": ACTIONS] "Findings of the guardian, by action";
    JUDGEMENTS = "atoll_guardian_judgements_total" Counter ["result": JUDGEMENT_RESULTS] "Responses of the judge, by result";
    SANDBOXES_MADE = "atoll_sandboxes_made_total" Counter ["provider": PROVIDERS] "Sandboxes created, by provider";
    SANDBOXES = "atoll_sandboxes" Gauge ["state": STATES] "Sandboxes now, by state";
    SANDBOX_ACTIVITIES = "atoll_sandbox_activities" Gauge ["activity": ACTIVITIES] "Live sandboxes now, by activity";
    CREATION_SECONDS = "atoll_creation_seconds" Seconds ["phase": CREATION_PHASES] "Time to create a sandbox, by phase; total is from the request to running";
    READERS = "atoll_readers" Gauge [] "Connected event readers";
    EVICTED_CONNECTIONS = "atoll_evicted_connections_total" Counter [] "Connections without a principal that were closed to make room";
    WORKERS = "atoll_worker_streams" Gauge [] "Workers connected by WebSocket";
    HOST_LOAD = "atoll_host_load" Gauge [] "Load average of the server's machine over one minute";
    HOST_PROCESSORS = "atoll_host_processors" Gauge [] "Processors of the server's machine";
    HOST_MEMORY = "atoll_host_memory_bytes" Gauge [] "Memory of the server's machine";
    HOST_MEMORY_AVAILABLE = "atoll_host_memory_available_bytes" Gauge [] "Available memory of the server's machine";
    HOST_DISK = "atoll_host_disk_bytes" Gauge [] "Size of the file system with the data directory";
    HOST_DISK_AVAILABLE = "atoll_host_disk_available_bytes" Gauge [] "Free space of the file system with the data directory";
    REQUESTS = "atoll_http_requests_total" Counter ["method": METHODS, "status": STATUSES] "HTTP requests, by method and status class";
    REQUEST_SECONDS = "atoll_http_request_seconds" Seconds [] "Time to answer an HTTP request";
    JOBS_WAITING = "atoll_jobs_waiting" Gauge ["kind": JOB_KINDS] "Due background jobs that no server runs yet";
    JOBS_DONE = "atoll_jobs_done_total" Counter ["kind": JOB_KINDS] "Background jobs done, by kind";
    JOBS_FAILED = "atoll_jobs_failed_total" Counter ["kind": JOB_KINDS] "Failed job attempts, by kind";
    JOB_SECONDS = "atoll_job_seconds" Seconds ["kind": JOB_KINDS] "Time of one run of a background job";
    PROVIDER_CALL_SECONDS = "atoll_provider_call_seconds" Seconds ["provider": PROVIDERS, "operation": OPERATIONS] "Time of a call of a provider";
    PROVIDER_FAILURES = "atoll_provider_failures_total" Counter ["provider": PROVIDERS, "code": FAILURE_CODES] "Failed calls of a provider";
    GATEWAY_REQUESTS = "atoll_gateway_requests_total" Counter ["api": APIS, "status": GATEWAY_STATUSES] "Requests to the model gateway, by the status class of the model's response";
    GATEWAY_SECONDS = "atoll_gateway_seconds" Seconds ["api": APIS] "Time until a model's response begins";
    MODEL_COST = "atoll_model_cost_micros_total" Counter ["model": MODELS] "Cost of models in millionths of a dollar, as the gateway meters it";
    MODEL_TOKENS = "atoll_model_tokens_total" Counter ["model": MODELS, "kind": TOKEN_KINDS] "Tokens of models, as the gateway meters them";
    PROJECT_COST = "atoll_project_cost_micros_total" Counter ["project": PROJECTS] "Cost of a project's models in millionths of a dollar, as the gateway meters it";
    EGRESS_REFUSALS = "atoll_egress_refusals_total" Counter ["reason": EGRESS_REASONS] "Connections that the egress proxy refused";
    _ = "atoll_store_commit_seconds" Seconds ["database": DATABASES] "Time of a write transaction with its commit";
    _ = "atoll_store_commit_units" Counts ["database": DATABASES] "Units of work per commit";
}

/// Describes a metric, and creates each series whose labels are known, so that its first change is visible.
pub fn register_metric(metric: &Metric) {
    match metric.kind {
        MetricKind::Counter => metrics::describe_counter!(metric.name, metric.help),
        MetricKind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
        MetricKind::Seconds | MetricKind::Counts => metrics::describe_histogram!(metric.name, metric.help),
    }
    for labels in first_series(metric) {
        match metric.kind {
            MetricKind::Counter => metrics::counter!(metric.name, labels).increment(0),
            MetricKind::Gauge => metrics::gauge!(metric.name, labels).increment(0.0),
            MetricKind::Seconds | MetricKind::Counts => drop(metrics::histogram!(metric.name, labels)),
        }
    }
}

/// The label sets that exist from the start; a label with `other` begins with it.
fn first_series(metric: &Metric) -> Vec<Vec<Label>> {
    let mut all = vec![Vec::new()];
    for (name, values) in metric.labels {
        let values = match values {
            LabelValues::Fixed(values) => values(),
            LabelValues::Bounded(text) if text.ends_with("else `other`") => vec![OTHER],
            LabelValues::Bounded(_) => return Vec::new(),
        };
        let with = |labels: &Vec<Label>, value| {
            let mut labels = labels.clone();
            labels.push(Label::from_static_parts(name, value));
            labels
        };
        all = values
            .into_iter()
            .flat_map(|value| all.iter().map(move |labels| (labels, value)))
            .map(|(labels, value)| with(labels, value))
            .collect();
    }
    all
}

#[cfg(test)]
#[path = "catalogue_tests.rs"]
mod tests;
