//! A paused sandbox as its provider sees it. That it stands still and goes on is a promise of the contract, and is
//! checked there.

use atoll_core::BoxFuture;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{
    Command, CreateSpec, Error, ExecSpec, Identity, Lookup, Provider, ProviderState, StopMode,
    capabilities::PauseAbility,
};
use atoll_core::sandbox::Settings;
use atoll_jail::{Launcher, LauncherOptions};
use atoll_providers::{LinkHost, Local, Notice};
use atoll_tests::process::program;
use std::sync::Arc;
use tokio::net::UnixStream;
use tokio::sync::Notify;

struct Nobody;

impl LinkHost for Nobody {
    fn serve(&self, _sandbox: SandboxId, connection: UnixStream, _first: Arc<Notify>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let _held = connection;
            std::future::pending::<()>().await;
        })
    }

    fn worker_gone(&self, _sandbox: SandboxId) {}

    fn notice(&self, _sandbox: SandboxId, _notice: Notice) {}
}

fn command(script: &str) -> ExecSpec {
    ExecSpec {
        command: Command::Shell(script.to_owned()),
        cwd: None,
        env: Default::default(),
        stdin: false,
        as_root: false,
        terminal: None,
        timeout: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_new_runs_in_a_paused_sandbox_which_can_be_ended() {
    let dir = tempfile::Builder::new().prefix("atoll-pause-").tempdir().unwrap();
    let options = LauncherOptions {
        exe: program("atoll"),
        ..LauncherOptions::new(dir.path().to_owned(), program("atoll-worker"), "pause")
    };
    let start = move || Launcher::start(options);
    let launcher = tokio::task::spawn_blocking(start.clone()).await.unwrap().unwrap();
    let local = Local::new(Ok(Arc::new(launcher)), Arc::new(Nobody));
    assert_eq!(local.capabilities().pause, PauseAbility::Memory);
    let identity = Identity {
        deployment: "pause".into(),
        sandbox: SandboxId::new(),
        session: SessionId::new(),
        project: ProjectId::new(),
    };
    let spec = CreateSpec { identity, labels: Default::default(), settings: Settings::default(), source: None };
    let made = local.create(&spec, "key").await.unwrap();
    local.exec(&made.id, &command("while :; do date >>/tmp/log; sleep 0.05; done")).await.unwrap();
    local.pause(&made.id).await.unwrap();
    match local.exec(&made.id, &command("true")).await {
        Err(Error::Refused { detail }) => assert!(detail.contains("paused: resume it"), "{detail}"),
        other => panic!("{other:?}"),
    }
    // Another server with another launcher finds it as it is.
    drop(local);
    let launcher = tokio::task::spawn_blocking(start).await.unwrap().unwrap();
    let local = Local::new(Ok(Arc::new(launcher)), Arc::new(Nobody));
    let seen = local.get(&made.id).await;
    assert!(matches!(&seen, Lookup::Found(found) if found.state == ProviderState::Paused), "{seen:?}");
    assert!(local.resources(&made.id).await.unwrap().disk_bytes > 0);
    local.stop(&made.id, StopMode::Force).await.unwrap();
    let seen = local.get(&made.id).await;
    assert!(matches!(&seen, Lookup::Found(found) if found.state == ProviderState::Stopped), "{seen:?}");
    local.destroy(&made.id).await.unwrap();
    assert_eq!(local.get(&made.id).await, Lookup::Gone);
}
