//! The narrow waist between the operations, written once, and the two databases.
//!
//! SQL is static text with `?1 … $n`, numbered in the order of first appearance. It uses only what
//! both databases understand, and only two types: BIGINT and TEXT.

use crate::error::{Error, Result};
use atoll_core::BoxFuture;
use std::borrow::Cow;
use std::str::FromStr;

/// A parameter.
#[derive(Debug, Clone)]
pub enum Val<'a> {
    Int(Option<i64>),
    Text(Option<Cow<'a, str>>),
}

impl From<i64> for Val<'_> {
    fn from(value: i64) -> Self {
        Self::Int(Some(value))
    }
}

impl From<Option<i64>> for Val<'_> {
    fn from(value: Option<i64>) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for Val<'_> {
    fn from(value: bool) -> Self {
        Self::Int(Some(i64::from(value)))
    }
}

impl<'a> From<&'a str> for Val<'a> {
    fn from(value: &'a str) -> Self {
        Self::Text(Some(Cow::Borrowed(value)))
    }
}

impl<'a> From<&'a String> for Val<'a> {
    fn from(value: &'a String) -> Self {
        Self::Text(Some(Cow::Borrowed(value)))
    }
}

impl From<String> for Val<'_> {
    fn from(value: String) -> Self {
        Self::Text(Some(Cow::Owned(value)))
    }
}

impl<'a> From<Option<&'a str>> for Val<'a> {
    fn from(value: Option<&'a str>) -> Self {
        Self::Text(value.map(Cow::Borrowed))
    }
}

/// Anything with a written form: ids, words.
pub fn text<'a>(value: impl ToString) -> Val<'a> {
    Val::Text(Some(Cow::Owned(value.to_string())))
}

pub fn opt_text<'a>(value: Option<impl ToString>) -> Val<'a> {
    Val::Text(value.map(|value| Cow::Owned(value.to_string())))
}

impl Val<'_> {
    /// PostgreSQL can't hold NUL in text; neither do we, anywhere.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Text(Some(value)) if value.contains('\0') => Err(Error::BadText),
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

/// One row of an answer, read from left to right.
#[derive(Debug)]
pub struct Row(std::vec::IntoIter<Cell>);

impl Row {
    pub(crate) fn new(cells: Vec<Cell>) -> Self {
        Self(cells.into_iter())
    }

    fn cell(&mut self) -> Result<Cell> {
        self.0.next().ok_or_else(|| Error::internal("a row has fewer columns than expected"))
    }

    pub fn opt_int(&mut self) -> Result<Option<i64>> {
        match self.cell()? {
            Cell::Null => Ok(None),
            Cell::Int(value) => Ok(Some(value)),
            Cell::Text(_) => Err(Error::internal("text where a number was expected")),
        }
    }

    pub fn int(&mut self) -> Result<i64> {
        self.opt_int()?.ok_or_else(|| Error::internal("nothing where a number was expected"))
    }

    pub fn flag(&mut self) -> Result<bool> {
        Ok(self.int()? != 0)
    }

    pub fn opt_text(&mut self) -> Result<Option<String>> {
        match self.cell()? {
            Cell::Null => Ok(None),
            Cell::Text(value) => Ok(Some(value)),
            Cell::Int(_) => Err(Error::internal("a number where text was expected")),
        }
    }

    pub fn text(&mut self) -> Result<String> {
        self.opt_text()?.ok_or_else(|| Error::internal("nothing where text was expected"))
    }

    pub fn opt_parse<T: FromStr<Err: std::fmt::Display>>(&mut self) -> Result<Option<T>> {
        self.opt_text()?.map(|text| text.parse().map_err(Error::internal)).transpose()
    }

    pub fn parse<T: FromStr<Err: std::fmt::Display>>(&mut self) -> Result<T> {
        self.text()?.parse().map_err(Error::internal)
    }

    pub fn json<T: serde::de::DeserializeOwned>(&mut self) -> Result<T> {
        serde_json::from_str(&self.text()?).map_err(Error::internal)
    }

    pub fn opt_json<T: serde::de::DeserializeOwned>(&mut self) -> Result<Option<T>> {
        self.opt_text()?.map(|text| serde_json::from_str(&text).map_err(Error::internal)).transpose()
    }

    pub fn time(&mut self) -> Result<atoll_core::time::Timestamp> {
        Ok(atoll_core::time::Timestamp::from_micros(self.int()?))
    }

    pub fn opt_time(&mut self) -> Result<Option<atoll_core::time::Timestamp>> {
        Ok(self.opt_int()?.map(atoll_core::time::Timestamp::from_micros))
    }
}

pub(crate) fn micros<'a>(time: atoll_core::time::Timestamp) -> Val<'a> {
    Val::Int(Some(time.as_micros()))
}

pub(crate) fn opt_micros<'a>(time: Option<atoll_core::time::Timestamp>) -> Val<'a> {
    Val::Int(time.map(atoll_core::time::Timestamp::as_micros))
}

/// The same statement for one row (SQLite) and for many as arrays (PostgreSQL).
#[derive(Debug, Clone, Copy)]
pub struct InsertMany {
    pub one: &'static str,
    pub many: &'static str,
}

/// A transaction, or a consistent view for reading.
pub trait Tx: Send {
    fn query<'a>(&'a mut self, sql: &'static str, params: &'a [Val<'a>]) -> BoxFuture<'a, Result<Vec<Row>>>;

    fn execute<'a>(&'a mut self, sql: &'static str, params: &'a [Val<'a>]) -> BoxFuture<'a, Result<u64>>;

    /// Like `query`, and nobody else changes these rows until the transaction ends.
    fn lock<'a>(&'a mut self, sql: &'static str, params: &'a [Val<'a>]) -> BoxFuture<'a, Result<Vec<Row>>>;

    fn insert_many<'a>(&'a mut self, sql: InsertMany, rows: &'a [Vec<Val<'a>>]) -> BoxFuture<'a, Result<()>>;
}

/// The first row of an answer.
pub fn first(rows: Vec<Row>) -> Option<Row> {
    rows.into_iter().next()
}
