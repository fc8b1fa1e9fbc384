//! Sandboxes in containers of a Docker engine that the tests start.

use crate::conformance::{IdleLinkHost, assert_conformance};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{CommandExit, CreateSpec, ExecCommand, ExecEvent, ExecSpec, Identity, Provider, PtySize};
use atoll_core::sandbox::Settings;
use atoll_model_script::{ScriptedModel, Scripts};
use atoll_providers::{Docker, DockerOptions};
use atoll_test_wait::{WAIT_TIMEOUT, try_poll_for, wait_until};
use atoll_tests::docker_engine::{self, DockerEngine, TEST_IMAGE};
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::spool::spooled_messages;
use atoll_tests::local::{
    LocalServer, agent_messages, assert_log_is_complete, create_temp_dir, event_data, report_skipped,
};
use atoll_tests::process;
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::block_in_place;

/// Returns an engine and the worker for its containers, or reports why this machine cannot run the test.
fn get_engine(what: &str) -> Option<(Arc<DockerEngine>, PathBuf)> {
    match docker_engine::find_static_worker().and_then(|worker| Ok((DockerEngine::get_or_start()?, worker))) {
        Ok(found) => Some(found),
        Err(why) => {
            report_skipped(what, &why);
            None
        }
    }
}

fn start_server(engine: &DockerEngine, worker: &PathBuf) -> LocalServer {
    let docker = json!({ "socket": engine.socket_url(), "image": TEST_IMAGE, "worker": worker });
    LocalServer::start_with_config(&format!("docker: {docker}\n"))
}

fn docker_request(settings: Value) -> Value {
    let mut body = json!({ "provider": "docker" });
    body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    body
}

/// Waits until a sandbox's directory, containers and volumes are gone.
async fn wait_until_removed(server: &LocalServer, engine: &DockerEngine, id: &str) {
    let home = server.data_dir().join("docker").join(id);
    let removed = try_poll_for(async || {
        let left = (home.exists(), block_in_place(|| engine.list_resources(id)));
        if left == (false, Vec::new()) { Ok(()) } else { Err(left) }
    });
    removed.await.expect("the sandbox's directory, containers and volumes must be gone");
}

