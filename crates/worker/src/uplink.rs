//! Events on their way up: one request at a time, while the next events gather.

use crate::Exit;
use crate::backoff::Backoff;
use crate::dispatcher::Report as Outward;
use crate::link::{Client, Reply, chain};
use crate::spool::{Limits, Outbox, Progress, Stream, Taken};
use atoll_core::bounds;
use atoll_protocol::{Batch, BatchAnswer};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Half of what the server takes at most. One event is far smaller.
const BATCH_BYTES: usize = 2 * bounds::MB;

/// How far the own stream is on disk, and may be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Durable {
    pub last_key: i64,
    /// The batch that ends with this key is the last one for good.
    pub final_key: Option<i64>,
    /// How often the disk was found full.
    pub disk_full: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Report {
    Progress(Progress),
    Ended(Exit),
}

pub struct Uplink {
    outbox: Outbox,
    client: Client,
    durable: watch::Receiver<Durable>,
    reports: mpsc::Sender<Outward>,
    limits: Limits,
    backoff: Backoff,
}

/// What to do after a request.
enum Next {
    Go,
    Wait(Option<Duration>),
    End(Exit),
}

impl Uplink {
    pub fn new(
        outbox: Outbox,
        client: Client,
        durable: watch::Receiver<Durable>,
        reports: mpsc::Sender<Outward>,
    ) -> Self {
        let limits = Limits { events: bounds::BATCH_EVENTS, bytes: BATCH_BYTES };
        Self { outbox, client, durable, reports, limits, backoff: Backoff::default() }
    }

    /// Sends until there is a reason to end. Returns early only when nobody listens any more.
    pub async fn run(mut self) {
        let mut disk_full = 0;
        loop {
            let durable = *self.durable.borrow_and_update();
            if durable.disk_full != disk_full {
                disk_full = durable.disk_full;
                self.tidy();
            }
            let next = match self.outbox.next_batch(durable.last_key, self.limits) {
                Ok(Some(taken)) => self.send(taken, durable).await,
                Ok(None) => match self.durable.changed().await {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                Err(error) => {
                    tracing::error!(error = chain(&error), "can't read the spool; trying again");
                    Next::Wait(None)
                }
            };
            match next {
                Next::Go => self.backoff.reset(),
                Next::Wait(asked) => self.backoff.wait(asked).await,
                Next::End(exit) => {
                    drop(self.reports.send(Outward::Uplink(Report::Ended(exit))).await);
                    return;
                }
            }
        }
    }

    async fn send(&mut self, taken: Taken, durable: Durable) -> Next {
        let own = self.outbox.own_stream();
        let Taken { stream, first, last, events } = taken;
        let count = events.len();
        let batch = Batch {
            stream: stream.id,
            boot: Some(own.boot),
            by: (stream != own).then_some(own.id),
            is_final: stream == own && durable.final_key == Some(last),
            events,
        };
        match self.client.post("events", &batch).await {
            Reply::Ok(body) => match serde_json::from_slice::<BatchAnswer>(&body) {
                Ok(answer) => {
                    for rejected in &answer.rejected {
                        let (key, code, detail) = (rejected.key, &rejected.code, &rejected.detail);
                        tracing::warn!(key, code, detail, "the server rejected an event and keeps a note in its place");
                    }
                    self.limits.events = (self.limits.events * 2).min(bounds::BATCH_EVENTS);
                    self.advance(stream, answer.last_key).await;
                    if answer.last_key >= first { Next::Go } else { Next::Wait(None) }
                }
                Err(error) => later(&format!("the answer can't be read: {error}"), None),
            },
            Reply::Later { why, after } => later(&why, after),
            Reply::KeyGap { last_key } => {
                tracing::warn!(stream = %stream, last_key, "the server wants to go on from another event");
                self.advance(stream, last_key).await;
                Next::Wait(None)
            }
            Reply::TooLarge(problem) if count == 1 => later(&problem.to_string(), None),
            Reply::TooLarge(_) => {
                self.limits.events = (count / 2).max(1);
                Next::Go
            }
            Reply::Fenced(problem) => Next::End(Exit::Fenced { detail: problem.to_string() }),
            Reply::Unauthorized(problem) | Reply::Refused(problem) => {
                Next::End(Exit::Refused { detail: problem.to_string() })
            }
        }
    }

    fn tidy(&self) {
        if let Err(error) = self.outbox.tidy() {
            tracing::warn!(error = chain(&error), "can't tidy the spool");
        }
    }

    async fn advance(&mut self, stream: Stream, key: i64) {
        if let Err(error) = self.outbox.acknowledge(stream, key) {
            // Harmless: what stays is sent again by the next worker, and the server knows it already.
            tracing::warn!(error = chain(&error), "can't tidy the spool");
        }
        let progress = self.outbox.progress();
        drop(self.reports.send(Outward::Uplink(Report::Progress(progress))).await);
    }
}

fn later(why: &str, after: Option<Duration>) -> Next {
    tracing::warn!(why, "the server can't take events now; they stay in the spool");
    Next::Wait(after)
}
