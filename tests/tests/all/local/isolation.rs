//! The agent's processes are isolated from the server and unprivileged, seen from the host and from inside.

use atoll_test_wait::try_wait_for;
use atoll_tests::local::host_state::{self, HostProcess, parse_status_field};
use atoll_tests::local::{LocalServer, is_root, report_skipped};
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

/// Identifies a directory independently of its path.
fn inode_identity(path: &Path) -> (u64, u64) {
    let data = std::fs::metadata(path).unwrap();
    (data.dev(), data.ino())
}

/// Waits for a process with this name in its command line, and returns all processes of the agent.
fn wait_for_agent_processes(id: &str, named: &str) -> Vec<HostProcess> {
    let polled = try_wait_for(|| {
        let found = host_state::list_leaf_processes(id, "agent");
        let is_found = found.iter().any(|process| process.read_proc_file("cmdline").contains(named));
        if is_found { Ok(found) } else { Err(found) }
    });
    polled.unwrap_or_else(|found| panic!("{named} is not among {found:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_shares_no_namespace_directory_or_id_with_the_server() {
    let server = LocalServer::start();
    let id = server.create_sandbox(json!({ "prompt": "run sleep 64" })).await;
    server.wait_for_event(&id, |event| event["type"] == "agent.tool_use").await;
    if host_state::find_cgroups(&id).is_empty() {
        report_skipped("agents seen from the host", "there are no cgroups to find them by");
        return server.stop_and_check().await;
    }
    let server_pid = server.process.pid();
    let of_server = |name: &str| format!("/proc/{server_pid}/{name}");
    let agents = wait_for_agent_processes(&id, "sleep");
    let workspace = inode_identity(&server.workspace_dir(&id));
    for process in &agents {
        assert_ne!(process.pid, server_pid);
        for namespace in NAMESPACES {
            let name = format!("ns/{namespace}");
            let (agent_ns, server_ns) =
                (std::fs::read_link(process.proc_path(&name)), std::fs::read_link(of_server(&name)));
            assert_ne!(agent_ns.unwrap(), server_ns.unwrap(), "{process:?} is in the server's {namespace} namespace");
        }
        assert_ne!(
            inode_identity(&process.proc_path("root")),
            inode_identity(Path::new(&of_server("root"))),
            "{process:?}"
        );
        assert_ne!(
            inode_identity(&process.proc_path("cwd")),
            inode_identity(Path::new(&of_server("cwd"))),
            "{process:?}"
        );
        let uids = process.status_field("Uid").unwrap();
        if is_root() {
            let uids: Vec<u32> = uids.split_whitespace().map(|uid| uid.parse().unwrap()).collect();
            assert!(uids.iter().all(|uid| *uid >= 65_536), "{process:?} runs as {uids:?} of the host");
        }
        assert!(
            process.status_field("NSpid").unwrap().split_whitespace().count() > 1,
            "{process:?} must have a pid of its own namespace"
        );
        let environment = process.read_proc_file("environ");
        assert!(!environment.contains(&server.process.admin_token()), "{process:?} has the server's token");
    }
    let working = agents.iter().filter(|process| inode_identity(&process.proc_path("cwd")) == workspace);
    assert!(working.count() >= 2, "the agent and its command must run in the workspace: {agents:?}");
    // The worker has another id and another cgroup than the agent.
    let worker = host_state::find_worker_process(&id).expect("the worker must have its own cgroup");
    assert!(agents.iter().all(|process| process.pid != worker.pid));
    if is_root() {
        assert_ne!(worker.status_field("Uid"), agents[0].status_field("Uid"));
        assert_ne!(worker.status_field("Uid").unwrap().split_whitespace().next(), Some("0"));
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_has_no_privileges_and_a_plain_environment() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let status = server.run_exec(&id, json!({ "argv": ["cat", "/proc/self/status"] })).await.expect_success();
    let field =
        |name: &str| parse_status_field(&status, name).unwrap_or_else(|| panic!("{name} is missing in {status}"));
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
    let output = server.run_shell(&id, script).await.expect_success();
    assert_eq!(output.lines().collect::<Vec<_>>(), ["/home/agent", "1", "agent", "/workspace", "UTF-8", "w"]);
    let environment = server.run_exec(&id, json!({ "argv": ["env"] })).await.expect_success();
    let token = server.process.admin_token();
    assert!(!environment.contains(&token) && !environment.contains("TOKEN"), "{environment}");
    assert!(!environment.contains(server.data_dir().to_str().unwrap()), "{environment}");
    let groups = server.run_exec(&id, json!({ "argv": ["id", "-G"] })).await.expect_success();
    assert_eq!(groups, "1000\n");

    // The agent itself has the same status as a command.
    let task = server
        .create_sandbox(json!({ "prompt": "run grep -E 'Cap|NoNew|Seccomp:|Uid' /proc/self/status", "end": "keep" }))
        .await;
    let ran = server.wait_for_event(&task, |event| event["type"] == "agent.tool_completed").await;
    let output = ran["data"]["output"].as_str().unwrap();
    for line in output.lines() {
        assert!(status.lines().any(|other| other == line), "{line} is not as in {status}");
    }
    assert!(output.lines().count() >= 8, "{output}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_the_host_are_invisible() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let pids = server.run_shell(&id, "echo /proc/[0-9]*").await.expect_success();
    assert!(pids.split_whitespace().count() < 10, "{pids}");
    let lines = server.run_shell(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await.expect_success();
    assert!(!lines.contains("serve") && !lines.contains("launcher"), "{lines}");
    // A pid of the host means nothing inside.
    let server_pid = server.process.pid();
    let output = server
        .run_shell(&id, &format!("kill -0 {server_pid} 2>&1; ls -d /proc/{server_pid} 2>&1; true"))
        .await
        .expect_success();
    assert!(output.contains("No such") && !output.contains(&format!("\n/proc/{server_pid}\n")), "{output}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_do_not_see_each_other() {
    let server = LocalServer::start();
    let (one, two) = (server.create_idle_sandbox(json!({})).await, server.create_idle_sandbox(json!({})).await);
    server
        .run_shell(&one, "echo mine > /tmp/mine; echo mine > /workspace/mine; echo mine > $HOME/mine")
        .await
        .expect_success();
    server.run_shell(&one, "sleep 65 > /dev/null 2>&1 & true").await.expect_success();
    let output = server
        .run_shell(&two, "ls /tmp /workspace $HOME; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        .await
        .expect_success();
    assert!(!output.contains("mine") && !output.contains("sleep"), "{output}");
    if is_root() && !host_state::find_cgroups(&one).is_empty() {
        let uid = |id: &str| host_state::find_worker_process(id).unwrap().status_field("Uid").unwrap();
        assert_ne!(uid(&one), uid(&two), "each sandbox must have its own ids");
    }
    server.stop_and_check().await;
}
