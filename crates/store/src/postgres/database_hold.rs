//! Holds a PostgreSQL database for one server: a second server refuses to start.
//!
//! The hold is an advisory lock of a connection of its own, so it ends with the server. The connection's application
//! name tells a second server who holds the database.

use super::postgres_tx::classify_error;
use crate::error::{Error, Result};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Row};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// First key of the advisory lock; the second is the schema.
const HOLD_KEY: i32 = 0x0a70_1101;
/// A server that was killed a moment ago may still count as the holder.
const HOLD_ATTEMPTS: u32 = 20;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(250);
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest application name that PostgreSQL stores.
const MAX_NAME_BYTES: usize = 63;

/// Another server's name.
type HolderName = String;

/// The result of one attempt to take the lock.
#[derive(Debug)]
enum HoldAttempt {
    Held,
    HeldBy(HolderName),
    /// The holder has given the lock up since the attempt.
    JustReleased,
}

/// A held database. Dropping it gives the database up.
#[derive(Debug)]
pub struct DatabaseHold(Option<(oneshot::Sender<()>, JoinHandle<()>)>);

impl DatabaseHold {
    /// The hold of a database that only one server can open anyway.
    pub(crate) const fn not_needed() -> Self {
        Self(None)
    }

    /// Gives the database up, and returns when another server can have it.
    pub async fn release(mut self) {
        if let Some((stop, monitor)) = self.0.take() {
            drop(stop);
            drop(monitor.await);
        }
    }
}

impl Drop for DatabaseHold {
    fn drop(&mut self) {
        if let Some((_, monitor)) = self.0.take() {
            monitor.abort();
        }
    }
}

/// Takes the hold, or returns who has it. `is_lost` becomes true if another server takes the database later.
pub(super) async fn hold_database(
    options: PgConnectOptions,
    holder: &str,
    is_lost: Arc<AtomicBool>,
) -> Result<DatabaseHold> {
    let options = options.application_name(&shorten_name(holder));
    let mut connection = connect(&options).await?;
    let mut attempt = 0;
    loop {
        attempt += 1;
        match try_hold(&mut connection).await? {
            HoldAttempt::Held => break,
            HoldAttempt::HeldBy(other) if attempt >= HOLD_ATTEMPTS => return Err(Error::DatabaseHeld(other)),
            HoldAttempt::JustReleased if attempt >= HOLD_ATTEMPTS => {
                return Err(Error::DatabaseHeld("another server".to_owned()));
            }
            HoldAttempt::HeldBy(_) | HoldAttempt::JustReleased => tokio::time::sleep(ATTEMPT_PAUSE).await,
        }
    }
    let (stop, stopped) = oneshot::channel();
    let monitor = tokio::spawn(watch_hold(connection, options, is_lost, stopped));
    Ok(DatabaseHold(Some((stop, monitor))))
}

fn shorten_name(holder: &str) -> String {
    // PostgreSQL replaces other characters by `?`.
    holder.chars().filter(|letter| letter.is_ascii_graphic() || *letter == ' ').take(MAX_NAME_BYTES).collect()
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection> {
    within_time(options.connect()).await
}

async fn within_time<T>(query: impl Future<Output = std::result::Result<T, sqlx::Error>>) -> Result<T> {
    match tokio::time::timeout(QUERY_TIMEOUT, query).await {
        Ok(result) => result.map_err(|error| classify_error(&error)),
        Err(_) => Err(Error::unavailable("the database does not respond")),
    }
}

/// Takes the lock, or finds its holder.
async fn try_hold(connection: &mut PgConnection) -> Result<HoldAttempt> {
    let lock = "SELECT pg_try_advisory_lock($1, hashtext(current_schema())) AS held";
    let row = within_time(sqlx::query(lock).bind(HOLD_KEY).fetch_one(&mut *connection)).await?;
    if row.try_get::<bool, _>("held").map_err(|error| classify_error(&error))? {
        return Ok(HoldAttempt::Held);
    }
    let find = "SELECT a.application_name || COALESCE(' from ' || host(a.client_addr), '') AS holder
                FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
                WHERE l.locktype = 'advisory' AND l.granted AND l.classid::bigint = $1
                AND l.objid::bigint = (hashtext(current_schema())::bigint & 4294967295)
                AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let found = within_time(sqlx::query(find).bind(i64::from(HOLD_KEY)).fetch_optional(connection)).await?;
    let Some(row) = found else { return Ok(HoldAttempt::JustReleased) };
    let name = row.try_get::<Option<String>, _>("holder").ok().flatten();
    Ok(HoldAttempt::HeldBy(name.unwrap_or_else(|| "another server".to_owned())))
}

/// Checks the connection of the hold. If it breaks, takes the hold again, unless another server was faster.
async fn watch_hold(
    mut connection: PgConnection,
    options: PgConnectOptions,
    is_lost: Arc<AtomicBool>,
    mut stopped: oneshot::Receiver<()>,
) {
    loop {
        tokio::select! {
            _ = &mut stopped => {
                drop(within_time(connection.close()).await);
                return;
            }
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
        }
        if within_time(connection.ping()).await.is_ok() {
            continue;
        }
        // PostgreSQL keeps the hold of a connection that is slow and not broken.
        drop(connection);
        connection = tokio::select! {
            _ = &mut stopped => return,
            held = hold_again(&options) => match held {
                Ok(connection) => connection,
                Err(other) => {
                    tracing::error!("the database is now held by {other}; this server stores nothing any more");
                    is_lost.store(true, Ordering::Relaxed);
                    return;
                }
            },
        };
    }
}

async fn hold_again(options: &PgConnectOptions) -> std::result::Result<PgConnection, HolderName> {
    let own = options.get_application_name().unwrap_or_default().to_owned();
    loop {
        if let Ok(mut connection) = connect(options).await {
            match try_hold(&mut connection).await {
                Ok(HoldAttempt::Held) => return Ok(connection),
                Ok(HoldAttempt::HeldBy(other)) if !other.starts_with(&own) => return Err(other),
                // PostgreSQL has not noticed yet that the old connection is gone.
                Ok(HoldAttempt::HeldBy(_) | HoldAttempt::JustReleased) | Err(_) => {}
            }
        }
        tokio::time::sleep(ATTEMPT_PAUSE).await;
    }
}
