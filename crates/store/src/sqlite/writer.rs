//! The one writer. It takes whatever is waiting into one transaction, each piece of work in a
//! savepoint of its own, and answers them all after the commit: one fsync serves many callers.

use super::SqliteTx;
use super::tx::classify;
use crate::error::{Error, Result};
use rusqlite::Connection;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// How much work shares one commit at most.
const GROUP: usize = 128;
/// How much work may wait.
const QUEUE: usize = 1024;

pub(crate) type Reply = Box<dyn FnOnce(Result<()>) + Send>;
/// Does its work and says whether to keep it, and how to answer once the commit is through.
/// Without a transaction it only says how to answer.
pub(crate) type Work = Box<dyn for<'a, 'c> FnOnce(Option<&'a mut SqliteTx<'c>>) -> (bool, Reply) + Send>;

#[derive(Clone)]
pub(crate) struct Writer {
    queue: Arc<Mutex<Option<mpsc::SyncSender<Work>>>>,
    thread: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

impl Writer {
    pub(crate) fn start(mut connection: Connection) -> Result<Self> {
        let (queue, work) = mpsc::sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("atoll-writer".into())
            .spawn(move || run(&mut connection, &work))
            .map_err(Error::unavailable)?;
        Ok(Self { queue: Arc::new(Mutex::new(Some(queue))), thread: Arc::new(Mutex::new(Some(thread))) })
    }

    pub(crate) fn submit(&self, work: Work) -> Result<()> {
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

fn run(connection: &mut Connection, work: &mpsc::Receiver<Work>) {
    while let Ok(first) = work.recv() {
        let mut replies: Vec<Reply> = Vec::new();
        let committed = group(connection, first, work, &mut replies);
        if committed.is_err() && !connection.is_autocommit() {
            drop(connection.execute_batch("ROLLBACK"));
        }
        for reply in replies {
            reply(committed.clone().map_err(|failure| failure.error()));
        }
    }
}

/// Why a whole group was not stored; given to each of its members.
#[derive(Debug, Clone)]
struct Failure {
    full: bool,
    detail: String,
}

impl Failure {
    fn of(error: &rusqlite::Error) -> Self {
        let full = matches!(classify(error), Error::Full { .. });
        Self { full, detail: error.to_string() }
    }

    fn error(self) -> Error {
        if self.full { Error::Full { detail: self.detail } } else { Error::Unavailable { detail: self.detail } }
    }
}

/// One transaction with all that is waiting.
fn group(
    connection: &mut Connection,
    first: Work,
    waiting: &mpsc::Receiver<Work>,
    replies: &mut Vec<Reply>,
) -> Result<(), Failure> {
    let begun = connection.execute_batch("BEGIN IMMEDIATE").map_err(|error| Failure::of(&error));
    if let Err(failure) = begun {
        replies.push(first(None).1);
        return Err(failure);
    }
    let mut next = Some(first);
    while let Some(work) = next.take() {
        one(connection, work, replies)?;
        if replies.len() < GROUP {
            next = waiting.try_recv().ok();
        }
    }
    connection.execute_batch("COMMIT").map_err(|error| Failure::of(&error))
}

/// One piece of work in its savepoint. An error means that the whole group is lost.
fn one(connection: &mut Connection, work: Work, replies: &mut Vec<Reply>) -> Result<(), Failure> {
    if let Err(error) = connection.execute_batch("SAVEPOINT work") {
        replies.push(work(None).1);
        return Err(Failure::of(&error));
    }
    let mut tx = SqliteTx::on(connection);
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| work(Some(&mut tx))));
    let keep = matches!(done, Ok((true, _)));
    match done {
        Ok((_, reply)) => replies.push(reply),
        // Its caller's channel is dropped, which is its answer; the others go on.
        Err(_) => tracing::error!("a piece of work panicked in the store's writer"),
    }
    if connection.is_autocommit() {
        // A full disk or an I/O fault made SQLite roll back everything under us.
        return Err(Failure { full: true, detail: "SQLite rolled the transaction back".into() });
    }
    let end = if keep { "RELEASE work" } else { "ROLLBACK TO work; RELEASE work" };
    connection.execute_batch(end).map_err(|error| Failure::of(&error))
}
