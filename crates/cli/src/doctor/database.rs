//! The database: how fast it writes here, whether it can be reached, and which tables it has.

use super::disk::{Scratch, latency};
use super::{Check, Report};
use crate::failure::Result;
use atoll_config::Database;
use atoll_store::{Location, Store, meta};
use std::path::Path;
use std::time::{Duration, Instant};

const CHECK: &str = "database";

/// Commits of one row each, to a database of its own.
pub async fn measure(dir: &Path, report: &mut Report<'_>) -> Result {
    const CHECK: &str = "SQLite writes";
    const FAILED: &str = "Check the disk, and that nothing limits this process.";
    let measured = async {
        let scratch = Scratch::new(dir).map_err(|error| error.to_string())?;
        let path = scratch.path().join("measured.db");
        let store = Store::open(&Location::Sqlite(path)).await.map_err(|error| error.to_string())?;
        let mut taken = Vec::new();
        for turn in 0..20 {
            let began = Instant::now();
            let written =
                store.write(move |tx| Box::pin(async move { meta::set(tx, "turn", &turn.to_string()).await }));
            written.await.map_err(|error: atoll_store::Error| error.to_string())?;
            taken.push(began.elapsed());
        }
        store.close().await;
        Ok::<_, String>(taken)
    };
    report.tell(match measured.await {
        Ok(taken) => latency(CHECK, "one durable commit", taken, Duration::from_millis(50)),
        Err(error) => Check::fail(CHECK, error, FAILED),
    })
}

pub async fn check(database: &Database, report: &mut Report<'_>) -> Result {
    const REMEDY: &str = "Check database_url, that the server runs, and that this machine may connect.";
    const DAMAGED: &str = "Run as its owner; if it is damaged, put the last `atoll backup` in its place.";
    let (location, what, remedy) = match database {
        Database::Sqlite { path } if !path.exists() => {
            let detail = format!("{} does not exist yet; `atoll serve` makes it", path.display());
            return report.tell(Check::ok(CHECK, detail));
        }
        Database::Sqlite { path } => (Location::Sqlite(path.clone()), format!("SQLite in {}", path.display()), DAMAGED),
        Database::Postgres { url } => (Location::Postgres(url.clone()), "PostgreSQL answers".to_owned(), REMEDY),
    };
    report.tell(match Store::schema_version(&location).await {
        Ok(version) => judged(&what, version),
        Err(error) => Check::fail(CHECK, error.to_string(), remedy),
    })
}

fn judged(what: &str, version: Option<i64>) -> Check {
    const KNOWN: i64 = atoll_store::SCHEMA_VERSION;
    match version {
        None => Check::ok(CHECK, format!("{what}; it has no tables yet, `atoll serve` makes them")),
        Some(version) if version > KNOWN => Check::fail(
            CHECK,
            format!("{what}, schema version {version}, which is newer than this program's {KNOWN}"),
            "Use the Atoll that wrote it, or a newer one.",
        ),
        Some(version) if version < KNOWN => {
            Check::ok(CHECK, format!("{what}, schema version {version}; `atoll serve` brings it to {KNOWN}"))
        }
        Some(version) => Check::ok(CHECK, format!("{what}, schema version {version}")),
    }
}
