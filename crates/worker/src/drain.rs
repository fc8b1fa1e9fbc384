//! Sending what a dead worker left in its spool, in somebody else's process.
//!
//! It is a worker without a sandbox: it begins a stream of its own, so that the dead one has no say any more, and tells
//! the server what that one had not told. It has no events of its own, no heartbeats, and takes no messages.

use crate::Exit;
use crate::answers::{self, Answers};
use crate::dispatcher::{Phase, Report};
use crate::journal::{self, Answer, Journal, Record};
use crate::link::{Dial, Server};
use crate::spool::{self, Progress, Spool};
use crate::uplink::{self, Durable, Uplink};
use atoll_core::id::SandboxId;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout_at};

/// Reports that have not been looked at.
const REPORTS: usize = 16;
/// Between two looks whether the worker is gone.
const HELD: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Spool(#[from] spool::Error),
    #[error("the server did not take what the sandbox's worker had left: {0}")]
    Refused(Exit),
    #[error("failed to run beside the rest")]
    Task(#[from] JoinError),
}

/// What was sent, and what was not in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drained {
    pub events: i64,
    pub answers: usize,
    /// Events that are still in the spool.
    pub left: i64,
}

/// Everything that is to be sent.
struct Rest {
    outbox: spool::Outbox,
    journal: Journal,
    journal_file: journal::File,
    answers: Vec<Answer>,
    stream: spool::Stream,
    lock: std::fs::File,
}

/// Sends all events and answers that are in the spool, and returns when the server has them or `limit` is over.
pub async fn drain(spool: &Path, sandbox: SandboxId, dial: Arc<dyn Dial>, limit: Duration) -> Result<Drained, Error> {
    let ends = Instant::now() + limit;
    let rest = loop {
        let dir = spool.to_owned();
        match spawn_blocking(move || open(&dir, sandbox)).await? {
            // One that was killed a moment ago may still be on its way out.
            Err(spool::Error::Held { .. }) if Instant::now() + HELD < ends => sleep(HELD).await,
            opened => break opened?,
        }
    };
    let server = Server::new(dial, sandbox, None);
    let mut work = Work { drained: Drained::default(), left: rest.outbox.progress().older_left };
    let Rest { outbox, mut journal, journal_file, answers, stream, lock } = rest;
    let sending = async {
        // Events first: they make the stream known, and say more about a message's turn than the answer to it does.
        work.send_events(outbox, &server).await?;
        work.tell_answers(stream, answers, &server, &mut journal, journal_file).await
    };
    match timeout_at(ends, sending).await {
        Ok(sent) => sent?,
        Err(_) => tracing::warn!(%sandbox, left = work.left, "a spool was not drained in time"),
    }
    drop(lock);
    Ok(Drained { left: work.left, ..work.drained })
}

fn open(dir: &Path, sandbox: SandboxId) -> Result<Rest, spool::Error> {
    let spool = Spool::open_left(dir, sandbox)?;
    let (journal, journal_file, answers) = journal::load(spool.dir())?;
    let stream = spool.stream();
    // Nothing is written: there are no events of its own.
    let (_, outbox, lock) = spool.split()?;
    Ok(Rest { outbox, journal, journal_file, answers, stream, lock })
}

struct Work {
    drained: Drained,
    left: i64,
}

impl Work {
    async fn send_events(&mut self, outbox: spool::Outbox, server: &Server) -> Result<(), Error> {
        if self.left == 0 {
            return Ok(());
        }
        let all = self.left;
        let (reports, mut reported) = mpsc::channel(REPORTS);
        // Nothing of its own will follow; the sender is kept so that the task does not end before its time.
        let (_durable, durable_seen) = watch::channel(Durable::default());
        let mut task = JoinSet::new();
        task.spawn(Uplink::new(outbox, server.client(), durable_seen, reports).run());
        while let Some(report) = reported.recv().await {
            match report {
                Report::Uplink(uplink::Report::Progress(Progress { older_left, .. })) => {
                    (self.left, self.drained.events) = (older_left, all - older_left);
                    if older_left == 0 {
                        return Ok(());
                    }
                }
                Report::Uplink(uplink::Report::Ended(exit)) => return Err(Error::Refused(exit)),
                Report::Heartbeat(_) | Report::Downlink(_) | Report::Answers(_) => {}
            }
        }
        Ok(())
    }

    async fn tell_answers(
        &mut self,
        stream: spool::Stream,
        answers: Vec<Answer>,
        server: &Server,
        journal: &mut Journal,
        mut file: journal::File,
    ) -> Result<(), Error> {
        let mut open = answers.len();
        if open == 0 {
            return Ok(());
        }
        let (reports, mut reported) = mpsc::channel(REPORTS);
        let (sender, queue) = mpsc::unbounded_channel();
        // An ended sandbox's messages have gone back already, and the server does not want to hear of them.
        let (_phase, phase) = watch::channel(Phase { registered: true, ended: true, leaving: true });
        let teller = Answers { stream: stream.id, client: server.client(), queue, phase, reports };
        let mut task = JoinSet::new();
        task.spawn(teller.run());
        for answer in answers {
            drop(sender.send(answer));
        }
        let mut settled: Vec<Record> = Vec::new();
        while open > 0
            && let Some(report) = reported.recv().await
        {
            match report {
                Report::Answers(answers::Report::Settled { id, lease }) => {
                    open -= 1;
                    self.drained.answers += 1;
                    settled.extend(journal.settle(id, lease));
                }
                Report::Answers(answers::Report::Ended(exit)) => return Err(Error::Refused(exit)),
                Report::Heartbeat(_) | Report::Downlink(_) | Report::Uplink(_) => {}
            }
        }
        // Not needed, only shorter the next time: an answer that is told again changes nothing.
        spawn_blocking(move || {
            settled.iter().for_each(|record| file.push(record));
            file.commit()
        })
        .await??;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Dialer;

    #[tokio::test]
    async fn a_server_runs_it_among_others_and_a_held_spool_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (id, spool) = (SandboxId::new(), dir.path().join("spool"));
        let _held = Spool::open(&spool, id).unwrap();
        let dial = Arc::new(Dialer::new("http://127.0.0.1:9").unwrap());
        // Spawning asks that it can move between threads.
        let drained = tokio::spawn(async move { drain(&spool, id, dial, Duration::from_millis(200)).await });
        assert!(matches!(drained.await.unwrap(), Err(Error::Spool(spool::Error::Held { .. }))));
    }
}
