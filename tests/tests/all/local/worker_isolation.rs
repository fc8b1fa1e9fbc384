//! The agent and the worker share a sandbox. The agent cannot inspect, impersonate or kill the worker.

use atoll_tests::local::host_state;
use atoll_tests::local::{LocalServer, report_skipped};
use serde_json::{Value, json};
use std::process::Command;

/// Tries to inspect a process in every way and prints `open` or `closed` for each.
pub const INSPECT_SCRIPT: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.syscall.restype = ctypes.c_long
target = int(sys.argv[1])

def report(probe, got):
    print(probe, "open" if got else "closed", flush=True)

def reads(probe, path):
    try:
        with open(path, "rb") as file:
            if probe == "mem":
                mapped = open(f"/proc/{target}/maps").readline().split("-")[0]
                file.seek(int(mapped, 16))
            report(probe, len(file.read(16)) > 0)
    except OSError:
        report(probe, False)

for probe in ["mem", "environ", "auxv", "maps", "syscall", "stack"]:
    reads(probe, f"/proc/{target}/{probe}")
for probe in ["cwd", "root", "exe"]:
    try:
        os.readlink(f"/proc/{target}/{probe}")
        report(probe, True)
    except OSError:
        report(probe, False)
try:
    report("fd", len(os.listdir(f"/proc/{target}/fd")) > 0)
except OSError:
    report("fd", False)
try:
    pidfd = os.pidfd_open(target)
    report("pidfd_getfd", any(libc.syscall(438, pidfd, number, 0) >= 0 for number in range(0, 32)))
except (OSError, AttributeError):
    report("pidfd_getfd", False)
buffer = ctypes.create_string_buffer(16)
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
local = Vector(ctypes.cast(buffer, ctypes.c_void_p), 16)
at = 0x400000
try:
    at = int(open(f"/proc/{target}/maps").readline().split("-")[0], 16)
except OSError:
    pass
remote = Vector(at, 16)
report("process_vm_readv", libc.process_vm_readv(target, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) > 0)
attached = libc.ptrace(16, target, None, None) == 0
report("ptrace", attached)
if attached:
    os.waitpid(target, 0x40000000)
    libc.ptrace(17, target, None, None)
"#;

const INSPECTION_COUNT: usize = 13;

/// Prints the pid of the worker's spawner. The pattern does not match the search itself.
pub const FIND_SPAWNER_SCRIPT: &str =
    "for p in /proc/[0-9]*; do grep -qaE 'worker.[s]pawner' $p/cmdline && echo ${p#/proc/}; done; true";

pub fn successful_inspections(text: &str) -> Vec<String> {
    assert_eq!(text.lines().count(), INSPECTION_COUNT, "every probe must run: {text}");
    let open = text.lines().filter_map(|line| line.strip_suffix(" open"));
    open.map(str::to_owned).collect()
}

/// Runs the same probes against another process of the same user on the host, where they succeed.
fn inspect_host_process() -> Vec<String> {
    let mut target = Command::new("sleep").arg("66").spawn().unwrap();
    let output =
        Command::new("/usr/bin/python3").args(["-c", INSPECT_SCRIPT, &target.id().to_string()]).output().unwrap();
    drop((target.kill(), target.wait()));
    successful_inspections(&String::from_utf8(output.stdout).unwrap())
}

