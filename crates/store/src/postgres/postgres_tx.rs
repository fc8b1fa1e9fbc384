//! A PostgreSQL transaction behind the `Tx` trait, and the classification of its errors.

use crate::error::{Error, Result};
use crate::sql::{BulkInsertSql, Cell, Row, SqlParam, Tx};
use atoll_core::BoxFuture;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Column, Postgres, Row as _, TypeInfo};
use std::borrow::Cow;
use std::sync::Arc;

pub(crate) struct PostgresTx {
    inner: sqlx::Transaction<'static, Postgres>,
}

/// Distinguishes a full disk, a restart and a duplicate name from a bug.
pub(crate) fn classify_error(error: &sqlx::Error) -> Error {
    let detail = error.to_string();
    match error {
        sqlx::Error::Database(database) => {
            let detail = database.message().to_owned();
            let code = database.code().unwrap_or(Cow::Borrowed(""));
            match &code[..code.len().min(2)] {
                "23" => Error::AlreadyExists { what: detail },
                _ if code == "53100" => Error::DiskFull { detail },
                // Connection failures, rejected log-in, missing database, no resources, shutdown by an administrator,
                // locks, roll-backs, read-only standby.
                "08" | "28" | "3D" | "53" | "57" | "55" | "40" | "25" => Error::Unavailable { detail },
                _ => Error::Internal { detail },
            }
        }
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => Error::Unavailable { detail },
        _ => Error::Internal { detail },
    }
}

/// Converts our static SQL to PostgreSQL's parameter syntax. It never contains user input.
fn convert_placeholders(sql: &'static str, suffix: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(sql.replace('?', "$") + suffix)
}

type PgQuery<'q> = Query<'q, Postgres, PgArguments>;

fn bind_params<'q>(mut query: PgQuery<'q>, params: &'q [SqlParam<'q>]) -> Result<PgQuery<'q>> {
    for param in params {
        param.reject_nul()?;
        query = match param {
            SqlParam::Int(value) => query.bind(*value),
            SqlParam::Text(value) => query.bind(value.as_deref()),
        };
    }
    Ok(query)
}

fn convert_row(row: &PgRow, columns: &Arc<[String]>) -> Result<Row> {
    let cell = |column: usize| -> Result<Cell, sqlx::Error> {
        Ok(match row.column(column).type_info().name() {
            "TEXT" | "VARCHAR" | "NAME" | "VOID" => {
                row.try_get::<Option<String>, _>(column)?.map_or(Cell::Null, Cell::Text)
            }
            "INT4" => row.try_get::<Option<i32>, _>(column)?.map_or(Cell::Null, |value| Cell::Int(value.into())),
            _ => row.try_get::<Option<i64>, _>(column)?.map_or(Cell::Null, Cell::Int),
        })
    };
    let cells: Result<Vec<Cell>, sqlx::Error> = (0..columns.len()).map(cell).collect();
    Ok(Row::new(Arc::clone(columns), cells.map_err(|error| classify_error(&error))?))
}

impl PostgresTx {
    pub(crate) fn new(inner: sqlx::Transaction<'static, Postgres>) -> Self {
        Self { inner }
    }

    pub(crate) async fn commit(self) -> Result<()> {
        self.inner.commit().await.map_err(|error| match classify_error(&error) {
            // A failed commit may have been stored, so never report it as not stored.
            Error::Unavailable { detail } | Error::Internal { detail } => Error::CommitUnconfirmed { detail },
            other => other,
        })
    }

    async fn fetch_rows(&mut self, query: PgQuery<'_>) -> Result<Vec<Row>> {
        let rows = query.fetch_all(&mut *self.inner).await.map_err(|error| classify_error(&error))?;
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        let columns = first.columns().iter().map(|column| column.name().to_owned()).collect();
        rows.iter().map(|row| convert_row(row, &columns)).collect()
    }
}

/// Converts a column of the rows to an array.
fn collect_column<'a>(rows: &'a [Vec<SqlParam<'a>>], column: usize) -> Result<ColumnArray<'a>> {
    let is_text = matches!(rows.first().and_then(|row| row.get(column)), Some(SqlParam::Text(_)));
    let mut ints = Vec::new();
    let mut texts = Vec::new();
    for value in rows.iter().filter_map(|row| row.get(column)) {
        value.reject_nul()?;
        match value {
            SqlParam::Int(value) => ints.push(*value),
            SqlParam::Text(value) => texts.push(value.as_deref()),
        }
    }
    Ok(if is_text { ColumnArray::Text(texts) } else { ColumnArray::Int(ints) })
}

enum ColumnArray<'a> {
    Int(Vec<Option<i64>>),
    Text(Vec<Option<&'a str>>),
}

impl Tx for PostgresTx {
    fn query<'a>(&'a mut self, sql: &'static str, params: &'a [SqlParam<'a>]) -> BoxFuture<'a, Result<Vec<Row>>> {
        Box::pin(async move { self.fetch_rows(bind_params(sqlx::query(convert_placeholders(sql, "")), params)?).await })
    }

    fn execute<'a>(&'a mut self, sql: &'static str, params: &'a [SqlParam<'a>]) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            let query = bind_params(sqlx::query(convert_placeholders(sql, "")), params)?;
            let done = query.execute(&mut *self.inner).await.map_err(|error| classify_error(&error))?;
            Ok(done.rows_affected())
        })
    }

    fn query_for_update<'a>(
        &'a mut self,
        sql: &'static str,
        params: &'a [SqlParam<'a>],
    ) -> BoxFuture<'a, Result<Vec<Row>>> {
        Box::pin(async move {
            self.fetch_rows(bind_params(sqlx::query(convert_placeholders(sql, " FOR UPDATE")), params)?).await
        })
    }

    fn insert_many<'a>(&'a mut self, sql: BulkInsertSql, rows: &'a [Vec<SqlParam<'a>>]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(first) = rows.first() else { return Ok(()) };
            let mut query = sqlx::query(convert_placeholders(sql.row_arrays, ""));
            for column in 0..first.len() {
                query = match collect_column(rows, column)? {
                    ColumnArray::Int(values) => query.bind(values),
                    ColumnArray::Text(values) => query.bind(values),
                };
            }
            query.execute(&mut *self.inner).await.map_err(|error| classify_error(&error))?;
            Ok(())
        })
    }
}
