//! A complete server in this process, with its own data directory and database.

use crate::actor::Actor;
use crate::database::{Database, DatabaseKind};
use atoll_config::Config;
use atoll_core::sandbox::ProviderKind;
use atoll_core::time::Clock;
use atoll_server::{Options, Server};
use atoll_store::DatabaseLocation;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

pub struct TestServer {
    server: Option<Server>,
    pub options: Options,
    pub url: String,
    database: Option<Database>,
    dir: TempDir,
}

/// Options without rate limits and with short timeouts.
pub fn test_options(dir: &Path, database: &Database) -> Options {
    let mut config = Config {
        data_dir: dir.to_owned(),
        database_url: Some(match database.location.clone() {
            DatabaseLocation::Sqlite(path) => atoll_config::Database::Sqlite { path },
            DatabaseLocation::Postgres(url) => atoll_config::Database::Postgres { url },
        }),
        secret_values: vec!["known-secret-value-123".into()],
        ..Config::default()
    };
    config.server.listen = "127.0.0.1:0".parse().unwrap();
    config.sandbox.flush_grace = Duration::from_secs(5);
    config.provider.default = ProviderKind::External;
    config.limits.worker_requests_per_minute = None;
    config.limits.messages_per_minute = None;
    config.limits.writes_per_minute = None;
    config.limits.sign_ins_per_minute = None;
    Options {
        config,
        command: "atoll serve",
        no_proxy: String::new(),
        launcher: Err("this test creates no local sandboxes".into()),
        docker_worker: Err("this test creates no containers".into()),
        page: &[],
        agents: Default::default(),
    }
}

impl TestServer {
    pub async fn start(kind: DatabaseKind) -> Self {
        Self::start_with(kind, |_| {}).await
    }

    pub async fn start_with(kind: DatabaseKind, change: impl FnOnce(&mut Options)) -> Self {
        Self::start_with_clock(kind, change, None).await
    }

    pub async fn start_with_clock(
        kind: DatabaseKind,
        change: impl FnOnce(&mut Options),
        clock: Option<Arc<dyn Clock>>,
    ) -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir().unwrap();
        let at = dir.path().to_owned();
        let database = tokio::task::spawn_blocking(move || Database::new(kind, &at)).await.unwrap();
        let mut options = test_options(dir.path(), &database);
        change(&mut options);
        // Large futures are boxed, because many tests contain this one.
        let server = match clock {
            Some(clock) => Box::pin(Server::start_with_clock(options.clone(), clock)).await,
            None => Box::pin(Server::start(options.clone())).await,
        };
        let server = server.unwrap_or_else(|error| panic!("the server does not start: {error}"));
        let url = server.url.clone();
        Self { server: Some(server), options, url, database: Some(database), dir }
    }

    /// Stops the server and starts it again with the same data and address.
    pub async fn restart(&mut self) {
        let server = self.server.take().unwrap();
        self.options.config.server.listen = server.address;
        server.stop().await;
        let server = Server::start(self.options.clone()).await.unwrap();
        self.url = server.url.clone();
        self.server = Some(server);
    }

    /// Restarts the server with a clock that the test controls.
    pub async fn restart_with_clock(&mut self, clock: Arc<dyn Clock>) {
        let server = self.server.take().unwrap();
        self.options.config.server.listen = server.address;
        server.stop().await;
        self.server = Some(Server::start_with_clock(self.options.clone(), clock).await.unwrap());
    }

    pub fn admin(&self) -> Actor {
        let token = std::fs::read_to_string(self.dir.path().join("admin-token")).unwrap();
        Actor::new(&self.url, Some(token.trim()))
    }

    pub fn anon(&self) -> Actor {
        Actor::new(&self.url, None)
    }

    pub fn data_dir(&self) -> &Path {
        self.dir.path()
    }

    pub async fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
        // Dropping the database may stop PostgreSQL, which blocks.
        let database = self.database.take();
        tokio::task::spawn_blocking(move || drop(database)).await.unwrap();
    }
}
