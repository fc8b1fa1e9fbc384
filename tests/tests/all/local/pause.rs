//! Pausing a sandbox, at the provider and at the API. The conformance suite checks that a paused sandbox stops and
//! resumes, and that its clocks ignore the pause.

use atoll_core::BoxFuture;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{
    CreateSpec, Error, ExecCommand, ExecSpec, Identity, Provider, ProviderState, SandboxLookup,
    capabilities::PauseAbility,
};
use atoll_core::sandbox::Settings;
use atoll_jail::{Launcher, LauncherOptions};
use atoll_providers::{LinkHost, Local, SandboxNotice};
use atoll_tests::local::LocalServer;
use atoll_tests::process::{find_program, program_command};
use reqwest::Method;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::Notify;

struct StubLinkHost;

impl LinkHost for StubLinkHost {
    fn serve_connection(
        &self,
        _sandbox: SandboxId,
        connection: UnixStream,
        _first: Arc<Notify>,
    ) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let _open = connection;
            std::future::pending::<()>().await;
        })
    }

    fn report_worker_death(&self, _sandbox: SandboxId) {}

    fn report_notice(&self, _sandbox: SandboxId, _notice: SandboxNotice) {}
}

fn shell_spec(script: &str) -> ExecSpec {
    ExecSpec {
        command: ExecCommand::Shell(script.to_owned()),
        cwd: None,
        env: Default::default(),
        has_stdin: false,
        as_root: false,
        terminal: None,
        timeout: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_sandbox_starts_no_command_and_can_be_stopped() {
    let dir = tempfile::Builder::new().prefix("atoll-pause-").tempdir().unwrap();
    let options = LauncherOptions {
        exe: find_program("atoll"),
        ..LauncherOptions::new(dir.path().to_owned(), find_program("atoll-worker"), "pause")
    };
    let start = move || Launcher::start(options);
    let launcher = tokio::task::spawn_blocking(start.clone()).await.unwrap().unwrap();
    let local = Local::new(Ok(Arc::new(launcher)), Arc::new(StubLinkHost));
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
        cache: None,
    };
    let sandbox = local.create(&spec, "key").await.unwrap();
    local.exec(&sandbox.id, &shell_spec("while :; do date >>/tmp/log; sleep 0.05; done")).await.unwrap();
    local.pause(&sandbox.id).await.unwrap();
    let assert_exec_refused = async |local: &Local| match local.exec(&sandbox.id, &shell_spec("true")).await {
        Err(Error::Refused { detail }) => assert!(detail.contains("paused; resume it first"), "{detail}"),
        other => panic!("{other:?}"),
    };
    assert_exec_refused(&local).await;
    // Another server with another launcher finds the sandbox still paused.
    drop(local);
    let launcher = tokio::task::spawn_blocking(start).await.unwrap().unwrap();
    let local = Local::new(Ok(Arc::new(launcher)), Arc::new(StubLinkHost));
    let lookup = local.get(&sandbox.id).await;
    assert!(matches!(&lookup, SandboxLookup::Found(found) if found.state == ProviderState::Paused), "{lookup:?}");
    assert!(local.resources(&sandbox.id).await.unwrap().disk_bytes > Some(0));
    assert_eq!(local.find_by_labels(&Default::default()).await.unwrap().len(), 1, "the new server must adopt it");
    assert_exec_refused(&local).await;
    local.stop(&sandbox.id).await.unwrap();
    let lookup = local.get(&sandbox.id).await;
    assert!(matches!(&lookup, SandboxLookup::Found(found) if found.state == ProviderState::Stopped), "{lookup:?}");
    local.destroy(&sandbox.id).await.unwrap();
    assert_eq!(local.get(&sandbox.id).await, SandboxLookup::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_a_paused_sandbox_fail_at_once() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    server.run_shell(&id, "echo here > a.txt; mkdir d").await.expect_success();
    server.admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect_status(200);
    let started = Instant::now();
    for path in ["files?path=a.txt", "files/list", "files/stat?path=a.txt", "files/tar?path=d"] {
        server.admin.get(&format!("/sandboxes/{id}/{path}")).await.expect_problem(409, "sandbox_paused");
    }
    for (path, body) in [
        ("exec", json!({ "shell": "true" })),
        ("files/move", json!({ "from": "a.txt", "to": "b.txt" })),
        ("files/directory", json!({ "path": "e" })),
        ("fork", json!({})),
        ("snapshot", json!({ "name": "v1" })),
    ] {
        server.admin.post(&format!("/sandboxes/{id}/{path}"), body).await.expect_problem(409, "sandbox_paused");
    }
    for (method, path) in [(Method::PUT, "files?path=b.txt"), (Method::DELETE, "files?path=a.txt")] {
        let request = server.admin.request(method, &format!("/sandboxes/{id}/{path}")).body("x");
        server.admin.send(request).await.expect_problem(409, "sandbox_paused");
    }
    let output = program_command("atoll")
        .args(["sandbox", "files", &id, "--server", &server.process.url])
        .env("ATOLL_TOKEN", server.process.admin_token())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("atoll sandbox resume"), "{stderr}");
    assert!(started.elapsed() < Duration::from_secs(50), "no request may wait: {:?}", started.elapsed());
    server.admin.post(&format!("/sandboxes/{id}/resume"), json!({})).await.expect_status(200);
    assert_eq!(
        server.run_shell(&id, "cat a.txt").await.expect_success(),
        "here\n",
        "the paused sandbox must be unchanged"
    );
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_does_not_read_its_input_times_out() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let input = "x".repeat(900_000);
    let ran = server.run_exec(&id, json!({ "shell": "echo begun; sleep 100", "stdin": input, "timeout_s": 1 })).await;
    assert_eq!((ran.stdout.as_str(), &ran.exit), ("begun\n", &json!({ "kind": "timed_out" })), "{ran:?}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_snapshot_is_reported_by_the_users_name_for_it() {
    let server = LocalServer::start();
    let id = server.create_sandbox(json!({ "snapshot": "nightly", "prompt": "say hello" })).await;
    let row = server.wait_until_ended(&id).await;
    let detail = row["reason"]["detail"].as_str().unwrap();
    assert!(detail.contains("no snapshot is named nightly:") && !detail.contains("prj_"), "{detail}");
    server.stop_and_check().await;
}
