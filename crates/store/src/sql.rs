//! The interface between the operations, written once, and the two databases.
//!
//! SQL is static text with `?1 … ?n`, numbered in the order of first appearance. It uses only what both databases
//! support, and only two types: BIGINT and TEXT.

use crate::error::{Error, Result};
use atoll_core::BoxFuture;
use atoll_core::time::Timestamp;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

/// A statement parameter.
#[derive(Debug, Clone)]
pub enum SqlParam<'a> {
    Int(Option<i64>),
    Text(Option<Cow<'a, str>>),
}

impl From<i64> for SqlParam<'_> {
    fn from(value: i64) -> Self {
        Self::Int(Some(value))
    }
}

impl From<Option<i64>> for SqlParam<'_> {
    fn from(value: Option<i64>) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for SqlParam<'_> {
    fn from(value: bool) -> Self {
        Self::Int(Some(i64::from(value)))
    }
}

impl<'a> From<&'a str> for SqlParam<'a> {
    fn from(value: &'a str) -> Self {
        Self::Text(Some(Cow::Borrowed(value)))
    }
}

impl<'a> From<&'a String> for SqlParam<'a> {
    fn from(value: &'a String) -> Self {
        Self::Text(Some(Cow::Borrowed(value)))
    }
}

impl From<String> for SqlParam<'_> {
    fn from(value: String) -> Self {
        Self::Text(Some(Cow::Owned(value)))
    }
}

impl<'a> From<Option<&'a str>> for SqlParam<'a> {
    fn from(value: Option<&'a str>) -> Self {
        Self::Text(value.map(Cow::Borrowed))
    }
}

/// Converts a value with a text form, such as an id or a word.
pub fn text_param<'a>(value: impl ToString) -> SqlParam<'a> {
    SqlParam::Text(Some(Cow::Owned(value.to_string())))
}

pub fn opt_text_param<'a>(value: Option<impl ToString>) -> SqlParam<'a> {
    SqlParam::Text(value.map(|value| Cow::Owned(value.to_string())))
}

