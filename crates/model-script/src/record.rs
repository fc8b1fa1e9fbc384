//! What was asked and how it ended, for tests to look at: that a message arrived, that a cancel did.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// One request as it came. Credentials are shown: this is a tool for tests, and what key arrives is one of the
/// things to test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Request {
    /// From 1 on.
    pub number: u64,
    pub at: Timestamp,
    pub method: String,
    /// With its query.
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// As JSON; as text if it is none.
    pub body: Value,
    /// What the agent calls its session; empty if it doesn't say.
    pub session: String,
    /// The script that answered; none for side questions.
    pub script: Option<String>,
    /// How many answers of the script were given before.
    pub position: usize,
    /// Why the script could not be played as it is written.
    pub problem: Option<String>,
    pub outcome: Outcome,
    pub ended_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The answer is on its way.
    Answering,
    Answered,
    /// With a status of failure.
    Refused,
    /// Broken off by the script.
    Cut,
    /// The agent went away before the end.
    Disconnected,
}

impl Request {
    /// Whether the text is anywhere in the request's body.
    pub fn mentions(&self, text: &str) -> bool {
        mentions(&self.body, text)
    }
}

fn mentions(value: &Value, text: &str) -> bool {
    match value {
        Value::String(found) => found.contains(text),
        Value::Array(items) => items.iter().any(|item| mentions(item, text)),
        Value::Object(fields) => fields.values().any(|field| mentions(field, text)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// All requests, the oldest first, as many as fit.
pub(crate) struct Book {
    pages: Mutex<Pages>,
    changed: watch::Sender<()>,
    file: Option<Mutex<File>>,
}

struct Pages {
    requests: VecDeque<(usize, Arc<Request>)>,
    next: u64,
    bytes: usize,
}

/// The oldest requests are forgotten beyond this.
const MOST_BYTES: usize = 256 << 20;

impl Book {
    pub(crate) fn new(file: Option<File>) -> Self {
        let pages = Pages { requests: VecDeque::new(), next: 1, bytes: 0 };
        Self { pages: Mutex::new(pages), changed: watch::Sender::new(()), file: file.map(Mutex::new) }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request in, with its number; `bytes` is the size of its body.
    pub(crate) fn begin(&self, mut request: Request, bytes: usize) -> u64 {
        let mut pages = self.pages();
        request.number = pages.next;
        pages.next += 1;
        let number = request.number;
        self.line(&json!({ "type": "request", "request": request }));
        pages.requests.push_back((bytes, Arc::new(request)));
        pages.bytes += bytes;
        while pages.bytes > MOST_BYTES && pages.requests.len() > 1 {
            let Some((bytes, _)) = pages.requests.pop_front() else { break };
            pages.bytes -= bytes;
        }
        drop(pages);
        self.changed.send_replace(());
        number
    }

    pub(crate) fn end(&self, number: u64, outcome: Outcome) {
        let at = Timestamp::now();
        let mut pages = self.pages();
        self.line(&json!({ "type": "end", "number": number, "outcome": outcome, "at": at }));
        if let Some((_, request)) = pages.requests.iter_mut().find(|(_, request)| request.number == number) {
            let request = Arc::make_mut(request);
            request.outcome = outcome;
            request.ended_at = Some(at);
        }
        drop(pages);
        self.changed.send_replace(());
    }

    pub(crate) fn after(&self, number: u64) -> Vec<Arc<Request>> {
        let pages = self.pages();
        pages.requests.iter().filter(|(_, request)| request.number > number).map(|(_, one)| Arc::clone(one)).collect()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// A record that can't be written must not fail the agent; whoever reads the file sees what is missing.
    fn line(&self, value: &Value) {
        if let Some(file) = &self.file {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            drop(writeln!(file, "{value}"));
        }
    }
}

/// An answer on its way: dropped before its end, the agent has gone.
pub(crate) struct Ending {
    book: Arc<Book>,
    number: u64,
    ended: bool,
}

impl Ending {
    pub(crate) const fn new(book: Arc<Book>, number: u64) -> Self {
        Self { book, number, ended: false }
    }

    pub(crate) fn end(&mut self, outcome: Outcome) {
        if !self.ended {
            self.ended = true;
            self.book.end(self.number, outcome);
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.end(Outcome::Disconnected);
    }
}
