//! The single writer. It groups all waiting work into one transaction, with a savepoint for each unit of work,
//! and replies to the callers after the commit: one fsync serves many callers.

use super::sqlite_tx::classify_error;
use super::{Sqlite, SqliteTx, run_to_completion};
use crate::commit_metrics::record_commit;
use crate::error::{Error, Result};
use crate::sql::Tx;
use rusqlite::Connection;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Instant;
use tokio::sync::oneshot;

/// Maximum number of units of work per commit.
const MAX_GROUP_SIZE: usize = 128;
/// Maximum number of waiting units of work.
const MAX_QUEUED_WORK: usize = 1024;

type CommitReply = Box<dyn FnOnce(Result<()>) + Send>;
/// Runs a unit of work. Returns true to keep its changes, and the function that replies after the commit.
/// Without a transaction it returns only the reply.
type UnitOfWork = Box<dyn for<'a, 'c> FnOnce(Option<&'a mut SqliteTx<'c>>) -> (bool, CommitReply) + Send>;

#[derive(Clone)]
pub(crate) struct SqliteWriter {
    queue: Arc<Mutex<Option<mpsc::SyncSender<UnitOfWork>>>>,
    thread: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

impl Sqlite {
    /// Submits a unit of work to the writer; `then` runs after the commit, in commit order.
    pub(crate) async fn write_then<R, O, E, F, T>(&self, work: F, then: T) -> Result<O, E>
    where
        R: Send + 'static,
        O: Send + 'static,
        E: From<Error> + Send + 'static,
        F: AsyncFnOnce(&mut dyn Tx) -> Result<R, E> + Send + 'static,
        T: FnOnce(R) -> O + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        self.writer.submit(Box::new(move |tx| {
            let result = tx.map(|tx| run_to_completion(work(tx)));
            let keep = matches!(result, Some(Ok(_)));
            let reply: CommitReply = Box::new(move |committed: Result<()>| {
                let answer = match (result, committed) {
                    // An error of the work itself takes precedence over the group's result.
                    (Some(Err(refused)), _) => Err(refused),
                    (_, Err(lost)) => Err(lost.into()),
                    (Some(Ok(value)), Ok(())) => Ok(then(value)),
                    (None, Ok(())) => Err(Error::internal("committed without a transaction").into()),
                };
                drop(sender.send(answer));
            });
            (keep, reply)
        }))?;
        receiver.await.map_err(|_| Error::unavailable("the writer stopped"))?
    }
}

impl SqliteWriter {
    pub(crate) fn start(mut connection: Connection) -> Result<Self> {
        let (queue, work) = mpsc::sync_channel(MAX_QUEUED_WORK);
        let thread = std::thread::Builder::new()
            .name("atoll-writer".into())
            .spawn(move || run_writer(&mut connection, &work))
            .map_err(Error::unavailable)?;
        Ok(Self { queue: Arc::new(Mutex::new(Some(queue))), thread: Arc::new(Mutex::new(Some(thread))) })
    }

    fn submit(&self, work: UnitOfWork) -> Result<()> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queue.as_ref().ok_or_else(|| Error::unavailable("the store is closed"))?;
        queue.try_send(work).map_err(|_| Error::unavailable("too many writes are waiting"))
    }

    pub(crate) async fn stop(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            drop(tokio::task::spawn_blocking(move || thread.join()).await);
        }
    }
}

fn run_writer(connection: &mut Connection, work: &mpsc::Receiver<UnitOfWork>) {
    while let Ok(first) = work.recv() {
        let mut replies: Vec<CommitReply> = Vec::new();
        let began = Instant::now();
        let committed = commit_group(connection, first, work, &mut replies);
        record_commit("sqlite", began.elapsed(), replies.len());
        if committed.is_err() && !connection.is_autocommit() {
            drop(connection.execute_batch("ROLLBACK"));
        }
        for reply in replies {
            reply(committed.clone().map_err(|failure| failure.into_error()));
        }
    }
}

/// Reason why a whole group was not stored; each member gets it.
#[derive(Debug, Clone)]
struct GroupFailure {
    is_disk_full: bool,
    detail: String,
}

impl GroupFailure {
    fn from_sqlite_error(error: &rusqlite::Error) -> Self {
        let is_disk_full = matches!(classify_error(error), Error::DiskFull { .. });
        Self { is_disk_full, detail: error.to_string() }
    }

    fn into_error(self) -> Error {
        if self.is_disk_full {
            Error::DiskFull { detail: self.detail }
        } else {
            Error::Unavailable { detail: self.detail }
        }
    }
}

/// Runs all waiting work in one transaction.
fn commit_group(
    connection: &mut Connection,
    first: UnitOfWork,
    waiting: &mpsc::Receiver<UnitOfWork>,
    replies: &mut Vec<CommitReply>,
) -> Result<(), GroupFailure> {
    let result = connection.execute_batch("BEGIN IMMEDIATE").map_err(|error| GroupFailure::from_sqlite_error(&error));
    if let Err(failure) = result {
        replies.push(first(None).1);
        return Err(failure);
    }
    let mut next = Some(first);
    while let Some(work) = next.take() {
        run_unit(connection, work, replies)?;
        if replies.len() < MAX_GROUP_SIZE {
            next = waiting.try_recv().ok();
        }
    }
    connection.execute_batch("COMMIT").map_err(|error| GroupFailure::from_sqlite_error(&error))
}

/// Runs one unit of work in its savepoint. An error means that the whole group is lost.
fn run_unit(connection: &mut Connection, work: UnitOfWork, replies: &mut Vec<CommitReply>) -> Result<(), GroupFailure> {
    if let Err(error) = connection.execute_batch("SAVEPOINT work") {
        replies.push(work(None).1);
        return Err(GroupFailure::from_sqlite_error(&error));
    }
    let mut tx = SqliteTx::new(connection);
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| work(Some(&mut tx))));
    let keep = matches!(done, Ok((true, _)));
    match done {
        Ok((_, reply)) => replies.push(reply),
        // The caller sees its dropped channel as an error; the others continue.
        Err(_) => tracing::error!("a unit of work panicked in the store's writer"),
    }
    if connection.is_autocommit() {
        // A full disk or an I/O error made SQLite roll back the transaction.
        return Err(GroupFailure { is_disk_full: true, detail: "SQLite rolled the transaction back".into() });
    }
    let end = if keep { "RELEASE work" } else { "ROLLBACK TO work; RELEASE work" };
    connection.execute_batch(end).map_err(|error| GroupFailure::from_sqlite_error(&error))
}
