//! PostgreSQL: a connection pool, one transaction per call. PostgreSQL itself groups concurrent commits.

pub(crate) mod database_hold;
mod postgres_tx;

use crate::commit_metrics::record_commit;
use crate::error::{Error, Result};
use crate::migrations;
use crate::sql::Tx;
use database_hold::DatabaseHold;
use postgres_tx::{PostgresTx, classify_error};
use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Advisory lock that serialises migrations of servers that start at the same time.
const MIGRATION_LOCK_KEY: i64 = 0x0a70_1100;

const MAX_CONNECTIONS: u32 = 16;

#[derive(Clone)]
pub(crate) struct Postgres {
    pool: PgPool,
    /// Another server has taken the database.
    is_lost: Arc<AtomicBool>,
}

/// Reads the schema version without changing anything.
pub(crate) async fn schema_version(url: &SecretString) -> Result<Option<i64>> {
    const TABLES: &str = "SELECT COUNT(*) AS count FROM information_schema.tables
                          WHERE table_name = 'schema_version' AND table_schema = current_schema()";
    let postgres = Postgres::connect(url, 1).await?;
    let looked = postgres.read(async move |tx| migrations::find_schema_version(tx, TABLES).await).await;
    postgres.close().await;
    looked
}

impl Postgres {
    pub(crate) async fn open(url: &SecretString) -> Result<Self> {
        let postgres = Self::connect(url, MAX_CONNECTIONS).await?;
        postgres.write_then(async move |tx| migrate_exclusively(tx).await, |()| ()).await?;
        Ok(postgres)
    }

    /// Opens the database for one server. The hold comes first, so that a refused server migrates nothing.
    pub(crate) async fn open_exclusively(url: &SecretString, holder: &str) -> Result<(Self, DatabaseHold)> {
        let is_lost = Arc::new(AtomicBool::new(false));
        let hold = database_hold::hold_database(parse_url(url)?, holder, Arc::clone(&is_lost)).await?;
        let postgres = Self { is_lost, ..Self::open(url).await? };
        Ok((postgres, hold))
    }

    async fn connect(url: &SecretString, connections: u32) -> Result<Self> {
        let options = parse_url(url)?.application_name("atoll").options([
            ("synchronous_commit", "on"),
            ("statement_timeout", "30000"),
            ("lock_timeout", "15000"),
        ]);
        let pool = PgPoolOptions::new()
            .min_connections(1)
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(5))
            .idle_timeout(Duration::from_secs(300))
            .connect_with(options)
            .await
            .map_err(|error| classify_error(&error))?;
        Ok(Self { pool, is_lost: Arc::default() })
    }

    pub(crate) async fn write_then<R, O, E, F, T>(&self, work: F, then: T) -> Result<O, E>
    where
        R: Send + 'static,
        O: Send + 'static,
        E: From<Error> + Send + 'static,
        F: AsyncFnOnce(&mut dyn Tx) -> Result<R, E> + Send + 'static,
        T: FnOnce(R) -> O + Send + 'static,
    {
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(Error::unavailable("another server holds the database").into());
        }
        self.run_transaction("BEGIN", async move |mut tx| {
            let began = Instant::now();
            // On an error, dropping the transaction rolls it back.
            let value = work(&mut tx).await?;
            tx.commit().await?;
            record_commit("postgres", began.elapsed(), 1);
            Ok(then(value))
        })
        .await
    }

    pub(crate) async fn read<R, E, F>(&self, work: F) -> Result<R, E>
    where
        R: Send + 'static,
        E: From<Error> + Send + 'static,
        F: AsyncFnOnce(&mut dyn Tx) -> Result<R, E> + Send + 'static,
    {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        self.run_transaction(begin, async move |mut tx| work(&mut tx).await).await
    }

    /// Runs in its own task, so that dropping the caller does not cancel it: the steps after a commit still run, and no
    /// connection returns to the pool within a `BEGIN`.
    ///
    /// The future of an async closure cannot be required to be `Send`, so it stays on one blocking thread. There are at
    /// most as many of these threads as connections.
    async fn run_transaction<R, E, F>(&self, begin: &'static str, work: F) -> Result<R, E>
    where
        R: Send + 'static,
        E: From<Error> + Send + 'static,
        F: AsyncFnOnce(PostgresTx) -> Result<R, E> + Send + 'static,
    {
        let pool = self.pool.clone();
        let task = tokio::spawn(async move {
            let transaction = pool.begin_with(begin).await.map_err(|error| classify_error(&error))?;
            let runtime = Handle::current();
            let run = move || runtime.block_on(Box::pin(work(PostgresTx::new(transaction))));
            tokio::task::spawn_blocking(run).await.map_err(Error::internal)?
        });
        task.await.map_err(Error::internal)?
    }

    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }
}

fn parse_url(url: &SecretString) -> Result<PgConnectOptions> {
    // The parser's error could contain the password.
    url.expose_secret().parse().map_err(|_| Error::unavailable("database_url is not a PostgreSQL URL"))
}

async fn migrate_exclusively(tx: &mut dyn Tx) -> Result<()> {
    tx.query("SELECT pg_advisory_xact_lock(?1)::text", &[MIGRATION_LOCK_KEY.into()]).await?;
    migrations::apply_migrations(tx, migrations::LATEST_VERSION).await
}
