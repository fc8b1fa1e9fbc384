//! A SQLite transaction behind the `Tx` trait, and what SQLite's errors mean.

use crate::error::{Error, Result};
use crate::sql::{Cell, InsertMany, Row, Tx, Val};
use atoll_core::BoxFuture;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, ToSql};

pub(crate) struct SqliteTx<'c> {
    connection: &'c mut Connection,
}

impl ToSql for Val<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Val::Int(Some(value)) => ValueRef::Integer(*value),
            Val::Text(Some(value)) => ValueRef::Text(value.as_bytes()),
            Val::Int(None) | Val::Text(None) => ValueRef::Null,
        }))
    }
}

/// Tells a full disk and a passing fault from a bug.
pub(crate) fn classify(error: &rusqlite::Error) -> Error {
    let detail = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::Full { detail },
        Some(ErrorCode::ConstraintViolation) => Error::Taken { what: detail },
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
    pub(crate) fn on(connection: &'c mut Connection) -> Self {
        Self { connection }
    }

    /// A whole writing transaction of its own.
    pub(crate) fn scope<R>(
        connection: &mut Connection,
        work: impl FnOnce(&mut SqliteTx<'_>) -> Result<R>,
    ) -> Result<R> {
        let to_error = |error: rusqlite::Error| classify(&error);
        connection.execute_batch("BEGIN IMMEDIATE").map_err(to_error)?;
        let result = work(&mut SqliteTx { connection });
        let end = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
        connection.execute_batch(end).map_err(to_error)?;
        result
    }

    /// A consistent view for reading.
    pub(crate) fn view<R, E: From<Error>>(
        connection: &mut Connection,
        work: impl FnOnce(&mut SqliteTx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let to_error = |error: rusqlite::Error| E::from(classify(&error));
        connection.execute_batch("BEGIN").map_err(to_error)?;
        let result = work(&mut SqliteTx { connection });
        connection.execute_batch("ROLLBACK").map_err(to_error)?;
        result
    }

    fn run(&self, sql: &str, params: &[Val<'_>]) -> Result<Vec<Row>> {
        params.iter().try_for_each(Val::check)?;
        let collect = || -> rusqlite::Result<Vec<Row>> {
            let mut statement = self.connection.prepare_cached(sql)?;
            let columns = statement.column_count();
            let mut rows = statement.query(rusqlite::params_from_iter(params))?;
            let mut answer = Vec::new();
            while let Some(row) = rows.next()? {
                let cells = (0..columns).map(|column| {
                    Ok(match row.get_ref(column)? {
                        ValueRef::Null => Cell::Null,
                        ValueRef::Integer(value) => Cell::Int(value),
                        other => Cell::Text(other.as_str()?.to_owned()),
                    })
                });
                answer.push(Row::new(cells.collect::<rusqlite::Result<_>>()?));
            }
            Ok(answer)
        };
        collect().map_err(|error| classify(&error))
    }

    fn change(&self, sql: &str, params: &[Val<'_>]) -> Result<u64> {
        params.iter().try_for_each(Val::check)?;
        let change = || {
            let mut statement = self.connection.prepare_cached(sql)?;
            statement.execute(rusqlite::params_from_iter(params))
        };
        change().map(|count| count as u64).map_err(|error| classify(&error))
    }
}

impl Tx for SqliteTx<'_> {
    fn query<'a>(&'a mut self, sql: &'static str, params: &'a [Val<'a>]) -> BoxFuture<'a, Result<Vec<Row>>> {
        Box::pin(std::future::ready(self.run(sql, params)))
    }

    fn execute<'a>(&'a mut self, sql: &'static str, params: &'a [Val<'a>]) -> BoxFuture<'a, Result<u64>> {
        Box::pin(std::future::ready(self.change(sql, params)))
    }

    /// There is one writer: whoever is in a writing transaction holds every row.
    fn lock<'a>(&'a mut self, sql: &'static str, params: &'a [Val<'a>]) -> BoxFuture<'a, Result<Vec<Row>>> {
        self.query(sql, params)
    }

    fn insert_many<'a>(&'a mut self, sql: InsertMany, rows: &'a [Vec<Val<'a>>]) -> BoxFuture<'a, Result<()>> {
        let inserted = rows.iter().try_for_each(|row| self.change(sql.one, row).map(drop));
        Box::pin(std::future::ready(inserted))
    }
}
