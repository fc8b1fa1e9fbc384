//! Checks the database: commit latency, connection and schema version.

use super::disk_check::{create_scratch_dir, judge_latency};
use super::{Check, Report};
use crate::failure::Result;
use atoll_config::Database;
use atoll_store::{DatabaseLocation, Store, meta};
use std::path::Path;
use std::time::{Duration, Instant};

const CHECK: &str = "database";

/// Measures commits of one row to a temporary database.
pub async fn measure_commits(dir: &Path, report: &mut Report<'_>) -> Result {
    const CHECK: &str = "SQLite writes";
    const FAILED: &str = "Check the disk and the limits of this process.";
    let measured = async {
        let scratch = create_scratch_dir(dir).map_err(|error| error.to_string())?;
        let path = scratch.path().join("measured.db");
        let store = Store::open(&DatabaseLocation::Sqlite(path)).await.map_err(|error| error.to_string())?;
        let mut durations = Vec::new();
        for turn in 0..20 {
            let started = Instant::now();
            let written = store.write(async move |tx| meta::set_meta_value(tx, "turn", &turn.to_string()).await);
            written.await.map_err(|error: atoll_store::Error| error.to_string())?;
            durations.push(started.elapsed());
        }
        store.close().await;
        Ok::<_, String>(durations)
    };
    report.add(match measured.await {
        Ok(durations) => judge_latency(CHECK, "one durable commit", durations, Duration::from_millis(50)),
        Err(error) => Check::fail(CHECK, error, FAILED),
    })
}

pub async fn check_database(database: &Database, report: &mut Report<'_>) -> Result {
    const REMEDY: &str = "Check database_url, and that the database accepts connections from this machine.";
    const DAMAGED: &str = "Run as its owner; if it is damaged, restore the last `atoll backup`.";
    let (location, what, remedy) = match database {
        Database::Sqlite { path } if !path.exists() => {
            let detail = format!("{} does not exist yet; `atoll serve` creates it", path.display());
            return report.add(Check::ok(CHECK, detail));
        }
        Database::Sqlite { path } => {
            (DatabaseLocation::Sqlite(path.clone()), format!("SQLite in {}", path.display()), DAMAGED)
        }
        Database::Postgres { url } => {
            (DatabaseLocation::Postgres(url.clone()), "PostgreSQL is reachable".to_owned(), REMEDY)
        }
    };
    report.add(match Store::schema_version(&location).await {
        Ok(version) => judge_schema(&what, version),
        Err(error) => Check::fail(CHECK, error.to_string(), remedy),
    })
}

fn judge_schema(what: &str, version: Option<i64>) -> Check {
    const KNOWN: i64 = atoll_store::SCHEMA_VERSION;
    match version {
        None => Check::ok(CHECK, format!("{what}, no tables yet; `atoll serve` creates them")),
        Some(version) if version > KNOWN => Check::fail(
            CHECK,
            format!("{what}, schema version {version}, newer than this program's {KNOWN}"),
            "Use the version of Atoll that wrote it, or a newer one.",
        ),
        Some(version) if version < KNOWN => {
            Check::ok(CHECK, format!("{what}, schema version {version}; `atoll serve` migrates it to {KNOWN}"))
        }
        Some(version) => Check::ok(CHECK, format!("{what}, schema version {version}")),
    }
}
