//! A paused sandbox as its provider and as a user see it. That it stands still and goes on, and that the time in between
//! does not count, is a promise of the contract, and is checked there.

use atoll_core::BoxFuture;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{
    Command, CreateSpec, Error, ExecSpec, Identity, Lookup, Provider, ProviderState, StopMode,
    capabilities::PauseAbility,
};
use atoll_core::sandbox::Settings;
use atoll_jail::{Launcher, LauncherOptions};
use atoll_providers::{LinkHost, Local, Notice};
use atoll_tests::local::Ground;
use atoll_tests::process::{command as of_user, program};
use reqwest::Method;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
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
    let spec = CreateSpec {
        identity,
        labels: Default::default(),
        settings: Settings::default(),
        source: None,
        programs: Vec::new(),
    };
    let made = local.create(&spec, "key").await.unwrap();
    local.exec(&made.id, &command("while :; do date >>/tmp/log; sleep 0.05; done")).await.unwrap();
    local.pause(&made.id).await.unwrap();
    let refused = async |local: &Local| match local.exec(&made.id, &command("true")).await {
        Err(Error::Refused { detail }) => assert!(detail.contains("paused: resume it first"), "{detail}"),
        other => panic!("{other:?}"),
    };
    refused(&local).await;
    // Another server with another launcher finds it as it is.
    drop(local);
    let launcher = tokio::task::spawn_blocking(start).await.unwrap().unwrap();
    let local = Local::new(Ok(Arc::new(launcher)), Arc::new(Nobody));
    let seen = local.get(&made.id).await;
    assert!(matches!(&seen, Lookup::Found(found) if found.state == ProviderState::Paused), "{seen:?}");
    assert!(local.resources(&made.id).await.unwrap().disk_bytes > 0);
    assert_eq!(local.find(&Default::default()).await.unwrap().len(), 1, "and takes it over");
    refused(&local).await;
    local.stop(&made.id, StopMode::Force).await.unwrap();
    let seen = local.get(&made.id).await;
    assert!(matches!(&seen, Lookup::Found(found) if found.state == ProviderState::Stopped), "{seen:?}");
    local.destroy(&made.id).await.unwrap();
    assert_eq!(local.get(&made.id).await, Lookup::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_wants_something_of_a_paused_sandbox_is_told_at_once() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    ground.shell(&id, "echo here > a.txt; mkdir d").await.well();
    ground.admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(200);
    let began = Instant::now();
    for path in ["files?path=a.txt", "files/list", "files/stat?path=a.txt", "files/tar?path=d"] {
        ground.admin.get(&format!("/sandboxes/{id}/{path}")).await.refused(409, "sandbox_paused");
    }
    for (path, body) in [
        ("exec", json!({ "shell": "true" })),
        ("files/move", json!({ "from": "a.txt", "to": "b.txt" })),
        ("files/directory", json!({ "path": "e" })),
        ("fork", json!({})),
        ("snapshot", json!({ "name": "v1" })),
    ] {
        ground.admin.post(&format!("/sandboxes/{id}/{path}"), body).await.refused(409, "sandbox_paused");
    }
    for (method, path) in [(Method::PUT, "files?path=b.txt"), (Method::DELETE, "files?path=a.txt")] {
        let request = ground.admin.request(method, &format!("/sandboxes/{id}/{path}")).body("x");
        ground.admin.send(request).await.refused(409, "sandbox_paused");
    }
    let said = of_user("atoll")
        .args(["sandbox", "files", &id, "--server", &ground.server.url])
        .env("ATOLL_TOKEN", ground.server.token())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("atoll sandbox resume"), "{said}");
    assert!(began.elapsed() < Duration::from_secs(20), "nobody waited: {:?}", began.elapsed());
    ground.admin.post(&format!("/sandboxes/{id}/resume"), json!({})).await.expect(200);
    assert_eq!(ground.shell(&id, "cat a.txt").await.well(), "here\n", "nothing of it was done");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_does_not_read_its_input_is_timed_out() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let input = "x".repeat(900_000);
    let ran = ground.exec(&id, json!({ "shell": "echo begun; sleep 100", "stdin": input, "timeout_s": 1 })).await;
    assert_eq!((ran.stdout.as_str(), &ran.exit), ("begun\n", &json!({ "kind": "timed_out" })), "{ran:?}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_snapshot_is_named_as_the_user_named_it() {
    let ground = Ground::start();
    let id = ground.make(json!({ "snapshot": "nightly", "prompt": "say hello" })).await;
    let row = ground.ended(&id).await;
    let said = row["reason"]["detail"].as_str().unwrap();
    assert!(said.contains("no snapshot is named nightly:") && !said.contains("prj_"), "{said}");
    ground.leave().await;
}
