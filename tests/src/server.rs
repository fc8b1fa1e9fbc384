//! A whole server in this process, with a data directory and a database of its own.

use crate::actor::Actor;
use crate::database::{Database, Kind};
use atoll_core::time::Clock;
use atoll_providers::{DockerOptions, FakeOptions};
use atoll_server::options::{Limits, Models, Outward, Policy};
use atoll_server::{Options, Server};
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

/// No rate limits, short waits.
pub fn options(dir: &Path, database: &Database) -> Options {
    Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        data_dir: dir.to_owned(),
        database: database.location.clone(),
        tls: None,
        hosts: Vec::new(),
        public_url: None,
        metrics_public: false,
        policy: Policy { flush_grace: Duration::from_secs(5), ..Policy::default() },
        limits: Limits { worker_requests: 0, messages: 0, writes: 0, readers: 1000 },
        fake: FakeOptions::default(),
        outward: Outward::default(),
        agents: Default::default(),
        models: Models::default(),
        launcher: Err("this test makes no local sandboxes".into()),
        docker: DockerOptions::default(),
        secrets: vec!["known-secret-value-123".into()],
        secret_key: None,
    }
}

impl TestServer {
    pub async fn start(kind: Kind) -> Self {
        Self::start_with(kind, |_| {}).await
    }

    pub async fn start_with(kind: Kind, change: impl FnOnce(&mut Options)) -> Self {
        Self::start_at(kind, change, None).await
    }

    pub async fn start_at(kind: Kind, change: impl FnOnce(&mut Options), clock: Option<Arc<dyn Clock>>) -> Self {
        let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir().unwrap();
        let at = dir.path().to_owned();
        let database = tokio::task::spawn_blocking(move || Database::new(kind, &at)).await.unwrap();
        let mut options = options(dir.path(), &database);
        change(&mut options);
        let server = match clock {
            Some(clock) => Server::start_with_clock(options.clone(), clock).await,
            None => Server::start(options.clone()).await,
        };
        let server = server.unwrap_or_else(|error| panic!("the server starts: {error}"));
        let url = server.url.clone();
        Self { server: Some(server), options, url, database: Some(database), dir }
    }

    /// Stops it and starts it again on the same data and address.
    pub async fn restart(&mut self) {
        let server = self.server.take().unwrap();
        self.options.listen = server.address;
        server.stop().await;
        let server = Server::start(self.options.clone()).await.unwrap();
        self.url = server.url.clone();
        self.server = Some(server);
    }

    /// The same with a clock that the test moves.
    pub async fn restart_at(&mut self, clock: Arc<dyn Clock>) {
        let server = self.server.take().unwrap();
        self.options.listen = server.address;
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
        // Stopping PostgreSQL blocks.
        let database = self.database.take();
        tokio::task::spawn_blocking(move || drop(database)).await.unwrap();
    }
}
