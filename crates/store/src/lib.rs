//! The store: events and messages, each stored exactly once.
//!
//! Every operation is written once, as a function over a transaction (`Tx`). Two databases implement `Tx`: SQLite, with
//! one writer that groups commits, and PostgreSQL. `Store::write` returns after the commit is durable, or with an error
//! and nothing stored.

pub mod approvals;
pub mod backup;
pub mod blobs;
pub mod branch_workflows;
pub mod budgets;
mod commit_metrics;
pub mod continuous;
pub mod error;
pub mod events;
pub mod forge_logins;
pub mod health;
pub mod idempotency;
pub mod interventions;
pub mod jobs;
pub mod judgements;
pub mod messages;
pub mod meta;
mod migrations;
pub mod model_usage;
pub mod open_ports;
mod postgres;
pub mod previews;
pub mod projects;
pub mod retention;
pub mod sandboxes;
pub mod secrets;
pub mod services;
pub mod session_keys;
pub mod sessions;
pub mod sign_ins;
pub mod sql;
mod sqlite;
pub mod streams;
pub mod task_queue;
pub mod tasks;
pub mod tickets;
pub mod tokens;
pub mod traces;
pub mod usage_samples;
pub mod users;
pub mod webhooks;

pub use commit_metrics::{COMMIT_SECONDS, COMMIT_UNITS};
pub use error::{Error, Result};
pub use postgres::database_hold::DatabaseHold;
use secrecy::SecretString;
pub use sql::Tx;
use std::path::PathBuf;

/// The schema version of this program.
pub const SCHEMA_VERSION: i64 = migrations::LATEST_VERSION;

/// Kind and location of the database.
#[derive(Debug, Clone)]
pub enum DatabaseLocation {
    Sqlite(PathBuf),
    Postgres(SecretString),
}

/// A handle to the database, cheap to clone.
#[derive(Clone)]
pub struct Store(Database);

#[derive(Clone)]
enum Database {
    Sqlite(sqlite::Sqlite),
    Postgres(postgres::Postgres),
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.database_kind())
    }
}

impl Store {
    /// Opens the database and migrates its tables.
    pub async fn open(location: &DatabaseLocation) -> Result<Self> {
        Ok(Self(match location {
            DatabaseLocation::Sqlite(path) => Database::Sqlite(sqlite::Sqlite::open(path).await?),
            DatabaseLocation::Postgres(url) => Database::Postgres(postgres::Postgres::open(url).await?),
        }))
    }

    /// Opens the database of an earlier server for reading: migrates nothing, and writes fail.
    pub async fn open_read_only(location: &DatabaseLocation) -> Result<Self> {
        match Self::schema_version(location).await? {
            Some(found) if found > SCHEMA_VERSION => {
                return Err(Error::NewerSchema { found, known: SCHEMA_VERSION });
            }
            Some(SCHEMA_VERSION) => {}
            Some(_) | None => return Err(Error::NotMigrated),
        }
        Ok(Self(match location {
            DatabaseLocation::Sqlite(path) => Database::Sqlite(sqlite::Sqlite::open_read_only(path).await?),
            // All migrations are applied, so opening changes nothing.
            DatabaseLocation::Postgres(url) => Database::Postgres(postgres::Postgres::open(url).await?),
        }))
    }

    /// Opens the database for one server; `holder` describes it. Fails if another server has the database open. An SQLite
    /// database needs no hold: it belongs to the data directory, which has a lock.
    pub async fn open_exclusively(location: &DatabaseLocation, holder: &str) -> Result<(Self, DatabaseHold)> {
        match location {
            DatabaseLocation::Sqlite(_) => Ok((Self::open(location).await?, DatabaseHold::not_needed())),
            DatabaseLocation::Postgres(url) => {
                let (postgres, hold) = postgres::Postgres::open_exclusively(url, holder).await?;
                Ok((Self(Database::Postgres(postgres)), hold))
            }
        }
    }

    /// Returns the schema version of a database without changing it; `None` if it has no tables.
    pub async fn schema_version(location: &DatabaseLocation) -> Result<Option<i64>> {
        match location {
            DatabaseLocation::Sqlite(path) => sqlite::schema_version(path).await,
            DatabaseLocation::Postgres(url) => postgres::schema_version(url).await,
        }
    }

    pub const fn database_kind(&self) -> &'static str {
        match &self.0 {
            Database::Sqlite(_) => "sqlite",
            Database::Postgres(_) => "postgres",
        }
    }

    /// Runs `work` in one transaction. On `Ok` it is durable before this returns; on `Err` nothing is stored.
    pub async fn write<R, E, F>(&self, work: F) -> Result<R, E>
    where
        R: Send + 'static,
        E: From<Error> + Send + 'static,
        F: AsyncFnOnce(&mut dyn Tx) -> Result<R, E> + Send + 'static,
    {
        self.write_then(work, |value| value).await
    }

    /// Like `write`, and runs `then` once the commit is durable, even if the caller has gone. On SQLite the calls are
    /// in commit order.
    pub async fn write_then<R, O, E, F, T>(&self, work: F, then: T) -> Result<O, E>
    where
        R: Send + 'static,
        O: Send + 'static,
        E: From<Error> + Send + 'static,
        F: AsyncFnOnce(&mut dyn Tx) -> Result<R, E> + Send + 'static,
        T: FnOnce(R) -> O + Send + 'static,
    {
        match &self.0 {
            Database::Sqlite(sqlite) => sqlite.write_then(work, then).await,
            Database::Postgres(postgres) => postgres.write_then(work, then).await,
        }
    }

    /// Runs `work` on one consistent snapshot.
    pub async fn read<R, E, F>(&self, work: F) -> Result<R, E>
    where
        R: Send + 'static,
        E: From<Error> + Send + 'static,
        F: AsyncFnOnce(&mut dyn Tx) -> Result<R, E> + Send + 'static,
    {
        match &self.0 {
            Database::Sqlite(sqlite) => sqlite.read(work).await,
            Database::Postgres(postgres) => postgres.read(work).await,
        }
    }

    /// Finishes running work and closes the database.
    pub async fn close(&self) {
        match &self.0 {
            Database::Sqlite(sqlite) => sqlite.close().await,
            Database::Postgres(postgres) => postgres.close().await,
        }
    }
}
