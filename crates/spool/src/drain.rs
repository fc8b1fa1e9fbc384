//! Drains the spool of a dead worker: sends its blobs, events and acknowledgements through a `WorkerLink`.
//!
//! The drain begins a stream of its own, which fences the dead worker's. It has no events, sends no heartbeats and
//! leases no messages.

use crate::journal::{Acknowledgement, DeliveryJournal, DeliveryOutcome, JournalFile, JournalRecord, load_journal};
use crate::{BatchLimits, Error as SpoolError, EventQueue, Spool, SpoolReader, SpoolStream, SpooledBatch, SpooledBlob};
use atoll_core::bounds;
use atoll_core::id::SandboxId;
use atoll_protocol::link::{LinkError, WorkerLink};
use atoll_protocol::{Ack, Batch, Nack};
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, sleep, timeout_at};

const BATCH_LIMITS: BatchLimits = BatchLimits { max_events: bounds::MAX_BATCH_EVENTS, max_bytes: 2 * bounds::MB };
/// Pause before another try to lock a spool whose worker is still exiting.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Pause before another try when the server cannot store anything now.
const SEND_RETRY_DELAY: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Spool(#[from] SpoolError),
    #[error("the server rejected what the sandbox's worker left: {0}")]
    Rejected(LinkError),
    #[error("a background task failed")]
    Task(#[from] JoinError),
}

/// Counts what a drain sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DrainReport {
    pub events: i64,
    pub acknowledgements: usize,
    /// Events that are still in the spool.
    pub events_left: i64,
}

/// Sends everything in the spool. Returns when the server has stored it or `limit` has passed.
pub async fn drain_spool(
    dir: &Path,
    sandbox: SandboxId,
    link: &dyn WorkerLink,
    limit: Duration,
) -> Result<DrainReport, Error> {
    let deadline = Instant::now() + limit;
    let AbandonedSpool { mut reader, mut journal, mut journal_file, acknowledgements, stream, lock } =
        open_when_unlocked(dir, sandbox, deadline).await?;
    let left = reader.progress().older_unacked;
    let mut drain = Drain {
        sandbox,
        link,
        drained: DrainReport { events_left: left, ..DrainReport::default() },
        uploaded: HashSet::new(),
        settled: Vec::new(),
    };
    let sending = async {
        // Events first: they register the stream, and say more about a message's turn than its acknowledgement.
        drain.send_events(&mut reader).await?;
        drain.send_acknowledgements(stream, acknowledgements, &mut journal).await
    };
    match timeout_at(deadline, sending).await {
        Ok(sent) => sent?,
        Err(_) => tracing::warn!(%sandbox, left = drain.drained.events_left, "the time to drain a spool ran out"),
    }
    let Drain { drained, settled, .. } = drain;
    // Best effort: the server ignores an acknowledgement that it has already.
    spawn_blocking(move || {
        settled.iter().for_each(|record| journal_file.push(record));
        journal_file.commit()
    })
    .await??;
    drop(lock);
    Ok(drained)
}

struct AbandonedSpool {
    reader: SpoolReader,
    journal: DeliveryJournal,
    journal_file: JournalFile,
    acknowledgements: Vec<Acknowledgement>,
    stream: SpoolStream,
    lock: std::fs::File,
}

async fn open_when_unlocked(dir: &Path, sandbox: SandboxId, deadline: Instant) -> Result<AbandonedSpool, Error> {
    loop {
        let dir = dir.to_owned();
        match spawn_blocking(move || open_abandoned(&dir, sandbox)).await? {
            Err(SpoolError::Locked { .. }) if Instant::now() + LOCK_RETRY_DELAY < deadline => {
                sleep(LOCK_RETRY_DELAY).await
            }
            opened => return Ok(opened?),
        }
    }
}

fn open_abandoned(dir: &Path, sandbox: SandboxId) -> Result<AbandonedSpool, SpoolError> {
    let spool = Spool::open_abandoned(dir, sandbox)?;
    let (journal, journal_file, acknowledgements) = load_journal(spool.dir())?;
    let stream = spool.stream();
    let (_writer, reader, lock) = spool.split()?;
    Ok(AbandonedSpool { reader, journal, journal_file, acknowledgements, stream, lock })
}

