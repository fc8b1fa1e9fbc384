//! Durable ingest on SQLite. Floor: one thread that writes the same rows into the same tables, 50 per transaction, with the
//! server's SQLite settings and without HTTP.

use super::ingest::{self, CLIENTS, Floor};
use crate::bench::Bench;
use crate::load::{EVENT_TYPES, EVENTS_PER_BATCH, SOURCE, event_data};
use crate::report::Figure;
use anyhow::Result;
use atoll_store::{DatabaseLocation, Store};
use rusqlite::{Connection, params};
use std::path::Path;
use std::time::{Duration, Instant};
use uuid::Uuid;

const INSERT_SQL: &str = "INSERT INTO events (sandbox_id, seq, id, type, source, actor, at, received_at, turn, data)
    VALUES (?1, ?2, ?3, ?4, ?5, NULL, ?6, ?7, NULL, ?8)";

pub struct SqliteFloor {
    connection: Connection,
    sandboxes: Vec<String>,
    ids: Vec<String>,
    data: Vec<String>,
    transactions: usize,
}

impl SqliteFloor {
    /// Creates a database with the store's tables and indexes.
    pub async fn open(path: &Path) -> Result<Self> {
        let store = Store::open(&DatabaseLocation::Sqlite(path.to_owned())).await?;
        store.close().await;
        drop(store);
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "wal_autocheckpoint", 4000)?;
        connection.pragma_update(None, "foreign_keys", true)?;
        Ok(Self {
            connection,
            sandboxes: (0..CLIENTS).map(|_| format!("sbx_{}", Uuid::now_v7().simple())).collect(),
            ids: (0..4096).map(|_| Uuid::now_v7().to_string()).collect(),
            data: (0..EVENTS_PER_BATCH).map(event_data).collect(),
            transactions: 0,
        })
    }

    /// Commits one transaction of `rows` rows, for the sandboxes round-robin.
    pub fn commit_rows(&mut self, rows: usize) -> Result<()> {
        let sandbox = &self.sandboxes[self.transactions % CLIENTS];
        let first = (self.transactions / CLIENTS * rows) as i64;
        let transaction = self.connection.transaction()?;
        let mut insert = transaction.prepare_cached(INSERT_SQL)?;
        for row in 0..rows {
            let (seq, id) = (first + row as i64 + 1, &self.ids[(first as usize + row) % self.ids.len()]);
            let (now, data) = (1_767_225_600_000_000_i64 + seq, &self.data[row % EVENTS_PER_BATCH]);
            insert.execute(params![sandbox, seq, id, EVENT_TYPES[row % EVENT_TYPES.len()], SOURCE, now, now, data])?;
        }
        drop(insert);
        transaction.commit()?;
        self.transactions += 1;
        Ok(())
    }
}

impl Floor for SqliteFloor {
    async fn measure_rate(&mut self, duration: Duration) -> Result<f64> {
        let (began, before) = (Instant::now(), self.transactions);
        while began.elapsed() < duration {
            self.commit_rows(EVENTS_PER_BATCH)?;
        }
        Ok(((self.transactions - before) * EVENTS_PER_BATCH) as f64 / began.elapsed().as_secs_f64())
    }
}

pub async fn measure_sqlite_ingest(bench: &Bench) -> Result<Vec<Figure>> {
    let scratch = bench.start_server(None)?;
    let mut floor = SqliteFloor::open(&scratch.dir.path().join("floor.db")).await?;
    ingest::measure_ingest("SQLite", &scratch, &mut floor, bench.plan.rounds, bench.plan.sample_duration).await
}
