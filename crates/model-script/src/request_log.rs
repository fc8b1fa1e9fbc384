//! The log of requests and outcomes, for tests.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// One received request, including credentials: tests check which key arrives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecordedRequest {
    /// Starts at 1.
    pub number: u64,
    pub at: Timestamp,
    pub method: String,
    /// Includes the query.
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// JSON, or else text.
    pub body: Value,
    /// The agent's session id; empty if there is none.
    pub session: String,
    /// The script that answered; none for side requests.
    pub script: Option<String>,
    /// The number of earlier answers of the script.
    pub position: usize,
    /// The reason why the script could not be played as written.
    pub problem: Option<String>,
    pub outcome: RequestOutcome,
    pub ended_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestOutcome {
    /// The response is being sent.
    Answering,
    Answered,
    /// With an error status.
    Refused,
    /// Cut by the script.
    Cut,
    /// The agent disconnected early.
    Disconnected,
}

impl RecordedRequest {
    /// True if the body contains the text.
    pub fn body_contains(&self, text: &str) -> bool {
        value_contains(&self.body, text)
    }
}

fn value_contains(value: &Value, text: &str) -> bool {
    match value {
        Value::String(found) => found.contains(text),
        Value::Array(items) => items.iter().any(|item| value_contains(item, text)),
        Value::Object(fields) => fields.values().any(|field| value_contains(field, text)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// All requests, oldest first, up to a size limit.
pub(crate) struct RequestLog {
    entries: Mutex<LogEntries>,
    changed: watch::Sender<()>,
    file: Option<Mutex<File>>,
}

struct LogEntries {
    requests: VecDeque<(usize, Arc<RecordedRequest>)>,
    next_number: u64,
    total_bytes: usize,
}

/// Memory limit; the oldest requests are evicted.
const MAX_LOGGED_BYTES: usize = 256 << 20;

impl RequestLog {
    pub(crate) fn new(file: Option<File>) -> Self {
        let pages = LogEntries { requests: VecDeque::new(), next_number: 1, total_bytes: 0 };
        Self { entries: Mutex::new(pages), changed: watch::Sender::new(()), file: file.map(Mutex::new) }
    }

    fn lock_entries(&self) -> MutexGuard<'_, LogEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a request and returns its number; `bytes` is the size of its body.
    pub(crate) fn record_request(&self, mut request: RecordedRequest, bytes: usize) -> u64 {
        let mut pages = self.lock_entries();
        request.number = pages.next_number;
        pages.next_number += 1;
        let number = request.number;
        self.write_line(&json!({ "type": "request", "request": request }));
        pages.requests.push_back((bytes, Arc::new(request)));
        pages.total_bytes += bytes;
        while pages.total_bytes > MAX_LOGGED_BYTES && pages.requests.len() > 1 {
            let Some((bytes, _)) = pages.requests.pop_front() else { break };
            pages.total_bytes -= bytes;
        }
        drop(pages);
        self.changed.send_replace(());
        number
    }

    pub(crate) fn record_outcome(&self, number: u64, outcome: RequestOutcome) {
        let at = Timestamp::now();
        let mut pages = self.lock_entries();
        self.write_line(&json!({ "type": "end", "number": number, "outcome": outcome, "at": at }));
        if let Some((_, request)) = pages.requests.iter_mut().find(|(_, request)| request.number == number) {
            let request = Arc::make_mut(request);
            request.outcome = outcome;
            request.ended_at = Some(at);
        }
        drop(pages);
        self.changed.send_replace(());
    }

    pub(crate) fn requests_after(&self, number: u64) -> Vec<Arc<RecordedRequest>> {
        let pages = self.lock_entries();
        pages.requests.iter().filter(|(_, request)| request.number > number).map(|(_, one)| Arc::clone(one)).collect()
    }

    pub(crate) fn subscribe_changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Ignores write errors, which must not fail the agent.
    fn write_line(&self, value: &Value) {
        if let Some(file) = &self.file {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            drop(writeln!(file, "{value}"));
        }
    }
}

/// Records the outcome of a response; a drop before its end means that the agent disconnected.
pub(crate) struct OutcomeGuard {
    log: Arc<RequestLog>,
    number: u64,
    is_recorded: bool,
}

impl OutcomeGuard {
    pub(crate) const fn new(log: Arc<RequestLog>, number: u64) -> Self {
        Self { log, number, is_recorded: false }
    }

    pub(crate) fn record(&mut self, outcome: RequestOutcome) {
        if !self.is_recorded {
            self.is_recorded = true;
            self.log.record_outcome(self.number, outcome);
        }
    }
}

impl Drop for OutcomeGuard {
    fn drop(&mut self) {
        self.record(RequestOutcome::Disconnected);
    }
}
