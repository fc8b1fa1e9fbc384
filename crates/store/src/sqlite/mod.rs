//! SQLite: one file in WAL mode, one writer thread that groups commits, a few readers.

mod sqlite_tx;
mod writer;

use crate::error::{Error, Result};
use crate::migrations;
use crate::sql::Tx;
use rusqlite::{Connection, OpenFlags};
use sqlite_tx::SqliteTx;
pub(crate) use sqlite_tx::classify_error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use writer::SqliteWriter;

const MAX_READERS: usize = 4;
const CACHED_STATEMENTS: usize = 96;

#[derive(Clone)]
pub(crate) struct Sqlite {
    writer: SqliteWriter,
    readers: Arc<ReaderPool>,
}

struct ReaderPool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    permits: Semaphore,
}

/// Drives a future that never waits: all calls in a SQLite transaction complete synchronously.
fn run_to_completion<T, E: From<Error>>(future: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match Box::pin(future).as_mut().poll(&mut context) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => {
            Err(Error::internal("a transaction waited for something outside the database").into())
        }
    }
}

fn configure_connection(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "cache_size", -2048)?;
    connection.pragma_update(None, "temp_store", "MEMORY")
}

fn open_writer(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path).map_err(|error| classify_error(&error))?;
    let prepare = || -> rusqlite::Result<()> {
        configure_connection(&connection)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "wal_autocheckpoint", 4000)?;
        connection.pragma_update(None, "journal_size_limit", 64 * 1024 * 1024)
    };
    prepare().map_err(|error| classify_error(&error))?;
    Ok(connection)
}

fn open_reader(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| classify_error(&error))?;
    configure_connection(&connection).map_err(|error| classify_error(&error))?;
    Ok(connection)
}

/// Opens the database read-only and returns its schema version.
pub(crate) async fn schema_version(path: &Path) -> Result<Option<i64>> {
    const TABLES: &str = "SELECT COUNT(*) AS count FROM sqlite_master WHERE name = 'schema_version'";
    let path = path.to_owned();
    let looked = tokio::task::spawn_blocking(move || {
        let mut connection = open_reader(&path)?;
        SqliteTx::run_read_transaction(&mut connection, |tx| {
            run_to_completion(migrations::find_schema_version(tx, TABLES))
        })
    });
    looked.await.map_err(Error::internal)?
}

impl Sqlite {
    pub(crate) async fn open(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || -> Result<Self> {
            let mut connection = open_writer(&path)?;
            SqliteTx::run_write_transaction(&mut connection, |tx| {
                run_to_completion(migrations::apply_migrations(tx, migrations::LATEST_VERSION))
            })?;
            let idle = Mutex::new(Vec::new());
            let readers = ReaderPool { path, idle, permits: Semaphore::new(MAX_READERS) };
            Ok(Self { writer: SqliteWriter::start(connection)?, readers: Arc::new(readers) })
        });
        opened.await.map_err(Error::internal)?
    }

    /// Opens the file without the right to write; its writer fails.
    pub(crate) async fn open_read_only(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || -> Result<Self> {
            let connection = open_reader(&path)?;
            let readers = ReaderPool { path, idle: Mutex::default(), permits: Semaphore::new(MAX_READERS) };
            Ok(Self { writer: SqliteWriter::start(connection)?, readers: Arc::new(readers) })
        });
        opened.await.map_err(Error::internal)?
    }

    pub(crate) async fn read<R, E, F>(&self, work: F) -> Result<R, E>
    where
        R: Send + 'static,
        E: From<Error> + Send + 'static,
        F: AsyncFnOnce(&mut dyn Tx) -> Result<R, E> + Send + 'static,
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
            let result = SqliteTx::run_read_transaction(&mut connection, |tx| run_to_completion(work(tx)));
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
