//! The promises of the provider contract, against real sandboxes on this machine.

use atoll_core::BoxFuture;
use atoll_core::id::SandboxId;
use atoll_core::provider::Provider;
use atoll_core::sandbox::Settings;
use atoll_jail::{Launcher, LauncherOptions};
use atoll_providers::{LinkHost, Local, conformance};
use atoll_tests::process::program;
use std::sync::Arc;
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// Holds the workers' connections and answers nothing: the contract needs no server.
pub struct Nobody;

impl LinkHost for Nobody {
    fn serve(&self, _sandbox: SandboxId, connection: UnixStream, _first: Arc<Notify>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let _held = connection;
            std::future::pending::<()>().await;
        })
    }

    fn worker_gone(&self, _sandbox: SandboxId) {}
}

pub async fn keeps_every_promise(provider: &dyn Provider, settings: &Settings) {
    let verdicts = conformance::check(provider, settings).await;
    let broken: Vec<String> = verdicts
        .into_iter()
        .filter_map(|(promise, verdict)| verdict.err().map(|seen| format!("{promise}: {seen}")))
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_provider_keeps_every_promise() {
    let dir = tempfile::Builder::new().prefix("atoll-conformance-").tempdir().unwrap();
    let options = LauncherOptions {
        exe: program("atoll"),
        ..LauncherOptions::new(dir.path().to_owned(), program("atoll-worker"), "conformance")
    };
    let launcher = tokio::task::spawn_blocking(move || Launcher::start(options)).await.unwrap().unwrap();
    let local = Local::new(Ok(Arc::new(launcher)), Arc::new(Nobody));
    keeps_every_promise(&local, &Settings::default()).await;
    let left = std::fs::read_dir(dir.path().join("sandboxes")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name != ".lock").collect();
    assert!(left.is_empty(), "{left:?} are left");
}
