//! An agent runs apart from the server, as nobody in particular: seen from the host and from inside.

use atoll_tests::local::traces::{self, Process, field_of};
use atoll_tests::local::{Ground, PATIENCE, is_root, skipped};
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

/// Which directory this is, whatever it is called from here.
fn identity(path: &Path) -> (u64, u64) {
    let data = std::fs::metadata(path).unwrap();
    (data.dev(), data.ino())
}

/// The processes that run as an agent does, once there are as many as are waited for.
fn agents(id: &str, named: &str) -> Vec<Process> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = traces::leaf(id, "agent");
        if found.iter().any(|process| process.file("cmdline").contains(named)) {
            return found;
        }
        assert!(Instant::now() < deadline, "{named} is not among {found:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_an_agent_runs_in_the_server_s_process_or_directory() {
    let ground = Ground::start();
    let id = ground.make(json!({ "prompt": "run sleep 64" })).await;
    ground.event(&id, |event| event["type"] == "agent.tool_use").await;
    if traces::cgroups(&id).is_empty() {
        skipped("agents seen from the host", "there are no cgroups to find them by");
        return ground.leave().await;
    }
    let server = ground.server.pid();
    let of_server = |name: &str| format!("/proc/{server}/{name}");
    let agents = agents(&id, "sleep");
    let workspace = identity(&ground.workspace_of(&id));
    for process in &agents {
        assert_ne!(process.pid, server);
        for namespace in NAMESPACES {
            let name = format!("ns/{namespace}");
            let (theirs, ours) = (std::fs::read_link(process.path(&name)), std::fs::read_link(of_server(&name)));
            assert_ne!(theirs.unwrap(), ours.unwrap(), "{process:?} is in the server's {namespace} namespace");
        }
        assert_ne!(identity(&process.path("root")), identity(Path::new(&of_server("root"))), "{process:?}");
        assert_ne!(identity(&process.path("cwd")), identity(Path::new(&of_server("cwd"))), "{process:?}");
        let uids = process.status("Uid").unwrap();
        if is_root() {
            let uids: Vec<u32> = uids.split_whitespace().map(|uid| uid.parse().unwrap()).collect();
            assert!(uids.iter().all(|uid| *uid >= 65_536), "{process:?} runs as {uids:?} of the host");
        }
        assert!(process.status("NSpid").unwrap().split_whitespace().count() > 1, "{process:?} has a number inside");
        let environment = process.file("environ");
        assert!(!environment.contains(&ground.server.token()), "{process:?} knows the server's token");
    }
    let working = agents.iter().filter(|process| identity(&process.path("cwd")) == workspace);
    assert!(working.count() >= 2, "the agent and its command are in the workspace: {agents:?}");
    // The worker is not the agent: another id, another leaf.
    let worker = traces::worker(&id).expect("pid 1 is in the leaf of its own");
    assert!(agents.iter().all(|process| process.pid != worker.pid));
    if is_root() {
        assert_ne!(worker.status("Uid"), agents[0].status("Uid"));
        assert_ne!(worker.status("Uid").unwrap().split_whitespace().next(), Some("0"));
    }
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_nobody_in_particular() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let status = ground.exec(&id, json!({ "argv": ["cat", "/proc/self/status"] })).await.well();
    let field = |name: &str| field_of(&status, name).unwrap_or_else(|| panic!("{name} is missing in {status}"));
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2");
    assert_eq!(field("Uid"), "1000\t1000\t1000\t1000");
    assert_eq!(field("Gid"), "1000\t1000\t1000\t1000");
    assert_eq!(field("Umask"), "0022");

    let script =
        "echo $HOME; echo $IS_SANDBOX; id -un; pwd; locale charmap 2>/dev/null || echo UTF-8; touch $HOME/x && echo w";
    let seen = ground.shell(&id, script).await.well();
    assert_eq!(seen.lines().collect::<Vec<_>>(), ["/home/agent", "1", "agent", "/workspace", "UTF-8", "w"]);
    let environment = ground.exec(&id, json!({ "argv": ["env"] })).await.well();
    let token = ground.server.token();
    assert!(!environment.contains(&token) && !environment.contains("TOKEN"), "{environment}");
    assert!(!environment.contains(ground.data().to_str().unwrap()), "{environment}");
    let groups = ground.exec(&id, json!({ "argv": ["id", "-G"] })).await.well();
    assert_eq!(groups, "1000\n");

    // The agent itself is no other than what is run beside it.
    let task =
        ground.make(json!({ "prompt": "run grep -E 'Cap|NoNew|Seccomp:|Uid' /proc/self/status", "end": "keep" })).await;
    let ran = ground.event(&task, |event| event["type"] == "agent.tool_completed").await;
    let output = ran["data"]["output"].as_str().unwrap();
    for line in output.lines() {
        assert!(status.lines().any(|other| other == line), "{line} is not as in {status}");
    }
    assert!(output.lines().count() >= 8, "{output}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_s_processes_are_not_seen() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let pids = ground.shell(&id, "echo /proc/[0-9]*").await.well();
    assert!(pids.split_whitespace().count() < 10, "{pids}");
    let lines = ground.shell(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await.well();
    assert!(!lines.contains("serve") && !lines.contains("launcher"), "{lines}");
    // Not by a number that means something outside either.
    let server = ground.server.pid();
    let shown = ground.shell(&id, &format!("kill -0 {server} 2>&1; ls -d /proc/{server} 2>&1; true")).await.well();
    assert!(shown.contains("No such") && !shown.contains(&format!("\n/proc/{server}\n")), "{shown}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sandbox_does_not_see_another() {
    let ground = Ground::start();
    let (one, two) = (ground.kept(json!({})).await, ground.kept(json!({})).await);
    ground.shell(&one, "echo mine > /tmp/mine; echo mine > /workspace/mine; echo mine > $HOME/mine").await.well();
    ground.shell(&one, "sleep 65 > /dev/null 2>&1 & true").await.well();
    let seen = ground.shell(&two, "ls /tmp /workspace $HOME; cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await.well();
    assert!(!seen.contains("mine") && !seen.contains("sleep"), "{seen}");
    if is_root() && !traces::cgroups(&one).is_empty() {
        let uid = |id: &str| traces::worker(id).unwrap().status("Uid").unwrap();
        assert_ne!(uid(&one), uid(&two), "each has ids of its own");
    }
    ground.leave().await;
}
