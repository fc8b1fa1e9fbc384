//! A PostgreSQL transaction behind the `Tx` trait, and what PostgreSQL's errors mean.

use crate::error::{Error, Result};
use crate::sql::{Cell, InsertMany, Row, Tx, Val};
use atoll_core::BoxFuture;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Column, Postgres, Row as _, TypeInfo};
use std::borrow::Cow;

pub(crate) struct PostgresTx {
    inner: sqlx::Transaction<'static, Postgres>,
}

/// Tells a full disk, a restart and a taken name from a bug.
pub(crate) fn classify(error: &sqlx::Error) -> Error {
    let detail = error.to_string();
    match error {
        sqlx::Error::Database(database) => {
            let detail = database.message().to_owned();
            let code = database.code().unwrap_or(Cow::Borrowed(""));
            match &code[..code.len().min(2)] {
                "23" => Error::Taken { what: detail },
                _ if code == "53100" => Error::Full { detail },
                // Connection faults, refused log-in, no such database, no resources, administrator's
                // shutdown, locks, roll-backs, read-only standby.
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

/// Our static text in PostgreSQL's numbering. Nothing of a user's is ever in it.
fn numbered(sql: &'static str, suffix: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(sql.replace('?', "$") + suffix)
}

type Prepared<'q> = Query<'q, Postgres, PgArguments>;

fn bind<'q>(mut query: Prepared<'q>, params: &'q [Val<'q>]) -> Result<Prepared<'q>> {
    for param in params {
        param.check()?;
        query = match param {
            Val::Int(value) => query.bind(*value),
            Val::Text(value) => query.bind(value.as_deref()),
        };
    }
    Ok(query)
}

fn cells(row: &PgRow) -> Result<Row> {
    let cell = |column: usize| -> Result<Cell, sqlx::Error> {
        Ok(match row.column(column).type_info().name() {
            "TEXT" | "VARCHAR" | "NAME" | "VOID" => {
                row.try_get::<Option<String>, _>(column)?.map_or(Cell::Null, Cell::Text)
            }
            "INT4" => row.try_get::<Option<i32>, _>(column)?.map_or(Cell::Null, |value| Cell::Int(value.into())),
            _ => row.try_get::<Option<i64>, _>(column)?.map_or(Cell::Null, Cell::Int),
        })
    };
    let cells: Result<Vec<Cell>, sqlx::Error> = (0..row.columns().len()).map(cell).collect();
    Ok(Row::new(cells.map_err(|error| classify(&error))?))
}

impl PostgresTx {
    pub(crate) fn new(inner: sqlx::Transaction<'static, Postgres>) -> Self {
        Self { inner }
    }

    pub(crate) async fn commit(self) -> Result<()> {
        self.inner.commit().await.map_err(|error| match classify(&error) {
            // No answer, or an answer on the way out: it may have been stored. Never call it so.
            Error::Unavailable { detail } | Error::Internal { detail } => Error::InDoubt { detail },
            other => other,
        })
    }

    async fn fetch(&mut self, query: Prepared<'_>) -> Result<Vec<Row>> {
        let rows = query.fetch_all(&mut *self.inner).await.map_err(|error| classify(&error))?;
        rows.iter().map(cells).collect()
    }
}

/// One array per column.
fn transpose<'a>(rows: &'a [Vec<Val<'a>>], column: usize) -> Result<Array<'a>> {
    let is_text = matches!(rows.first().and_then(|row| row.get(column)), Some(Val::Text(_)));
    let mut ints = Vec::new();
    let mut texts = Vec::new();
    for value in rows.iter().filter_map(|row| row.get(column)) {
        value.check()?;
        match value {
            Val::Int(value) => ints.push(*value),
            Val::Text(value) => texts.push(value.as_deref()),
        }
    }
    Ok(if is_text { Array::Text(texts) } else { Array::Int(ints) })
}

enum Array<'a> {
    Int(Vec<Option<i64>>),
    Text(Vec<Option<&'a str>>),
}

impl Tx for PostgresTx {
    fn query<'a>(&'a mut self, sql: &'static str, params: &'a [Val<'a>]) -> BoxFuture<'a, Result<Vec<Row>>> {
        Box::pin(async move { self.fetch(bind(sqlx::query(numbered(sql, "")), params)?).await })
    }

    fn execute<'a>(&'a mut self, sql: &'static str, params: &'a [Val<'a>]) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            let query = bind(sqlx::query(numbered(sql, "")), params)?;
            let done = query.execute(&mut *self.inner).await.map_err(|error| classify(&error))?;
            Ok(done.rows_affected())
        })
    }

    fn lock<'a>(&'a mut self, sql: &'static str, params: &'a [Val<'a>]) -> BoxFuture<'a, Result<Vec<Row>>> {
        Box::pin(async move { self.fetch(bind(sqlx::query(numbered(sql, " FOR UPDATE")), params)?).await })
    }

    fn insert_many<'a>(&'a mut self, sql: InsertMany, rows: &'a [Vec<Val<'a>>]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(first) = rows.first() else { return Ok(()) };
            let mut query = sqlx::query(numbered(sql.many, ""));
            for column in 0..first.len() {
                query = match transpose(rows, column)? {
                    Array::Int(values) => query.bind(values),
                    Array::Text(values) => query.bind(values),
                };
            }
            query.execute(&mut *self.inner).await.map_err(|error| classify(&error))?;
            Ok(())
        })
    }
}
