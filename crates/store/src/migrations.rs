//! Forward-only migrations, with the same SQL for both databases.

use crate::error::{Error, Result};
use crate::sql::{Tx, first_row};

pub(crate) struct Migration {
    pub(crate) version: i64,
    pub(crate) sql: &'static str,
}

/// In order; a released migration never changes.
pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, sql: include_str!("../migrations/0001_first.sql") },
    Migration { version: 2, sql: include_str!("../migrations/0002_secrets.sql") },
    Migration { version: 3, sql: include_str!("../migrations/0003_approvals.sql") },
    Migration { version: 4, sql: include_str!("../migrations/0004_model_usage.sql") },
    Migration { version: 5, sql: include_str!("../migrations/0005_transcripts.sql") },
    Migration { version: 6, sql: include_str!("../migrations/0006_limits.sql") },
    Migration { version: 7, sql: include_str!("../migrations/0007_continuous.sql") },
    Migration { version: 8, sql: include_str!("../migrations/0008_login_files.sql") },
    Migration { version: 9, sql: include_str!("../migrations/0009_budgets.sql") },
    Migration { version: 10, sql: include_str!("../migrations/0010_log_quota.sql") },
    Migration { version: 11, sql: include_str!("../migrations/0011_cost_sources.sql") },
    Migration { version: 12, sql: include_str!("../migrations/0012_setup.sql") },
    Migration { version: 13, sql: include_str!("../migrations/0013_services.sql") },
    Migration { version: 14, sql: include_str!("../migrations/0014_names.sql") },
    Migration { version: 16, sql: include_str!("../migrations/0016_tickets.sql") },
    Migration { version: 17, sql: include_str!("../migrations/0017_webhooks.sql") },
    Migration { version: 20, sql: include_str!("../migrations/0020_forge_logins.sql") },
    Migration { version: 21, sql: include_str!("../migrations/0021_branch_workflows.sql") },
    Migration { version: 22, sql: include_str!("../migrations/0022_page.sql") },
    Migration { version: 23, sql: include_str!("../migrations/0023_tasks.sql") },
    Migration { version: 24, sql: include_str!("../migrations/0024_traces.sql") },
    Migration { version: 25, sql: include_str!("../migrations/0025_interventions.sql") },
    Migration { version: 26, sql: include_str!("../migrations/0026_health.sql") },
];

pub(crate) const LATEST_VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

pub(crate) const CREATE_VERSION_TABLE: &str =
    "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL)";

/// Splits a migration into statements. Semicolons occur only at the end of statements.
pub(crate) fn split_statements(sql: &'static str) -> impl Iterator<Item = &'static str> {
    sql.split(';').map(str::trim).filter(|statement| {
        statement.lines().any(|line| !line.trim_start().starts_with("--") && !line.trim().is_empty())
    })
}

pub(crate) async fn current_version(tx: &mut dyn Tx) -> Result<i64> {
    let rows = tx.query("SELECT COALESCE(MAX(version), 0) AS version FROM schema_version", &[]).await?;
    first_row(rows).ok_or_else(|| Error::internal("no schema version"))?.int("version")
}

/// Returns the schema version if its table exists; `tables` is the query that selects its `count`.
pub(crate) async fn find_schema_version(tx: &mut dyn Tx, tables: &'static str) -> Result<Option<i64>> {
    let there = first_row(tx.query(tables, &[]).await?).ok_or_else(|| Error::internal("no count"))?.int("count")?;
    if there == 0 { Ok(None) } else { current_version(tx).await.map(Some) }
}

/// Migrates the tables to `target`, in the caller's transaction.
pub(crate) async fn apply_migrations(tx: &mut dyn Tx, target: i64) -> Result<()> {
    tx.execute(CREATE_VERSION_TABLE, &[]).await?;
    let found = current_version(tx).await?;
    if found > LATEST_VERSION {
        return Err(Error::NewerSchema { found, known: LATEST_VERSION });
    }
    for migration in MIGRATIONS.iter().filter(|m| m.version > found && m.version <= target) {
        for statement in split_statements(migration.sql) {
            tx.execute(statement, &[]).await?;
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let applied = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        tx.execute(
            "INSERT INTO schema_version (version, applied_at) VALUES (?1, ?2)",
            &[migration.version.into(), applied.into()],
        )
        .await?;
    }
    Ok(())
}
