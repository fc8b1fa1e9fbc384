//! The uplink: sends events from the spool, one request at a time. The blobs that a batch names go before it.

use crate::Exit;
use crate::link::backoff::Backoff;
use crate::link::{LinkReport, LinkRequest, Reply, RequestSender, ServerLink, chain};
use atoll_core::bounds;
use atoll_protocol::{Batch, BatchAnswer};
use atoll_spool::{BatchLimits, EventQueue, SpoolProgress, SpoolStream, SpooledBatch, SpooledBlob};
use bytes::Bytes;
use std::collections::HashSet;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Half of the server's limit. A single event is far smaller.
const MAX_BATCH_BYTES: usize = 2 * bounds::MB;

/// Number of uploaded blobs that the uplink does not upload again.
const MAX_REMEMBERED_BLOBS: usize = 1024;

/// The part of the own stream that is on disk and may be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Durable {
    pub last_key: i64,
    /// The batch that ends with this key is final.
    pub final_key: Option<i64>,
    /// Number of times that the disk was full.
    pub disk_full: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum UplinkReport {
    Progress(SpoolProgress),
    Ended(Exit),
}

pub struct Uplink {
    stream: SpoolStream,
    outbox: Box<dyn EventQueue>,
    client: Box<dyn RequestSender>,
    durable: watch::Receiver<Durable>,
    reports: mpsc::Sender<LinkReport>,
    limits: BatchLimits,
    backoff: Backoff,
    /// Blobs that the server has or has rejected.
    uploaded: HashSet<String>,
}

/// The step after a request.
enum NextStep {
    SendMore,
    BackOff(Option<Duration>),
    End(Exit),
}

impl Uplink {
    pub fn new(
        stream: SpoolStream,
        outbox: Box<dyn EventQueue>,
        link: &dyn ServerLink,
        durable: watch::Receiver<Durable>,
        reports: mpsc::Sender<LinkReport>,
    ) -> Self {
        let limits = BatchLimits { max_events: bounds::MAX_BATCH_EVENTS, max_bytes: MAX_BATCH_BYTES };
        let (client, backoff) = (link.open_client(), link.new_backoff());
        Self { stream, outbox, client, durable, reports, limits, backoff, uploaded: HashSet::new() }
    }

    /// Sends until the server rejects this worker or the dispatcher ends.
    pub async fn run(mut self) {
        let mut disk_full = 0;
        loop {
            let durable = *self.durable.borrow_and_update();
            if durable.disk_full != disk_full {
                disk_full = durable.disk_full;
                self.remove_sent_segments();
            }
            let next = match self.outbox.next_batch(durable.last_key, self.limits) {
                Ok(Some(batch)) => self.send_batch(batch, durable).await,
                Ok(None) => match self.durable.changed().await {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                Err(error) => {
                    tracing::error!(error = chain(&error), "failed to read the spool; retrying");
                    NextStep::BackOff(None)
                }
            };
            match next {
                NextStep::SendMore => self.backoff.reset(),
                NextStep::BackOff(delay) => self.backoff.wait(delay).await,
                NextStep::End(exit) => {
                    drop(self.reports.send(LinkReport::Uplink(UplinkReport::Ended(exit))).await);
                    return;
                }
            }
        }
    }

    async fn send_batch(&mut self, batch: SpooledBatch, durable: Durable) -> NextStep {
        let own = self.stream;
        let SpooledBatch { stream, first, last, events, blobs } = batch;
        for blob in &blobs {
            if let Some(next) = self.send_blob(blob).await {
                return next;
            }
        }
        let count = events.len();
        let batch = Batch {
            stream: stream.id,
            boot: Some(own.boot),
            by: (stream != own).then_some(own.id),
            is_final: stream == own && durable.final_key == Some(last),
            events,
        };
        match self.client.send(LinkRequest::Events(&batch)).await {
            Reply::Ok(body) => match serde_json::from_slice::<BatchAnswer>(&body) {
                Ok(answer) => {
                    for rejected in &answer.rejected {
                        let (key, code, detail) = (rejected.key, &rejected.code, &rejected.detail);
                        tracing::warn!(key, code, detail, "the server rejected an event and logged the rejection");
                    }
                    self.limits.max_events = (self.limits.max_events * 2).min(bounds::MAX_BATCH_EVENTS);
                    self.record_progress(stream, answer.last_key).await;
                    if answer.last_key >= first { NextStep::SendMore } else { NextStep::BackOff(None) }
                }
                Err(error) => back_off(&format!("failed to parse the answer: {error}"), None),
            },
            Reply::Later { why, after } => back_off(&why, after),
            Reply::KeyGap { last_key } => {
                tracing::warn!(stream = %stream, last_key, "the server expects another key; continuing from there");
                self.record_progress(stream, last_key).await;
                NextStep::BackOff(None)
            }
            Reply::TooLarge(problem) if count == 1 => back_off(&problem.to_string(), None),
            Reply::TooLarge(_) => {
                self.limits.max_events = (count / 2).max(1);
                NextStep::SendMore
            }
            Reply::Fenced(problem) => NextStep::End(Exit::Fenced { detail: problem.to_string() }),
            Reply::Unauthorized(problem) | Reply::Refused(problem) => {
                NextStep::End(Exit::Refused { detail: problem.to_string() })
            }
        }
    }

    /// Uploads a blob. An event whose blob the server rejects goes out without it: clients then find no such blob.
    async fn send_blob(&mut self, blob: &SpooledBlob) -> Option<NextStep> {
        if self.uploaded.contains(&blob.sha256) {
            return None;
        }
        let content = match blob.read() {
            Ok(Some(content)) => Bytes::from(content),
            Ok(None) => return None,
            Err(error) => {
                tracing::error!(error = chain(&error), "failed to read a blob from the spool");
                return None;
            }
        };
        match self.client.send(LinkRequest::Blob { sha256: &blob.sha256, content: &content }).await {
            Reply::Later { why, after } => return Some(back_off(&why, after)),
            Reply::Fenced(problem) => return Some(NextStep::End(Exit::Fenced { detail: problem.to_string() })),
            Reply::Ok(_) => {}
            Reply::TooLarge(problem) | Reply::Unauthorized(problem) | Reply::Refused(problem) => {
                tracing::warn!(blob = blob.sha256, %problem, "the server rejected a blob; its event goes out without it");
            }
            Reply::KeyGap { .. } => {}
        }
        if self.uploaded.len() >= MAX_REMEMBERED_BLOBS {
            self.uploaded.clear();
        }
        self.uploaded.insert(blob.sha256.clone());
        None
    }

    fn remove_sent_segments(&self) {
        if let Err(error) = self.outbox.remove_sent_segments() {
            tracing::warn!(error = chain(&error), "failed to remove sent segments from the spool");
        }
    }

    async fn record_progress(&mut self, stream: SpoolStream, key: i64) {
        if let Err(error) = self.outbox.acknowledge(stream, key) {
            // Harmless: the next worker sends the rest again, and the server ignores duplicates.
            tracing::warn!(error = chain(&error), "failed to remove sent events from the spool");
        }
        let progress = self.outbox.progress();
        drop(self.reports.send(LinkReport::Uplink(UplinkReport::Progress(progress))).await);
    }
}

fn back_off(why: &str, after: Option<Duration>) -> NextStep {
    tracing::warn!(why, "failed to send events; they stay in the spool");
    NextStep::BackOff(after)
}
