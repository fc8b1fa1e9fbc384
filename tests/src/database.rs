//! The two databases that everything is tested on.

use crate::postgres::Postgres;
use atoll_store::Location;
use secrecy::ExposeSecret;
use std::path::Path;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
}

/// A new, empty database that lives as long as this.
pub struct Database {
    pub location: Location,
    _postgres: Option<Arc<Postgres>>,
}

impl Database {
    pub fn new(kind: Kind, dir: &Path) -> Self {
        match kind {
            Kind::Sqlite => Self { location: Location::Sqlite(dir.join("atoll.db")), _postgres: None },
            Kind::Postgres => {
                let postgres = Postgres::shared();
                let location = Location::Postgres(postgres.new_database().into());
                Self { location, _postgres: Some(postgres) }
            }
        }
    }

    /// How a server process is told of it; SQLite in its data directory needs no telling.
    pub fn url(&self) -> Option<&str> {
        match &self.location {
            Location::Sqlite(_) => None,
            Location::Postgres(url) => Some(url.expose_secret()),
        }
    }
}

/// Makes one test per database out of `async fn name(kind: Kind)`.
#[macro_export]
macro_rules! on_both_databases {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::database::Kind::Sqlite).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::database::Kind::Postgres).await;
            })+
        }
    };
}
