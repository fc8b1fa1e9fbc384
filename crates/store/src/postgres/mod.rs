//! PostgreSQL: a pool of connections, one transaction a call. Concurrent commits share a flush by
//! themselves.

mod tx;

use crate::error::{Error, Result};
use crate::migrate;
use crate::sql::Tx;
use atoll_core::BoxFuture;
use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use std::time::Duration;
use tx::{PostgresTx, classify};

/// Two servers that start at once migrate one after the other.
const MIGRATION_LOCK: i64 = 0x0a70_1100;

const CONNECTIONS: u32 = 16;

#[derive(Clone)]
pub(crate) struct Postgres {
    pool: PgPool,
}

/// Reads only: looking changes nothing.
pub(crate) async fn schema_version(url: &SecretString) -> Result<Option<i64>> {
    const TABLES: &str = "SELECT COUNT(*) FROM information_schema.tables
                          WHERE table_name = 'schema_version' AND table_schema = current_schema()";
    let postgres = Postgres::connect(url, 1).await?;
    let looked = postgres.read(|tx| Box::pin(migrate::look(tx, TABLES))).await;
    postgres.close().await;
    looked
}

impl Postgres {
    pub(crate) async fn open(url: &SecretString) -> Result<Self> {
        let postgres = Self::connect(url, CONNECTIONS).await?;
        postgres.write(|tx| Box::pin(migrate_alone(tx))).await?;
        Ok(postgres)
    }

    async fn connect(url: &SecretString, connections: u32) -> Result<Self> {
        let options: PgConnectOptions = url
            .expose_secret()
            .parse()
            // The parser's own words could repeat the password.
            .map_err(|_| Error::unavailable("database_url is not a PostgreSQL URL"))?;
        let options = options.application_name("atoll").options([
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
            .map_err(|error| classify(&error))?;
        Ok(Self { pool })
    }

    pub(crate) async fn write<R, E, F>(&self, work: F) -> Result<R, E>
    where
        R: Send + 'static,
        E: From<Error> + Send + 'static,
        F: for<'t> FnOnce(&'t mut dyn Tx) -> BoxFuture<'t, Result<R, E>> + Send + 'static,
    {
        let begun = self.pool.begin().await.map_err(|error| classify(&error))?;
        let mut tx = PostgresTx::new(begun);
        // Dropping the transaction on an error rolls it back.
        let value = work(&mut tx).await?;
        tx.commit().await?;
        Ok(value)
    }

    pub(crate) async fn read<R, E, F>(&self, work: F) -> Result<R, E>
    where
        R: Send + 'static,
        E: From<Error> + Send + 'static,
        F: for<'t> FnOnce(&'t mut dyn Tx) -> BoxFuture<'t, Result<R, E>> + Send + 'static,
    {
        let begun = self.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
        let mut tx = PostgresTx::new(begun.await.map_err(|error| classify(&error))?);
        work(&mut tx).await
    }

    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }
}

async fn migrate_alone(tx: &mut dyn Tx) -> Result<()> {
    tx.query("SELECT pg_advisory_xact_lock(?1)::text", &[MIGRATION_LOCK.into()]).await?;
    migrate::migrate(tx, migrate::LATEST).await
}
