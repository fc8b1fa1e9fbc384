//! A SQLite transaction behind the `Tx` trait, and the classification of its errors.

use crate::error::{Error, Result};
use crate::sql::{BulkInsertSql, Cell, Row, SqlParam, Tx};
use atoll_core::BoxFuture;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, ToSql};
use std::sync::Arc;

pub(crate) struct SqliteTx<'c> {
    connection: &'c mut Connection,
}

impl ToSql for SqlParam<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            SqlParam::Int(Some(value)) => ValueRef::Integer(*value),
            SqlParam::Text(Some(value)) => ValueRef::Text(value.as_bytes()),
            SqlParam::Int(None) | SqlParam::Text(None) => ValueRef::Null,
        }))
    }
}

/// Distinguishes a full disk and transient errors from a bug.
pub(crate) fn classify_error(error: &rusqlite::Error) -> Error {
    let detail = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::DiskFull { detail },
        Some(ErrorCode::ConstraintViolation) => Error::AlreadyExists { what: detail },
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::SystemIoFailure
            | ErrorCode::CannotOpen
            | ErrorCode::ReadOnly
            | ErrorCode::OutOfMemory
            | ErrorCode::OperationAborted
            | ErrorCode::FileLockingProtocolFailed,
        ) => Error::Unavailable { detail },
        _ => Error::Internal { detail },
    }
}

impl<'c> SqliteTx<'c> {
    pub(crate) fn new(connection: &'c mut Connection) -> Self {
        Self { connection }
    }

    /// Runs a complete write transaction.
    pub(crate) fn run_write_transaction<R>(
        connection: &mut Connection,
        work: impl FnOnce(&mut SqliteTx<'_>) -> Result<R>,
    ) -> Result<R> {
        let to_error = |error: rusqlite::Error| classify_error(&error);
        connection.execute_batch("BEGIN IMMEDIATE").map_err(to_error)?;
        let result = work(&mut SqliteTx { connection });
        let end = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
        connection.execute_batch(end).map_err(to_error)?;
        result
    }

    /// Runs a read transaction on a consistent snapshot.
    pub(crate) fn run_read_transaction<R, E: From<Error>>(
        connection: &mut Connection,
        work: impl FnOnce(&mut SqliteTx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let to_error = |error: rusqlite::Error| E::from(classify_error(&error));
        connection.execute_batch("BEGIN").map_err(to_error)?;
        let result = work(&mut SqliteTx { connection });
        connection.execute_batch("ROLLBACK").map_err(to_error)?;
        result
    }

    fn query_rows(&self, sql: &str, params: &[SqlParam<'_>]) -> Result<Vec<Row>> {
        params.iter().try_for_each(SqlParam::reject_nul)?;
        let collect = || -> rusqlite::Result<Vec<Row>> {
            let mut statement = self.connection.prepare_cached(sql)?;
            let mut rows = statement.query(rusqlite::params_from_iter(params))?;
            let mut columns: Option<Arc<[String]>> = None;
            let mut answer = Vec::new();
            while let Some(row) = rows.next()? {
                let columns = columns.get_or_insert_with(|| row.as_ref().column_names().map(str::to_owned).collect());
                let cells = (0..columns.len()).map(|column| {
                    Ok(match row.get_ref(column)? {
                        ValueRef::Null => Cell::Null,
                        ValueRef::Integer(value) => Cell::Int(value),
                        other => Cell::Text(other.as_str()?.to_owned()),
                    })
                });
                answer.push(Row::new(Arc::clone(columns), cells.collect::<rusqlite::Result<_>>()?));
            }
            Ok(answer)
        };
        collect().map_err(|error| classify_error(&error))
    }

    fn execute_statement(&self, sql: &str, params: &[SqlParam<'_>]) -> Result<u64> {
        params.iter().try_for_each(SqlParam::reject_nul)?;
        let change = || {
            let mut statement = self.connection.prepare_cached(sql)?;
            statement.execute(rusqlite::params_from_iter(params))
        };
        change().map(|count| count as u64).map_err(|error| classify_error(&error))
    }
}

impl Tx for SqliteTx<'_> {
    fn query<'a>(&'a mut self, sql: &'static str, params: &'a [SqlParam<'a>]) -> BoxFuture<'a, Result<Vec<Row>>> {
        Box::pin(std::future::ready(self.query_rows(sql, params)))
    }

    fn execute<'a>(&'a mut self, sql: &'static str, params: &'a [SqlParam<'a>]) -> BoxFuture<'a, Result<u64>> {
        Box::pin(std::future::ready(self.execute_statement(sql, params)))
    }

    /// There is only one writer: a write transaction holds every row.
    fn query_for_update<'a>(
        &'a mut self,
        sql: &'static str,
        params: &'a [SqlParam<'a>],
    ) -> BoxFuture<'a, Result<Vec<Row>>> {
        self.query(sql, params)
    }

    fn insert_many<'a>(&'a mut self, sql: BulkInsertSql, rows: &'a [Vec<SqlParam<'a>>]) -> BoxFuture<'a, Result<()>> {
        let inserted = rows.iter().try_for_each(|row| self.execute_statement(sql.single_row, row).map(drop));
        Box::pin(std::future::ready(inserted))
    }
}