struct Drain<'a> {
    sandbox: SandboxId,
    link: &'a dyn WorkerLink,
    drained: DrainReport,
    /// Blobs that the server has.
    uploaded: HashSet<String>,
    /// Journal records of the acknowledgements that the server has.
    settled: Vec<JournalRecord>,
}

impl Drain<'_> {
    async fn send_events(&mut self, reader: &mut SpoolReader) -> Result<(), Error> {
        let all = self.drained.events_left;
        let own = reader.own_stream();
        while let Some(SpooledBatch { stream, first, events, blobs, .. }) = reader.next_batch(0, BATCH_LIMITS)? {
            self.send_blobs(&blobs).await?;
            let (boot, by) = (Some(own.boot), Some(own.id));
            let batch = Batch { stream: stream.id, boot, by, is_final: false, events };
            let last_key = match self.link.send_events(self.sandbox, &batch).await {
                Ok(answer) => answer.last_key,
                // The server lost events that this stream had sent: send all that the spool still holds.
                Err(LinkError::Rejected { code, .. }) if code == "key_gap" && first > 1 => 0,
                Err(error) => {
                    self.pause_or_fail(error).await?;
                    continue;
                }
            };
            reader.acknowledge(stream, last_key)?;
            self.drained.events_left = reader.progress().older_unacked;
            self.drained.events = all - self.drained.events_left;
        }
        Ok(())
    }

    /// Uploads the blobs that a batch names. A rejected blob does not keep its event.
    async fn send_blobs(&mut self, blobs: &[SpooledBlob]) -> Result<(), Error> {
        for blob in blobs {
            while !self.uploaded.contains(&blob.sha256)
                && let Some(content) = blob.read()?
            {
                match self.link.send_blob(self.sandbox, &blob.sha256, content.into()).await {
                    Err(error @ LinkError::Unavailable(_)) => self.pause_or_fail(error).await?,
                    Err(LinkError::Rejected { code, detail }) => {
                        tracing::warn!(sandbox = %self.sandbox, code, detail, "the server rejected a blob of a spool");
                        break;
                    }
                    Ok(()) => drop(self.uploaded.insert(blob.sha256.clone())),
                }
            }
        }
        Ok(())
    }

    async fn send_acknowledgements(
        &mut self,
        stream: SpoolStream,
        acknowledgements: Vec<Acknowledgement>,
        journal: &mut DeliveryJournal,
    ) -> Result<(), Error> {
        for Acknowledgement { id, lease, outcome } in acknowledgements {
            loop {
                let sent = match outcome.clone() {
                    DeliveryOutcome::Ack { how, turn } => {
                        let ack = Ack { stream: stream.id, lease, how, turn };
                        self.link.send_ack(self.sandbox, id, &ack).await
                    }
                    DeliveryOutcome::Nack { handed, reason, retry } => {
                        let nack = Nack { stream: stream.id, lease, handed, reason, retry };
                        self.link.send_nack(self.sandbox, id, &nack).await
                    }
                };
                match sent {
                    Ok(()) => break,
                    // The sandbox has ended and its messages are back in the inbox, or the lease is over.
                    Err(LinkError::Rejected { code, detail }) if code != "stream_fenced" => {
                        tracing::info!(message = %id, code, detail, "the server rejected an acknowledgement");
                        break;
                    }
                    Err(error) => self.pause_or_fail(error).await?,
                }
            }
            self.drained.acknowledgements += 1;
            self.settled.extend(journal.mark_settled(id, lease));
        }
        Ok(())
    }

    async fn pause_or_fail(&self, error: LinkError) -> Result<(), Error> {
        match error {
            LinkError::Unavailable(why) => {
                tracing::warn!(sandbox = %self.sandbox, why, "the server cannot drain a spool now; trying again");
                sleep(SEND_RETRY_DELAY).await;
                Ok(())
            }
            error @ LinkError::Rejected { .. } => Err(Error::Rejected(error)),
        }
    }
}

#[cfg(test)]
mod tests;
