//! The two databases that the tests run on.

use crate::postgres::Postgres;
use atoll_store::DatabaseLocation;
use secrecy::ExposeSecret;
use std::path::Path;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseKind {
    Sqlite,
    Postgres,
}

/// A new, empty database that is usable until this value is dropped.
pub struct Database {
    pub location: DatabaseLocation,
    _postgres: Option<Arc<Postgres>>,
}

impl Database {
    pub fn new(kind: DatabaseKind, dir: &Path) -> Self {
        match kind {
            DatabaseKind::Sqlite => Self { location: DatabaseLocation::Sqlite(dir.join("atoll.db")), _postgres: None },
            DatabaseKind::Postgres => {
                let postgres = Postgres::get_or_start();
                let location = DatabaseLocation::Postgres(postgres.create_database().into());
                Self { location, _postgres: Some(postgres) }
            }
        }
    }

    /// The value for `--database-url`. None for SQLite, which a server opens in its data directory by default.
    pub fn url(&self) -> Option<&str> {
        match &self.location {
            DatabaseLocation::Sqlite(_) => None,
            DatabaseLocation::Postgres(url) => Some(url.expose_secret()),
        }
    }
}

/// Generates one test per database from each `async fn name(kind: DatabaseKind)`.
#[macro_export]
macro_rules! on_both_databases {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::database::DatabaseKind::Sqlite).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::database::DatabaseKind::Postgres).await;
            })+
        }
    };
}