/// The pids, inside the sandbox, of the worker and of its spawner, which has the agent's id.
async fn list_worker_pids(server: &LocalServer, id: &str) -> Vec<String> {
    let found = server.run_shell(id, FIND_SPAWNER_SCRIPT).await.expect_success();
    let mut pids: Vec<String> = found.lines().map(str::to_owned).collect();
    assert_eq!(pids.len(), 1, "expected one spawner");
    pids.push("1".into());
    pids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_cannot_inspect_the_worker() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return report_skipped("looking into the worker", "there is no /usr/bin/python3");
    }
    let outside = inspect_host_process();
    for probe in ["mem", "environ", "maps", "fd", "process_vm_readv", "ptrace"] {
        if !outside.iter().any(|open| open == probe) {
            report_skipped(&format!("looking into the worker by {probe}"), "it does not work outside either");
        }
    }
    assert!(outside.len() > 4, "the probes must succeed on the host: {outside:?}");
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    for pid in list_worker_pids(&server, &id).await {
        let ran = server.run_exec(&id, json!({ "argv": ["/usr/bin/python3", "-c", INSPECT_SCRIPT, pid] })).await;
        assert_eq!(
            successful_inspections(&ran.clone().expect_success()),
            Vec::<String>::new(),
            "process {pid} inside: {}",
            ran.stderr
        );
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_cannot_kill_the_worker() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let before = host_state::find_worker_process(&id);
    let script = "for s in TERM INT HUP QUIT USR1 ABRT SEGV STOP KILL; do kill -$s 1; done; kill -KILL -1; true";
    server.run_shell(&id, script).await;
    let response = server.admin.post(&format!("/sandboxes/{id}/exec"), json!({ "argv": ["echo", "alive"] })).await;
    // The agent may kill all its own processes: that is a crash and ends the sandbox normally. It must not kill pid 1.
    let is_alive = before.as_ref().is_none_or(host_state::HostProcess::is_alive);
    let row = server.get_sandbox(&id).await;
    let log = std::fs::read_to_string(server.sandbox_dir(&id).join("worker.log")).unwrap_or_default();
    assert!(
        is_alive || row["reason"]["code"] == "agent_crashed",
        "the worker must survive: {} {row} {log}",
        response.status
    );
    assert!(row["state"] == "running" || row["reason"]["code"] != "worker_died", "{row}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_cannot_find_the_spool_or_the_link() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    // They exist outside the sandbox.
    let home = server.sandbox_dir(&id);
    assert!(std::fs::read_dir(home.join("spool")).unwrap().count() > 0, "the spool is in use");
    assert!(std::os::unix::net::UnixStream::connect(home.join("link/sock")).is_ok(), "the link must exist");

    let mounts = server.run_exec(&id, json!({ "argv": ["cat", "/proc/self/mountinfo"] })).await.expect_success();
    let data = server.data_dir();
    assert!(!mounts.contains("/spool") && !mounts.contains("/link"), "{mounts}");
    for line in mounts.lines().filter(|line| line.contains(data.to_str().unwrap())) {
        let is_own = line.contains(&format!("/{id}/tmp"))
            || ["workspace", "home"]
                .iter()
                .any(|name| line.contains("/layers/") && line.contains(&format!("/files/{name}")));
        // Files that are the same for all sandboxes.
        let is_expected = is_own || line.contains(" /etc ro,") || line.contains(" /opt/atoll/worker ro,");
        assert!(is_expected, "unexpected mount of the data directory: {line}");
    }
    let sockets =
        server.run_shell(&id, "find / -xdev -type s 2>/dev/null; find /tmp /workspace $HOME -type s; true").await;
    assert_eq!(sockets.expect_success(), "", "no socket may have a path inside");
    let abstract_names =
        server.run_shell(&id, "cat /proc/net/unix | tail -n +2 | awk 'NF > 7 {print $8}'").await.expect_success();
    assert_eq!(abstract_names.trim(), "", "no abstract socket may exist");
    let descriptors = server.run_shell(&id, "ls /proc/self/fd | tr '\\n' ' '").await.expect_success();
    assert_eq!(descriptors.trim(), "0 1 2 3", "a command has three descriptors, and `ls` opens one");
    server.stop_and_check().await;
}

/// The agent has no token, socket or route to post events with. The same route is reachable from the host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_cannot_post_events_as_the_worker() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let (port, path) = (server.process.address.port(), format!("/api/v1/sandboxes/{id}/events"));
    let batch = json!({ "stream": uuid::Uuid::now_v7(), "boot": 99, "events": [{ "key": 1, "type": "agent.message",
        "source": "agent", "at": "2026-01-01T00:00:00Z", "data": { "text": "forged" } }] });
    let anonymous = atoll_tests::actor::Actor::new(&server.process.url, None);
    let refused = anonymous.post(&path, batch.clone()).await;
    assert_eq!(refused.status.as_u16(), 401, "the route must exist and require a token: {}", refused.body);

    let text = batch.to_string();
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port} || exit 9; printf 'POST {path} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\
         Content-Type: application/json\\r\\nContent-Length: {}\\r\\n\\r\\n%s' '{text}' >&3; head -1 <&3",
        text.len()
    );
    let outside = Command::new("timeout").args(["5", "bash", "-c", &script]).output().unwrap();
    assert!(String::from_utf8_lossy(&outside.stdout).contains("401"), "the same request must arrive from the host");
    let inside = server.run_exec(&id, json!({ "argv": ["timeout", "5", "bash", "-c", script] })).await;
    assert_ne!(inside.exit_code(), Some(0), "{inside:?}");
    assert!(!inside.stdout.contains("HTTP"), "{inside:?}");
    let events = server.admin.all_events(&id).await;
    assert!(!events.iter().any(|event: &Value| event["data"]["text"] == "forged"));
    server.stop_and_check().await;
}
