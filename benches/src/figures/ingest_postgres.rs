//! Durable ingest on PostgreSQL. Floor: one connection to the same PostgreSQL that inserts the same
//! rows into the same tables, 50 in each transaction, without HTTP.

use super::ingest::{self, CLIENTS, Floor};
use crate::bench::Bench;
use crate::load::{EVENT_TYPES, EVENTS_PER_BATCH, SOURCE, event_data};
use crate::report::Figure;
use anyhow::{Result, ensure};
use atoll_store::{DatabaseLocation, Store};
use atoll_tests::postgres::Postgres;
use sqlx::{Connection, PgConnection};
use std::path::Path;
use std::time::{Duration, Instant};
use uuid::Uuid;

const INSERT_SQL: &str = "INSERT INTO events (sandbox_id, seq, id, type, source, actor, at, received_at, turn, data)
    SELECT * FROM UNNEST($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[],
                         $8::bigint[], $9::bigint[], $10::text[])";

struct PostgresFloor {
    connection: PgConnection,
    sandboxes: Vec<String>,
    columns: EventColumns,
    transactions: usize,
}

/// Column values that are the same in every transaction.
struct EventColumns {
    ids: Vec<String>,
    types: Vec<&'static str>,
    sources: Vec<&'static str>,
    actors: Vec<Option<&'static str>>,
    turns: Vec<Option<i64>>,
    data: Vec<String>,
}

impl PostgresFloor {
    async fn open(url: &str) -> Result<Self> {
        let store = Store::open(&DatabaseLocation::Postgres(url.into())).await?;
        store.close().await;
        let mut connection = PgConnection::connect(url).await?;
        for setting in ["SHOW fsync", "SHOW synchronous_commit", "SHOW full_page_writes"] {
            let value: String = sqlx::query_scalar(setting).fetch_one(&mut connection).await?;
            ensure!(value == "on", "{setting} is {value}: this PostgreSQL is not durable");
        }
        let columns = EventColumns {
            ids: (0..EVENTS_PER_BATCH).map(|_| Uuid::now_v7().to_string()).collect(),
            types: (0..EVENTS_PER_BATCH).map(|row| EVENT_TYPES[row % EVENT_TYPES.len()]).collect(),
            sources: vec![SOURCE; EVENTS_PER_BATCH],
            actors: vec![None; EVENTS_PER_BATCH],
            turns: vec![None; EVENTS_PER_BATCH],
            data: (0..EVENTS_PER_BATCH).map(event_data).collect(),
        };
        let sandboxes = (0..CLIENTS).map(|_| format!("sbx_{}", Uuid::now_v7().simple())).collect();
        Ok(Self { connection, sandboxes, columns, transactions: 0 })
    }

    /// One statement is one transaction: one round trip, one flush.
    async fn commit_batch(&mut self) -> Result<()> {
        let sandbox = vec![self.sandboxes[self.transactions % CLIENTS].as_str(); EVENTS_PER_BATCH];
        let first = (self.transactions / CLIENTS * EVENTS_PER_BATCH) as i64;
        let seqs: Vec<i64> = (1..=EVENTS_PER_BATCH as i64).map(|row| first + row).collect();
        let times: Vec<i64> = seqs.iter().map(|seq| 1_767_225_600_000_000 + seq).collect();
        let columns = &self.columns;
        let insert = sqlx::query(INSERT_SQL)
            .bind(sandbox)
            .bind(&seqs)
            .bind(&columns.ids)
            .bind(&columns.types)
            .bind(&columns.sources)
            .bind(&columns.actors)
            .bind(&times)
            .bind(&times)
            .bind(&columns.turns)
            .bind(&columns.data);
        insert.execute(&mut self.connection).await?;
        self.transactions += 1;
        Ok(())
    }
}

impl Floor for PostgresFloor {
    async fn measure_rate(&mut self, duration: Duration) -> Result<f64> {
        let (began, before) = (Instant::now(), self.transactions);
        while began.elapsed() < duration {
            self.commit_batch().await?;
        }
        Ok(((self.transactions - before) * EVENTS_PER_BATCH) as f64 / began.elapsed().as_secs_f64())
    }
}

pub async fn measure_postgres_ingest(bench: &Bench) -> Result<Vec<Figure>> {
    ensure!(Path::new("/usr/lib/postgresql").exists(), "PostgreSQL is not installed (package postgresql)");
    // Blocking is fine: nothing else runs in this process meanwhile.
    let postgres = Postgres::start();
    let mut floor = PostgresFloor::open(&postgres.create_database()).await?;
    let scratch = bench.start_server(Some(&postgres.create_database()))?;
    let figures =
        ingest::measure_ingest("PostgreSQL", &scratch, &mut floor, bench.plan.rounds, bench.plan.sample_duration).await;
    drop(scratch);
    figures
}