async fn stop_and_check(server: LocalServer, engine: &DockerEngine) {
    for id in server.sandbox_ids() {
        server.admin.delete(&format!("/sandboxes/{id}?force=true")).await;
        wait_until_removed(&server, engine, &id).await;
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_docker_provider_conforms() {
    let Some((engine, worker)) = block_in_place(|| get_engine("the docker provider's conformance")) else { return };
    let dir = create_temp_dir("atoll-docker-");
    let options = DockerOptions { socket: engine.socket_url(), image: Some(TEST_IMAGE.to_owned()), worker: Ok(worker) };
    let docker = Docker::new(options, "conformance", dir.path().join("docker"), Arc::new(IdleLinkHost));
    assert_conformance(&docker, &Settings::default()).await;
    let left: Vec<_> = std::fs::read_dir(dir.path().join("docker")).unwrap().collect();
    assert!(left.is_empty(), "{left:?} are left");
    let own = "label=atoll.server=conformance";
    let containers = block_in_place(|| engine.run_docker(&["ps", "--all", "--quiet", "--filter", own]));
    let volumes = block_in_place(|| engine.run_docker(&["volume", "ls", "--quiet", "--filter", own]));
    assert_eq!((containers.as_deref(), volumes.as_deref()), (Ok(""), Ok("")), "the engine has leftovers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_in_a_container_exports_a_branch() {
    let Some((engine, worker)) = block_in_place(|| get_engine("a task in a container")) else { return };
    let (server, repository) = (block_in_place(|| start_server(&engine, &worker)), SampleRepository::create());
    let (before, base) = (repository.checkout_state(), repository.head_commit());
    let prompt = "edit new.txt by the agent\nrun rm old.txt && cat /tmp/by-service && id -u\nsay done";
    let service = json!({ "name": "files", "command": "id -u > /tmp/by-service; exec sleep 1000000",
        "ready": { "command": "test -s /tmp/by-service" } });
    let repo = json!({ "path": repository.path_str() });
    let settings = json!({ "prompt": prompt, "end": "keep", "repo": repo, "services": [service] });
    let id = server.create_sandbox(docker_request(settings)).await;
    let row = server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    assert_eq!(row["services"], json!([{ "name": "files", "state": "ready", "restarts": 0 }]), "{row}");

    let diff = server.admin.get(&format!("/sandboxes/{id}/diff")).await.expect_status(200);
    let changed: Vec<_> = diff["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(changed, ["new.txt", "old.txt"], "{diff}");

    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect_status(200);
    let row = server.wait_until_ended(&id).await;
    assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("succeeded")), "{row}");
    let events = server.admin.all_events(&id).await;
    assert_log_is_complete(&events);
    assert_eq!(agent_messages(&events), ["done"]);
    assert_eq!(
        event_data(&events, "agent.tool_completed").last().unwrap()["output"],
        "1000\n1000\n",
        "neither the service nor the agent is root"
    );
    let edited: Vec<_> =
        event_data(&events, "agent.file_edited").iter().map(|data| data["file_path"].clone()).collect();
    assert!(edited.contains(&json!("new.txt")) && edited.contains(&json!("old.txt")), "{edited:?}");
    let notices = event_data(&events, "sandbox.notice");
    assert!(
        notices.iter().any(|data| data["text"].as_str().unwrap().contains("equal those of the host, including root")),
        "{notices:?}"
    );

    let created = event_data(&events, "git.branch_created")[0].clone();
    let (branch, commit) = (created["branch"].as_str().unwrap(), created["commit"].as_str().unwrap());
    assert_eq!(repository.run_git(&["rev-parse", branch]).trim(), commit);
    assert_eq!(repository.run_git(&["show", &format!("{branch}:new.txt")]), "by the agent\n");
    assert_eq!(repository.run_git(&["merge-base", &base, branch]).trim(), base);
    repository.assert_untouched(&before, branch);
    wait_until_removed(&server, &engine, &id).await;
    stop_and_check(server, &engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_in_a_container_can_have_a_terminal() {
    let Some((engine, worker)) = block_in_place(|| get_engine("terminals in containers")) else { return };
    let dir = create_temp_dir("atoll-docker-");
    let options = DockerOptions { socket: engine.socket_url(), image: Some(TEST_IMAGE.to_owned()), worker: Ok(worker) };
    let docker = Docker::new(options, "terminals", dir.path().join("docker"), Arc::new(IdleLinkHost));
    let (sandbox, session, project) = (SandboxId::new(), SessionId::new(), ProjectId::new());
    let identity = Identity { deployment: "terminals".to_owned(), sandbox, session, project };
    let spec = CreateSpec {
        identity,
        labels: BTreeMap::new(),
        settings: Settings::default(),
        source: None,
        programs: Vec::new(),
        cache: None,
    };
    let id = docker.create(&spec, "terminals").await.unwrap().id;
    let spec = ExecSpec {
        command: ExecCommand::Shell("stty size; tty".to_owned()),
        cwd: None,
        env: BTreeMap::new(),
        has_stdin: true,
        as_root: false,
        terminal: Some(PtySize { columns: 101, rows: 37 }),
        timeout: Some(WAIT_TIMEOUT),
    };
    let exec = docker.exec(&id, &spec).await.unwrap();
    let (mut events, mut output, mut end) = (docker.attach(&exec, 0).await.unwrap(), String::new(), None);
    while let Some(event) = events.next().await {
        match event.unwrap() {
            ExecEvent::Output { data, .. } => output.push_str(&String::from_utf8_lossy(&data)),
            ExecEvent::Gap { .. } => panic!("the engine dropped output"),
            ExecEvent::Ended(exit) => end = Some(exit),
        }
    }
    assert_eq!(end, Some(CommandExit::Exited { code: 0 }), "{output}");
    assert!(output.contains("37 101") && output.contains("/dev/pts/"), "{output}");
    docker.destroy(&id).await.unwrap();
}

/// The worker in a container has few capabilities and is out of the agent's reach.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_in_a_container_has_no_privileges_and_no_access_to_the_worker() {
    let Some((engine, worker)) = block_in_place(|| get_engine("isolation of an agent in a container")) else { return };
    let server = block_in_place(|| start_server(&engine, &worker));
    let id = server.create_idle_sandbox(docker_request(json!({ "resources": { "memory_gb": 0.125 } }))).await;
    let status = server.run_shell(&id, "cat /proc/self/status").await.expect_success();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1".into(), "2".into()));
    let forbidden = "ls /run/atoll; ls /run/atoll/link; cat /run/atoll/spool/*; cat /proc/1/environ; ls /proc/1/fd; \
                  ls /proc/1/root; kill -9 1; echo x > /opt/atoll/worker; chmod 777 /run/atoll";
    for attempt in forbidden.split("; ") {
        let ran = server.run_shell(&id, attempt).await;
        assert_ne!(ran.exit_code(), Some(0), "{attempt}: {ran:?}");
    }
    // The worker has only SETUID, SETGID and KILL, and cannot gain more.
    let pid = block_in_place(|| engine.run_docker(&["inspect", "--format", "{{.State.Pid}}", &format!("atoll-{id}")]));
    let worker = std::fs::read_to_string(format!("/proc/{}/status", pid.unwrap())).unwrap();
    let field = |name: &str| worker.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!((field("CapEff:"), field("CapBnd:")), ("00000000000000e0".into(), "0000000000000000".into()));
    assert_eq!(
        server.run_shell(&id, "ls /sys/class/net").await.expect_success(),
        "lo\n",
        "a container must have no network device but lo"
    );
    let refused = server.run_shell(&id, "wget -q -O - http://example.org/").await;
    assert!(
        refused.exit_code() != Some(0) && refused.stderr.contains("403"),
        "the egress proxy must refuse the request: {refused:?}"
    );

    // Worker and agent share one memory limit here, and the kernel kills the agent's process.
    let big = "dd if=/dev/zero of=/dev/null bs=400M count=1";
    let ran = server.run_exec(&id, json!({ "argv": ["sh", "-c", big] })).await;
    assert_eq!(ran.exit["kind"], "out_of_memory", "{ran:?}");
    assert_eq!(server.run_shell(&id, "echo still here").await.expect_success(), "still here\n");
    stop_and_check(server, &engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_adopts_its_containers() {
    let Some((engine, worker)) = block_in_place(|| get_engine("containers and a restart of the server")) else {
        return;
    };
    let mut server = block_in_place(|| start_server(&engine, &worker));
    let id = server.create_idle_sandbox(docker_request(json!({}))).await;
    block_in_place(|| server.process.restart());
    let message = server.send_message(&id, json!({ "content": "say again" })).await;
    assert_eq!(server.wait_until_acknowledged(&id, &message).await["turn"], 2);
    server.wait_for_event(&id, |event| event["data"]["text"] == "again").await;
    assert_eq!(server.run_exec(&id, json!({ "argv": ["echo", "here"] })).await.expect_success(), "here\n");
    assert_eq!(block_in_place(|| engine.list_resources(&id)).len(), 2, "expected one container and one volume");
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect_status(200);
    assert_eq!(server.wait_until_ended(&id).await["state"], "completed");
    stop_and_check(server, &engine).await;
}

/// The spool of a killed container is on this machine's disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spooled_events_survive_a_killed_container() {
    let Some((engine, worker)) = block_in_place(|| get_engine("a killed container's spool")) else { return };
    let mut server = block_in_place(|| start_server(&engine, &worker));
    let prompt = "edit hold x\nsay before\nrun while test -e hold; do sleep 0.1; done\nsay meanwhile\nwait 60";
    let [killed, removed] = [
        server.create_sandbox(docker_request(json!({ "prompt": prompt }))).await,
        server.create_sandbox(docker_request(json!({ "prompt": prompt }))).await,
    ];
    for id in [&killed, &removed] {
        server.wait_for_event(id, |event| event["data"]["text"] == "before").await;
    }
    block_in_place(|| {
        server.process.kill();
        for id in [&killed, &removed] {
            // The container's root has no right to the agent's files.
            engine.run_docker(&["exec", "--user", "1000", &format!("atoll-{id}"), "rm", "/workspace/hold"]).unwrap();
            let spool = server.data_dir().join("docker").join(id).join("spool");
            wait_until("a spooled message", || spooled_messages(&spool).iter().any(|text| text == "meanwhile"));
        }
        engine.run_docker(&["kill", &format!("atoll-{killed}")]).unwrap();
        engine.run_docker(&["rm", "--force", &format!("atoll-{removed}")]).unwrap();
        server.process.restart();
    });
    for id in [&killed, &removed] {
        let row = server.wait_until_ended(id).await;
        assert_eq!(
            (row["state"].as_str(), row["reason"]["code"].as_str()),
            (Some("failed"), Some("worker_died")),
            "{row}"
        );
        let events = server.admin.all_events(id).await;
        assert_log_is_complete(&events);
        assert_eq!(agent_messages(&events), ["before", "meanwhile"]);
    }
    let row = server.get_sandbox(&killed).await;
    assert!(row["reason"]["detail"].as_str().unwrap().contains("signal 9"), "{row}");
    stop_and_check(server, &engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_image_is_reported_with_a_remedy() {
    let Some((engine, worker)) = block_in_place(|| get_engine("missing images")) else { return };
    let server = block_in_place(|| start_server(&engine, &worker));
    for (image, expected) in
        [("nobody/has-this:1", "docker pull nobody/has-this:1"), ("a b", "is not a valid image name")]
    {
        let id = server.create_sandbox(docker_request(json!({ "prompt": "say hello", "image": image }))).await;
        let row = server.wait_until_ended(&id).await;
        assert_eq!(row["reason"]["code"], "provider_refused", "{row}");
        assert!(row["reason"]["detail"].as_str().unwrap().contains(expected), "{row}");
    }
    stop_and_check(server, &engine).await;
}

const CODEX_SCRIPT: &str = r#"
- write: {file: notes.txt, content: "hello\n"}
- edit: {file: notes.txt, old: hello, new: goodbye}
- run: cat notes.txt && echo ran > ran.txt
- expect: {text: goodbye, new: true}
- say: All is done.
"#;

/// Codex needs no libraries, so it runs in an image without any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_agent_works_in_a_container() {
    let program = process::find_program("atoll").parent().and_then(Path::parent).unwrap().join("agents/bin/codex");
    if !program.exists() {
        let required = std::env::var_os("ATOLL_TEST_AGENTS").is_some_and(|value| !value.is_empty());
        assert!(!required, "{} is missing: run scripts/agents", program.display());
        return report_skipped("a real agent in a container", "Codex is not installed: scripts/agents");
    }
    let Some((engine, worker)) = block_in_place(|| get_engine("a real agent in a container")) else { return };
    let model = ScriptedModel::start(Scripts::parse(CODEX_SCRIPT).unwrap()).await.unwrap();
    let docker = json!({ "socket": engine.socket_url(), "image": TEST_IMAGE, "worker": worker });
    let config = format!("docker: {docker}\nagents: {{codex: {{path: {}}}}}\n", program.display());
    let environment = [("OPENAI_BASE_URL", format!("{}/v1", model.base_url())), ("OPENAI_API_KEY", "real".to_owned())];
    let environment = environment.map(|(name, value)| (name.to_owned(), value));
    let server = block_in_place(|| LocalServer::start_with_env(&config, &environment));
    let settings = json!({ "agent": "codex", "model": "gpt-5.5", "prompt": "go", "end": "keep", "approvals": "full" });
    let id = server.create_sandbox(docker_request(settings)).await;
    server.wait_for_event(&id, |event| event["type"] == "agent.waiting" || event["type"] == "sandbox.failed").await;
    let events = server.admin.all_events(&id).await;
    assert_eq!(agent_messages(&events).last().map(String::as_str), Some("All is done."), "{events:#?}");
    assert_eq!(server.run_shell(&id, "cat notes.txt ran.txt").await.expect_success(), "goodbye\nran\n");
    let edited = event_data(&events, "agent.file_edited");
    assert!(edited.iter().any(|data| data["file_path"] == "notes.txt"), "{edited:?}");
    stop_and_check(server, &engine).await;
}

/// Runs on every machine, because it needs no engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_an_engine_starts_and_refuses_only_containers() {
    let server = block_in_place(|| {
        LocalServer::start_with_config("docker: {socket: 'unix:///nowhere/docker.sock', image: x}\n")
    });
    let id = server.create_sandbox(docker_request(json!({ "prompt": "say hello" }))).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["state"], "failed", "{row}");
    let (code, detail) = (row["reason"]["code"].as_str().unwrap(), row["reason"]["detail"].as_str().unwrap());
    // The error depends on the build: without an embedded worker, the worker is missing first.
    let engine = code == "provider_unreachable" && detail.contains("/nowhere/docker.sock");
    assert!(engine || (code == "provider_refused" && detail.contains("make worker")), "{row}");
    let local = server.create_sandbox(json!({ "prompt": "say hello" })).await;
    assert_eq!(server.wait_until_ended(&local).await["outcome"], "succeeded", "other providers must still work");
    server.stop_and_check().await;
}