impl SqlParam<'_> {
    /// Rejects NUL: PostgreSQL cannot store it in text.
    pub(crate) fn reject_nul(&self) -> Result<()> {
        match self {
            Self::Text(Some(value)) if value.contains('\0') => Err(Error::InvalidText),
            Self::Text(_) | Self::Int(_) => Ok(()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    Null,
    Int(i64),
    Text(String),
}

/// A result row. Each read names its column, so the order of a SELECT list does not matter.
#[derive(Debug)]
pub struct Row {
    /// Shared by all rows of a result.
    columns: Arc<[String]>,
    cells: Vec<Cell>,
}

impl Row {
    pub(crate) fn new(columns: Arc<[String]>, cells: Vec<Cell>) -> Self {
        Self { columns, cells }
    }

    /// Finds a column by linear search: results have at most about 40 columns.
    fn cell_index(&self, column: &str) -> Result<usize> {
        let index = self.columns.iter().position(|name| name == column);
        index.ok_or_else(|| Error::internal(format!("the result has no column `{column}`")))
    }

    fn cell(&self, column: &str) -> Result<&Cell> {
        self.cells.get(self.cell_index(column)?).ok_or_else(|| column_error(column, "the row has no such cell"))
    }

    fn opt_str(&self, column: &str) -> Result<Option<&str>> {
        match self.cell(column)? {
            Cell::Null => Ok(None),
            Cell::Text(value) => Ok(Some(value)),
            Cell::Int(_) => Err(column_error(column, "expected text, found a number")),
        }
    }

    fn str(&self, column: &str) -> Result<&str> {
        self.opt_str(column)?.ok_or_else(|| column_error(column, "expected text, found NULL"))
    }

    pub fn opt_int(&self, column: &str) -> Result<Option<i64>> {
        match self.cell(column)? {
            Cell::Null => Ok(None),
            Cell::Int(value) => Ok(Some(*value)),
            Cell::Text(_) => Err(column_error(column, "expected a number, found text")),
        }
    }

    pub fn int(&self, column: &str) -> Result<i64> {
        self.opt_int(column)?.ok_or_else(|| column_error(column, "expected a number, found NULL"))
    }

    pub fn bool(&self, column: &str) -> Result<bool> {
        Ok(self.int(column)? != 0)
    }

    pub fn opt_text(&self, column: &str) -> Result<Option<String>> {
        Ok(self.opt_str(column)?.map(str::to_owned))
    }

    pub fn text(&self, column: &str) -> Result<String> {
        self.str(column).map(str::to_owned)
    }

    /// Like `text`, but moves a large text out of the row instead of copying it; a second read gives an empty text.
    pub fn take_text(&mut self, column: &str) -> Result<String> {
        let index = self.cell_index(column)?;
        match self.cells.get_mut(index) {
            Some(Cell::Text(value)) => Ok(std::mem::take(value)),
            _ => self.text(column),
        }
    }

    pub fn opt_parse<T: FromStr<Err: Display>>(&self, column: &str) -> Result<Option<T>> {
        let parsed = self.opt_str(column)?.map(str::parse).transpose();
        parsed.map_err(|error: T::Err| column_error(column, error))
    }

    pub fn parse<T: FromStr<Err: Display>>(&self, column: &str) -> Result<T> {
        self.str(column)?.parse().map_err(|error| column_error(column, error))
    }

    pub fn opt_json<T: DeserializeOwned>(&self, column: &str) -> Result<Option<T>> {
        let parsed = self.opt_str(column)?.map(serde_json::from_str).transpose();
        parsed.map_err(|error| column_error(column, error))
    }

    pub fn json<T: DeserializeOwned>(&self, column: &str) -> Result<T> {
        serde_json::from_str(self.str(column)?).map_err(|error| column_error(column, error))
    }

    pub fn opt_time(&self, column: &str) -> Result<Option<Timestamp>> {
        Ok(self.opt_int(column)?.map(Timestamp::from_micros))
    }

    pub fn time(&self, column: &str) -> Result<Timestamp> {
        self.int(column).map(Timestamp::from_micros)
    }
}

fn column_error(column: &str, detail: impl Display) -> Error {
    Error::internal(format!("column `{column}`: {detail}"))
}

pub(crate) fn time_param<'a>(time: Timestamp) -> SqlParam<'a> {
    SqlParam::Int(Some(time.as_micros()))
}

pub(crate) fn opt_time_param<'a>(time: Option<Timestamp>) -> SqlParam<'a> {
    SqlParam::Int(time.map(Timestamp::as_micros))
}

/// One statement for a single row (SQLite) and for many rows as arrays (PostgreSQL).
#[derive(Debug, Clone, Copy)]
pub struct BulkInsertSql {
    pub single_row: &'static str,
    pub row_arrays: &'static str,
}

/// A transaction, or a consistent snapshot for reading.
pub trait Tx: Send {
    fn query<'a>(&'a mut self, sql: &'static str, params: &'a [SqlParam<'a>]) -> BoxFuture<'a, Result<Vec<Row>>>;

    fn execute<'a>(&'a mut self, sql: &'static str, params: &'a [SqlParam<'a>]) -> BoxFuture<'a, Result<u64>>;

    /// Like `query`, and locks the rows until the transaction ends.
    fn query_for_update<'a>(
        &'a mut self,
        sql: &'static str,
        params: &'a [SqlParam<'a>],
    ) -> BoxFuture<'a, Result<Vec<Row>>>;

    fn insert_many<'a>(&'a mut self, sql: BulkInsertSql, rows: &'a [Vec<SqlParam<'a>>]) -> BoxFuture<'a, Result<()>>;
}

/// Returns the first row of a result.
pub fn first_row(rows: Vec<Row>) -> Option<Row> {
    rows.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_read_names_the_column() {
        let columns = Arc::new(["id".to_owned(), "count".to_owned()]);
        let row = Row::new(columns, vec![Cell::Text("a".into()), Cell::Null]);
        assert_eq!((row.text("id").unwrap(), row.opt_int("count").unwrap()), ("a".to_owned(), None));
        let message = |result: Result<i64>| result.unwrap_err().to_string();
        assert!(message(row.int("agent")).ends_with("the result has no column `agent`"));
        assert!(message(row.int("id")).ends_with("column `id`: expected a number, found text"));
        assert!(message(row.int("count")).ends_with("column `count`: expected a number, found NULL"));
        assert!(message(row.parse("id")).ends_with("column `id`: invalid digit found in string"));
    }
}
