//! Sandboxes as containers of a Docker engine that the tests start for themselves.

use crate::conformance::{Nobody, keeps_every_promise};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{Command, CreateSpec, ExecEvent, ExecSpec, Exit, Identity, Provider, Size};
use atoll_core::sandbox::Settings;
use atoll_providers::{Docker, DockerOptions};
use atoll_tests::engine::{self, Engine, IMAGE};
use atoll_tests::local::repository::Repository;
use atoll_tests::local::{Ground, assert_whole, directory, said, skipped, told};
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

const PATIENCE: Duration = Duration::from_secs(60);

/// An engine and the worker for its containers, unless this machine can't have them.
fn engine(what: &str) -> Option<(Arc<Engine>, PathBuf)> {
    match engine::worker().and_then(|worker| Ok((Engine::shared()?, worker))) {
        Ok(found) => Some(found),
        Err(why) => {
            skipped(what, &why);
            None
        }
    }
}

fn server(engine: &Engine, worker: &PathBuf) -> Ground {
    let docker = json!({ "socket": engine.socket(), "image": IMAGE, "worker": worker });
    Ground::start_with(&format!("docker: {docker}\n"))
}

fn of(settings: Value) -> Value {
    let mut body = json!({ "provider": "docker" });
    body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    body
}

/// Waits until nothing of a sandbox is left, here or at the engine.
async fn gone(ground: &Ground, engine: &Engine, id: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (home, traces) = (ground.data().join("docker").join(id), block_in_place(|| engine.traces(id)));
        if !home.exists() && traces.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "it is still there: {traces:?}, directory: {}", home.exists());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn end(ground: Ground, engine: &Engine) {
    for id in ground.made() {
        ground.admin.delete(&format!("/sandboxes/{id}?force=true")).await;
        gone(&ground, engine, &id).await;
    }
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_docker_provider_keeps_every_promise() {
    let Some((engine, worker)) = block_in_place(|| engine("the docker provider's conformance")) else { return };
    let dir = directory("atoll-docker-");
    let options = DockerOptions { socket: engine.socket(), image: Some(IMAGE.to_owned()), worker: Ok(worker) };
    let docker = Docker::new(options, "conformance", dir.path().join("docker"), Arc::new(Nobody));
    keeps_every_promise(&docker, &Settings::default()).await;
    let left: Vec<_> = std::fs::read_dir(dir.path().join("docker")).unwrap().collect();
    assert!(left.is_empty(), "{left:?} are left");
    let own = "label=atoll.server=conformance";
    let containers = block_in_place(|| engine.docker(&["ps", "--all", "--quiet", "--filter", own]));
    let volumes = block_in_place(|| engine.docker(&["volume", "ls", "--quiet", "--filter", own]));
    assert_eq!((containers.as_deref(), volumes.as_deref()), (Ok(""), Ok("")), "nothing is left at the engine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_in_a_container_ends_as_a_branch() {
    let Some((engine, worker)) = block_in_place(|| engine("a task in a container")) else { return };
    let (ground, repository) = (block_in_place(|| server(&engine, &worker)), Repository::sample());
    let (before, base) = (repository.checkout(), repository.head());
    let prompt = "edit new.txt by the agent\nrun rm old.txt && id -u\nsay done";
    let settings = json!({ "prompt": prompt, "end": "keep", "repo": { "path": repository.text() } });
    let id = ground.make(of(settings)).await;
    ground.until(&id, |row| row["activity"] == "waiting_message").await;

    let diff = ground.admin.get(&format!("/sandboxes/{id}/diff")).await.expect(200);
    let changed: Vec<_> = diff["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(changed, ["new.txt", "old.txt"], "{diff}");

    ground.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect(200);
    let row = ground.ended(&id).await;
    assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("succeeded")), "{row}");
    let events = ground.admin.all_events(&id).await;
    assert_whole(&events);
    assert_eq!(said(&events), ["done"]);
    assert_eq!(told(&events, "agent.tool_completed").last().unwrap()["output"], "1000\n", "the agent is not root");
    let edited: Vec<_> = told(&events, "agent.file_edited").iter().map(|data| data["file_path"].clone()).collect();
    assert!(edited.contains(&json!("new.txt")) && edited.contains(&json!("old.txt")), "{edited:?}");
    let notices = told(&events, "sandbox.notice");
    assert!(notices.iter().any(|data| data["text"].as_str().unwrap().contains("this machine's root")), "{notices:?}");

    let made = told(&events, "git.branch_created")[0].clone();
    let (branch, commit) = (made["branch"].as_str().unwrap(), made["commit"].as_str().unwrap());
    assert_eq!(repository.git(&["rev-parse", branch]).trim(), commit);
    assert_eq!(repository.git(&["show", &format!("{branch}:new.txt")]), "by the agent\n");
    assert_eq!(repository.git(&["merge-base", &base, branch]).trim(), base);
    repository.is_untouched(&before, branch);
    gone(&ground, &engine, &id).await;
    end(ground, &engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_in_a_container_can_have_a_terminal() {
    let Some((engine, worker)) = block_in_place(|| engine("terminals in containers")) else { return };
    let dir = directory("atoll-docker-");
    let options = DockerOptions { socket: engine.socket(), image: Some(IMAGE.to_owned()), worker: Ok(worker) };
    let docker = Docker::new(options, "terminals", dir.path().join("docker"), Arc::new(Nobody));
    let (sandbox, session, project) = (SandboxId::new(), SessionId::new(), ProjectId::new());
    let identity = Identity { deployment: "terminals".to_owned(), sandbox, session, project };
    let spec = CreateSpec {
        identity,
        labels: BTreeMap::new(),
        settings: Settings::default(),
        source: None,
        programs: Vec::new(),
    };
    let id = docker.create(&spec, "terminals").await.unwrap().id;
    let wanted = ExecSpec {
        command: Command::Shell("stty size; tty".to_owned()),
        cwd: None,
        env: BTreeMap::new(),
        stdin: true,
        as_root: false,
        terminal: Some(Size { columns: 101, rows: 37 }),
        timeout: Some(PATIENCE),
    };
    let exec = docker.exec(&id, &wanted).await.unwrap();
    let (mut events, mut seen, mut end) = (docker.attach(&exec, 0).await.unwrap(), String::new(), None);
    while let Some(event) = events.next().await {
        match event.unwrap() {
            ExecEvent::Output { data, .. } => seen.push_str(&String::from_utf8_lossy(&data)),
            ExecEvent::Gap { .. } => panic!("so little is kept"),
            ExecEvent::Ended(exit) => end = Some(exit),
        }
    }
    assert_eq!(end, Some(Exit::Exited { code: 0 }), "{seen}");
    assert!(seen.contains("37 101") && seen.contains("/dev/pts/"), "{seen}");
    docker.destroy(&id).await.unwrap();
}

/// What the worker promises to be in a container: out of the agent's reach, and nearly without power.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_in_a_container_has_no_power_and_no_way_to_the_worker() {
    let Some((engine, worker)) = block_in_place(|| engine("what an agent can do in a container")) else { return };
    let ground = block_in_place(|| server(&engine, &worker));
    let id = ground.kept(of(json!({ "resources": { "memory_gb": 0.125 } }))).await;
    let status = ground.shell(&id, "cat /proc/self/status").await.well();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1".into(), "2".into()));
    let closed = "ls /run/atoll; ls /run/atoll/link; cat /run/atoll/spool/*; cat /proc/1/environ; ls /proc/1/fd; \
                  ls /proc/1/root; kill -9 1; echo x > /opt/atoll/worker; chmod 777 /run/atoll";
    for attempt in closed.split("; ") {
        let ran = ground.shell(&id, attempt).await;
        assert_ne!(ran.code(), Some(0), "{attempt}: {ran:?}");
    }
    // SETUID, SETGID and KILL, and no way to more.
    let pid = block_in_place(|| engine.docker(&["inspect", "--format", "{{.State.Pid}}", &format!("atoll-{id}")]));
    let worker = std::fs::read_to_string(format!("/proc/{}/status", pid.unwrap())).unwrap();
    let field = |name: &str| worker.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!((field("CapEff:"), field("CapBnd:")), ("00000000000000e0".into(), "0000000000000000".into()));
    assert_eq!(ground.shell(&id, "ls /sys/class/net").await.well(), "lo\n", "there is no way out");
    let refused = ground.shell(&id, "wget -q -O - http://example.org/").await;
    assert!(
        refused.code() != Some(0) && refused.stderr.contains("403"),
        "but by the proxy, which says no: {refused:?}"
    );

    // Worker and agent share one bound here, and it is the agent that goes.
    let big = "dd if=/dev/zero of=/dev/null bs=400M count=1";
    let ran = ground.exec(&id, json!({ "argv": ["sh", "-c", big] })).await;
    assert_eq!(ran.exit["kind"], "out_of_memory", "{ran:?}");
    assert_eq!(ground.shell(&id, "echo still here").await.well(), "still here\n");
    end(ground, &engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_adopts_its_containers() {
    let Some((engine, worker)) = block_in_place(|| engine("containers and a restart of the server")) else { return };
    let mut ground = block_in_place(|| server(&engine, &worker));
    let id = ground.kept(of(json!({}))).await;
    block_in_place(|| ground.server.start_again());
    let message = ground.send(&id, json!({ "content": "say again" })).await;
    assert_eq!(ground.delivered(&id, &message).await["turn"], 2);
    ground.event(&id, |event| event["data"]["text"] == "again").await;
    assert_eq!(ground.exec(&id, json!({ "argv": ["echo", "here"] })).await.well(), "here\n");
    assert_eq!(block_in_place(|| engine.traces(&id)).len(), 2, "one container, one volume");
    ground.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect(200);
    assert_eq!(ground.ended(&id).await["state"], "completed");
    end(ground, &engine).await;
}

/// What a worker had spooled when its container was killed is on this machine's disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_container_had_to_say_is_not_lost() {
    let Some((engine, worker)) = block_in_place(|| engine("a killed container's spool")) else { return };
    let mut ground = block_in_place(|| server(&engine, &worker));
    let prompt = "say before\nwait 2\nsay meanwhile\nwait 60";
    let [killed, removed] =
        [ground.make(of(json!({ "prompt": prompt }))).await, ground.make(of(json!({ "prompt": prompt }))).await];
    for id in [&killed, &removed] {
        ground.event(id, |event| event["data"]["text"] == "before").await;
    }
    block_in_place(|| {
        ground.server.kill();
        std::thread::sleep(Duration::from_secs(4));
        engine.docker(&["kill", &format!("atoll-{killed}")]).unwrap();
        engine.docker(&["rm", "--force", &format!("atoll-{removed}")]).unwrap();
        ground.server.start_again();
    });
    for id in [&killed, &removed] {
        let row = ground.ended(id).await;
        assert_eq!(
            (row["state"].as_str(), row["reason"]["code"].as_str()),
            (Some("failed"), Some("worker_died")),
            "{row}"
        );
        let events = ground.admin.all_events(id).await;
        assert_whole(&events);
        assert_eq!(said(&events), ["before", "meanwhile"]);
    }
    let row = ground.row(&killed).await;
    assert!(row["reason"]["detail"].as_str().unwrap().contains("signal 9"), "{row}");
    end(ground, &engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_said_with_what_to_do() {
    let Some((engine, worker)) = block_in_place(|| engine("images that are not there")) else { return };
    let ground = block_in_place(|| server(&engine, &worker));
    for (image, wanted) in [("nobody/has-this:1", "docker pull nobody/has-this:1"), ("a b", "not the name of an image")]
    {
        let id = ground.make(of(json!({ "prompt": "say hello", "image": image }))).await;
        let row = ground.ended(&id).await;
        assert_eq!(row["reason"]["code"], "provider_refused", "{row}");
        assert!(row["reason"]["detail"].as_str().unwrap().contains(wanted), "{row}");
    }
    end(ground, &engine).await;
}

/// Needs no engine: that is what it is about.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_an_engine_starts_and_says_so_when_one_is_wanted() {
    let ground = block_in_place(|| Ground::start_with("docker: {socket: 'unix:///nowhere/docker.sock', image: x}\n"));
    let id = ground.make(of(json!({ "prompt": "say hello" }))).await;
    let row = ground.ended(&id).await;
    assert_eq!(row["state"], "failed", "{row}");
    let (code, detail) = (row["reason"]["code"].as_str().unwrap(), row["reason"]["detail"].as_str().unwrap());
    // Which of the two is missing first depends on how the program was built.
    let engine = code == "provider_unreachable" && detail.contains("/nowhere/docker.sock");
    assert!(engine || (code == "provider_refused" && detail.contains("make worker")), "{row}");
    let here = ground.make(json!({ "prompt": "say hello" })).await;
    assert_eq!(ground.ended(&here).await["outcome"], "succeeded", "others are not concerned");
    ground.leave().await;
}
