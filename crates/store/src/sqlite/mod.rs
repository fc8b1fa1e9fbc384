//! SQLite: one file in WAL mode, one writer thread that groups commits, a few readers.

mod tx;
mod writer;

use crate::error::{Error, Result};
use crate::migrate;
use crate::sql::Tx;
use atoll_core::BoxFuture;
use rusqlite::{Connection, OpenFlags};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tx::SqliteTx;
pub(crate) use tx::classify;
use writer::Writer;

const READERS: usize = 4;
const CACHED_STATEMENTS: usize = 96;

#[derive(Clone)]
pub(crate) struct Sqlite {
    writer: Writer,
    readers: Arc<Readers>,
}

struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    permits: Semaphore,
}

/// Drives a future that never waits: everything in a SQLite transaction is done when it is called.
fn finish<T, E: From<Error>>(mut future: BoxFuture<'_, Result<T, E>>) -> Result<T, E> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => {
            Err(Error::internal("a transaction waited for something outside the database").into())
        }
    }
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "cache_size", -2048)?;
    connection.pragma_update(None, "temp_store", "MEMORY")
}

fn open_writer(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path).map_err(|error| classify(&error))?;
    let prepare = || -> rusqlite::Result<()> {
        configure(&connection)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "wal_autocheckpoint", 4000)?;
        connection.pragma_update(None, "journal_size_limit", 64 * 1024 * 1024)
    };
    prepare().map_err(|error| classify(&error))?;
    Ok(connection)
}

fn open_reader(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| classify(&error))?;
    configure(&connection).map_err(|error| classify(&error))?;
    Ok(connection)
}

/// Opened for reading only: looking changes nothing.
pub(crate) async fn schema_version(path: &Path) -> Result<Option<i64>> {
    const TABLES: &str = "SELECT COUNT(*) FROM sqlite_master WHERE name = 'schema_version'";
    let path = path.to_owned();
    let looked = tokio::task::spawn_blocking(move || {
        let mut connection = open_reader(&path)?;
        SqliteTx::view(&mut connection, |tx| finish(Box::pin(migrate::look(tx, TABLES))))
    });
    looked.await.map_err(Error::internal)?
}

impl Sqlite {
    pub(crate) async fn open(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || -> Result<Self> {
            let mut connection = open_writer(&path)?;
            SqliteTx::scope(&mut connection, |tx| finish(Box::pin(migrate::migrate(tx, migrate::LATEST))))?;
            let idle = Mutex::new(Vec::new());
            let readers = Readers { path, idle, permits: Semaphore::new(READERS) };
            Ok(Self { writer: Writer::start(connection)?, readers: Arc::new(readers) })
        });
        opened.await.map_err(Error::internal)?
    }

    pub(crate) async fn write_then<R, O, E, F, T>(&self, work: F, then: T) -> Result<O, E>
    where
        R: Send + 'static,
        O: Send + 'static,
        E: From<Error> + Send + 'static,
        F: for<'t> FnOnce(&'t mut dyn Tx) -> BoxFuture<'t, Result<R, E>> + Send + 'static,
        T: FnOnce(R) -> O + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        self.writer.submit(Box::new(move |tx| {
            let result = tx.map(|tx| finish(work(tx)));
            let keep = matches!(result, Some(Ok(_)));
            let reply: writer::Reply = Box::new(move |committed: Result<()>| {
                let answer = match (result, committed) {
                    // A refusal by the work itself stands whatever became of the group.
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

    pub(crate) async fn read<R, E, F>(&self, work: F) -> Result<R, E>
    where
        R: Send + 'static,
        E: From<Error> + Send + 'static,
        F: for<'t> FnOnce(&'t mut dyn Tx) -> BoxFuture<'t, Result<R, E>> + Send + 'static,
    {
        let readers = Arc::clone(&self.readers);
        let permit = readers.permits.acquire().await.map_err(|_| Error::unavailable("the store is closed"))?;
        let shared = Arc::clone(&self.readers);
        let done = tokio::task::spawn_blocking(move || -> Result<R, E> {
            let pooled = shared.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut connection = match pooled {
                Some(connection) => connection,
                None => open_reader(&shared.path)?,
            };
            let result = SqliteTx::view(&mut connection, |tx| finish(work(tx)));
            if connection.is_autocommit() {
                shared.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            }
            result
        });
        let result = done.await.map_err(Error::internal)?;
        drop(permit);
        result
    }

    pub(crate) async fn close(&self) {
        self.readers.permits.close();
        self.writer.stop().await;
        self.readers.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
