//! The hub: wakes event readers after a commit and caches the newest events.
//!
//! The store is the source of truth. A tail exists while a sandbox has readers, is bounded, and may be dropped at any time.

use atoll_core::event::Event;
use atoll_core::id::{SandboxId, SessionId};
use atoll_core::sandbox::SandboxState;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{broadcast, watch};

/// Size of a sandbox's tail.
const TAIL_EVENTS: usize = 1024;
const TAIL_BYTES: usize = 512 * 1024;
/// A reader that is further behind rechecks all logs.
const MAX_QUEUED_NEWS: usize = 4096;

/// An event with its JSON, serialized once for all readers.
#[derive(Debug)]
pub struct EventLine {
    pub event: Event,
    pub json: String,
}

impl EventLine {
    pub fn new(event: Event) -> Self {
        let json = serde_json::to_string(&event).unwrap_or_default();
        Self { event, json }
    }
}

/// A notification for readers of many sandboxes.
#[derive(Debug, Clone)]
pub enum News {
    /// The sandbox has new events.
    Events(SandboxId),
    /// Streamed text that is not stored.
    Live(Arc<LiveText>),
}

#[derive(Debug)]
pub struct LiveText {
    pub sandbox: SandboxId,
    pub json: String,
}

#[derive(Debug, Default)]
struct RecentEvents {
    lines: VecDeque<Arc<EventLine>>,
    bytes: usize,
}

/// The newest events of a sandbox that has readers.
#[derive(Debug)]
pub struct EventTail {
    recent: Mutex<RecentEvents>,
    newest: watch::Sender<i64>,
}

impl EventTail {
    fn new() -> Self {
        Self { recent: Mutex::new(RecentEvents::default()), newest: watch::Sender::new(0) }
    }

    /// Records the newest seq that a reader found in the store.
    pub fn record_stored_seq(&self, seq: i64) {
        self.newest.send_if_modified(|newest| {
            *newest = (*newest).max(seq);
            false
        });
    }

    fn push_lines(&self, lines: &[Arc<EventLine>]) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        for line in lines {
            let next = recent.lines.back().map(|last| last.event.seq + 1);
            match next {
                // A duplicate or late event: readers find it in the store.
                Some(next) if line.event.seq < next => continue,
                // A gap: readers find the missing events in the store.
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

    /// Events after `seq` from the tail; `None` if the reader must read the store.
    pub fn lines_after(&self, seq: i64, most: usize) -> Option<Vec<Arc<EventLine>>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let first = recent.lines.front()?.event.seq;
        let skip = usize::try_from(seq + 1 - first).ok()?;
        Some(recent.lines.iter().skip(skip).take(most).cloned().collect())
    }

    pub fn watch_newest(&self) -> watch::Receiver<i64> {
        self.newest.subscribe()
    }
}

#[derive(Debug)]
pub struct Hub {
    tails: Mutex<HashMap<SandboxId, Weak<EventTail>>>,
    news: broadcast::Sender<News>,
    inboxes: broadcast::Sender<SessionId>,
    states: broadcast::Sender<(SandboxId, SandboxState)>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            tails: Mutex::default(),
            news: broadcast::Sender::new(MAX_QUEUED_NEWS),
            inboxes: broadcast::Sender::new(MAX_QUEUED_NEWS),
            states: broadcast::Sender::new(MAX_QUEUED_NEWS),
        }
    }
}

impl Hub {
    /// The tail of a sandbox. It lives as long as a reader holds it.
    pub fn sandbox_tail(&self, sandbox: SandboxId) -> Arc<EventTail> {
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tail) = tails.get(&sandbox).and_then(Weak::upgrade) {
            return tail;
        }
        tails.retain(|_, tail| tail.strong_count() > 0);
        let tail = Arc::new(EventTail::new());
        tails.insert(sandbox, Arc::downgrade(&tail));
        tail
    }

    pub fn subscribe_news(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }

    pub fn subscribe_inboxes(&self) -> broadcast::Receiver<SessionId> {
        self.inboxes.subscribe()
    }

    pub fn subscribe_states(&self) -> broadcast::Receiver<(SandboxId, SandboxState)> {
        self.states.subscribe()
    }

    /// Publishes committed events of one or several sandboxes, in order.
    pub fn publish_events(&self, events: Vec<Event>) {
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
                let lines: Vec<Arc<EventLine>> =
                    events.into_iter().map(|event| Arc::new(EventLine::new(event))).collect();
                tail.push_lines(&lines);
            }
            drop(self.news.send(News::Events(sandbox)));
        }
    }

    /// The newest seq of a sandbox, if a reader has its log open.
    pub fn newest_seq(&self, sandbox: SandboxId) -> Option<i64> {
        let tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = tails.get(&sandbox).and_then(Weak::upgrade).map(|tail| *tail.newest.borrow());
        // Zero: the reader has not read the store yet.
        newest.filter(|seq| *seq > 0)
    }

    /// A connection follows the news.
    pub fn has_readers(&self) -> bool {
        self.news.receiver_count() > 0
    }

    pub fn publish_live(&self, sandbox: SandboxId, json: String) {
        drop(self.news.send(News::Live(Arc::new(LiveText { sandbox, json }))));
    }

    pub fn inbox_changed(&self, session: SessionId) {
        drop(self.inboxes.send(session));
    }

    pub fn state_changed(&self, sandbox: SandboxId, state: SandboxState) {
        drop(self.states.send((sandbox, state)));
    }
}
