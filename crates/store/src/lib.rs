//! The store: where events and messages are, exactly once.
//!
//! Every operation is written once, as a function over a transaction (`Tx`). Two databases carry
//! them out: SQLite, with one writer that groups commits, and PostgreSQL. `Store::write` returns
//! after the commit is durable, or with an error and nothing stored.

pub mod approvals;
pub mod backup;
pub mod blobs;
pub mod budgets;
pub mod continuous;
pub mod error;
pub mod events;
pub mod idempotency;
pub mod jobs;
pub mod messages;
pub mod meta;
mod migrate;
pub mod model_usage;
mod postgres;
pub mod projects;
pub mod retention;
pub mod sandboxes;
pub mod secrets;
pub mod sessions;
pub mod sql;
mod sqlite;
pub mod streams;
pub mod tokens;
pub mod users;

use atoll_core::BoxFuture;
pub use error::{Error, Result};
use secrecy::SecretString;
pub use sql::Tx;
use std::path::PathBuf;

/// The schema version that this program makes.
pub const SCHEMA_VERSION: i64 = migrate::LATEST;

/// Which database, and where.
#[derive(Debug, Clone)]
pub enum Location {
    Sqlite(PathBuf),
    Postgres(SecretString),
}

/// Runs in a task of its own, so that a caller that goes away doesn't break it off: what follows a
/// commit is done, and no connection goes back to the pool in the middle of a `BEGIN`.
async fn to_the_end<O, E>(work: impl Future<Output = Result<O, E>> + Send + 'static) -> Result<O, E>
where
    O: Send + 'static,
    E: From<Error> + Send + 'static,
{
    tokio::spawn(work).await.map_err(Error::internal)?
}

/// A handle that is cheap to clone.
#[derive(Clone)]
pub struct Store(Database);

#[derive(Clone)]
enum Database {
    Sqlite(sqlite::Sqlite),
    Postgres(postgres::Postgres),
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind())
    }
}

impl Store {
    /// Opens the database and brings its tables up to date.
    pub async fn open(location: &Location) -> Result<Self> {
        Ok(Self(match location {
            Location::Sqlite(path) => Database::Sqlite(sqlite::Sqlite::open(path).await?),
            Location::Postgres(url) => Database::Postgres(postgres::Postgres::open(url).await?),
        }))
    }

    /// Which schema a database has, only looking; `None` when it has no tables yet.
    pub async fn schema_version(location: &Location) -> Result<Option<i64>> {
        match location {
            Location::Sqlite(path) => sqlite::schema_version(path).await,
            Location::Postgres(url) => postgres::schema_version(url).await,
        }
    }

    pub const fn kind(&self) -> &'static str {
        match &self.0 {
            Database::Sqlite(_) => "sqlite",
            Database::Postgres(_) => "postgres",
        }
    }

    /// Runs `work` in one transaction. On `Ok` it is durable before this returns; on `Err` nothing
    /// of it happened.
    pub async fn write<R, E, F>(&self, work: F) -> Result<R, E>
    where
        R: Send + 'static,
        E: From<Error> + Send + 'static,
        F: for<'t> FnOnce(&'t mut dyn Tx) -> BoxFuture<'t, Result<R, E>> + Send + 'static,
    {
        self.write_then(work, |value| value).await
    }

    /// Like `write`; when it is durable `then` is run, also if nobody waits for the answer any more.
    /// On SQLite it is run in the order of the commits.
    pub async fn write_then<R, O, E, F, T>(&self, work: F, then: T) -> Result<O, E>
    where
        R: Send + 'static,
        O: Send + 'static,
        E: From<Error> + Send + 'static,
        F: for<'t> FnOnce(&'t mut dyn Tx) -> BoxFuture<'t, Result<R, E>> + Send + 'static,
        T: FnOnce(R) -> O + Send + 'static,
    {
        match &self.0 {
            Database::Sqlite(sqlite) => sqlite.write_then(work, then).await,
            Database::Postgres(postgres) => {
                let postgres = postgres.clone();
                to_the_end(async move { postgres.write(work).await.map(then) }).await
            }
        }
    }

    /// Runs `work` on one consistent view.
    pub async fn read<R, E, F>(&self, work: F) -> Result<R, E>
    where
        R: Send + 'static,
        E: From<Error> + Send + 'static,
        F: for<'t> FnOnce(&'t mut dyn Tx) -> BoxFuture<'t, Result<R, E>> + Send + 'static,
    {
        match &self.0 {
            Database::Sqlite(sqlite) => sqlite.read(work).await,
            Database::Postgres(postgres) => {
                let postgres = postgres.clone();
                to_the_end(async move { postgres.read(work).await }).await
            }
        }
    }

    /// Finishes what is under way and lets go of the database.
    pub async fn close(&self) {
        match &self.0 {
            Database::Sqlite(sqlite) => sqlite.close().await,
            Database::Postgres(postgres) => postgres.close().await,
        }
    }
}
