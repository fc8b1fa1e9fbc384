//! Fan-out: tells readers that there is something new, and keeps the newest events at hand.
//!
//! The store is the truth. What is here only saves reading it again: a tail exists while somebody
//! reads the sandbox, is bounded, and may be lost at any time.

use atoll_core::event::Event;
use atoll_core::id::{SandboxId, SessionId};
use atoll_core::sandbox::SandboxState;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{broadcast, watch};

/// How much of a sandbox's newest events is kept at hand.
const TAIL_EVENTS: usize = 1024;
const TAIL_BYTES: usize = 512 * 1024;
/// How many pieces of news a reader may be behind before it looks everything up again.
const NEWS: usize = 4096;

/// An event with its JSON, written once for all readers.
#[derive(Debug)]
pub struct Line {
    pub event: Event,
    pub json: String,
}

impl Line {
    pub fn new(event: Event) -> Self {
        let json = serde_json::to_string(&event).unwrap_or_default();
        Self { event, json }
    }
}

/// What a reader of many sandboxes hears about.
#[derive(Debug, Clone)]
pub enum News {
    /// There are events up to this seq.
    Events(SandboxId),
    /// Streamed text that is not stored.
    Live(Arc<Live>),
}

#[derive(Debug)]
pub struct Live {
    pub sandbox: SandboxId,
    pub json: String,
}

#[derive(Debug, Default)]
struct Recent {
    lines: VecDeque<Arc<Line>>,
    bytes: usize,
}

/// The newest events of one sandbox, while somebody reads it.
#[derive(Debug)]
pub struct Tail {
    recent: Mutex<Recent>,
    newest: watch::Sender<i64>,
}

impl Tail {
    fn new() -> Self {
        Self { recent: Mutex::new(Recent::default()), newest: watch::Sender::new(0) }
    }

    /// What a reader found in the store.
    pub fn reached(&self, seq: i64) {
        self.newest.send_if_modified(|newest| {
            *newest = (*newest).max(seq);
            false
        });
    }

    fn push(&self, lines: &[Arc<Line>]) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        for line in lines {
            let next = recent.lines.back().map(|last| last.event.seq + 1);
            match next {
                // Told twice or late: whoever needs it reads the store.
                Some(next) if line.event.seq < next => continue,
                // Told out of order: what is between is in the store.
                Some(next) if line.event.seq > next => {
                    recent.lines.clear();
                    recent.bytes = 0;
                }
                Some(_) | None => {}
            }
            recent.bytes += line.json.len();
            recent.lines.push_back(Arc::clone(line));
            while recent.lines.len() > TAIL_EVENTS || (recent.bytes > TAIL_BYTES && recent.lines.len() > 1) {
                let dropped = recent.lines.pop_front().map_or(0, |line| line.json.len());
                recent.bytes -= dropped;
            }
        }
        drop(recent);
        if let Some(last) = lines.last() {
            self.newest.send_if_modified(|newest| {
                let news = last.event.seq > *newest;
                *newest = (*newest).max(last.event.seq);
                news
            });
        }
    }

    /// Events after `seq`, if they are at hand. `None`: read the store.
    pub fn after(&self, seq: i64, most: usize) -> Option<Vec<Arc<Line>>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let first = recent.lines.front()?.event.seq;
        let skip = usize::try_from(seq + 1 - first).ok()?;
        Some(recent.lines.iter().skip(skip).take(most).cloned().collect())
    }

    pub fn watch(&self) -> watch::Receiver<i64> {
        self.newest.subscribe()
    }
}

#[derive(Debug)]
pub struct Hub {
    tails: Mutex<HashMap<SandboxId, Weak<Tail>>>,
    news: broadcast::Sender<News>,
    inboxes: broadcast::Sender<SessionId>,
    states: broadcast::Sender<(SandboxId, SandboxState)>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            tails: Mutex::default(),
            news: broadcast::Sender::new(NEWS),
            inboxes: broadcast::Sender::new(NEWS),
            states: broadcast::Sender::new(NEWS),
        }
    }
}

impl Hub {
    /// The tail of a sandbox; it lives as long as somebody holds it.
    pub fn tail(&self, sandbox: SandboxId) -> Arc<Tail> {
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tail) = tails.get(&sandbox).and_then(Weak::upgrade) {
            return tail;
        }
        tails.retain(|_, tail| tail.strong_count() > 0);
        let tail = Arc::new(Tail::new());
        tails.insert(sandbox, Arc::downgrade(&tail));
        tail
    }

    pub fn news(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }

    pub fn inboxes(&self) -> broadcast::Receiver<SessionId> {
        self.inboxes.subscribe()
    }

    pub fn states(&self) -> broadcast::Receiver<(SandboxId, SandboxState)> {
        self.states.subscribe()
    }

    /// After a commit: events of one or several sandboxes, in order.
    pub fn publish(&self, events: Vec<Event>) {
        let mut by_sandbox: Vec<(SandboxId, Vec<Event>)> = Vec::new();
        for event in events {
            match by_sandbox.last_mut() {
                Some((sandbox, run)) if *sandbox == event.sandbox_id => run.push(event),
                _ => by_sandbox.push((event.sandbox_id, vec![event])),
            }
        }
        for (sandbox, events) in by_sandbox {
            let tail = self.tails.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox).and_then(Weak::upgrade);
            if let Some(tail) = tail {
                let lines: Vec<Arc<Line>> = events.into_iter().map(|event| Arc::new(Line::new(event))).collect();
                tail.push(&lines);
            }
            drop(self.news.send(News::Events(sandbox)));
        }
    }

    /// The newest seq of a sandbox that somebody reads and that had events since then.
    pub fn newest(&self, sandbox: SandboxId) -> Option<i64> {
        let tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        tails.get(&sandbox).and_then(Weak::upgrade).map(|tail| *tail.newest.borrow())
    }

    pub fn live(&self, sandbox: SandboxId, json: String) {
        if self.news.receiver_count() > 0 {
            drop(self.news.send(News::Live(Arc::new(Live { sandbox, json }))));
        }
    }

    pub fn inbox_changed(&self, session: SessionId) {
        drop(self.inboxes.send(session));
    }

    pub fn state_changed(&self, sandbox: SandboxId, state: SandboxState) {
        drop(self.states.send((sandbox, state)));
    }
}
