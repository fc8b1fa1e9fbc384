//! The agent and the worker share a sandbox, and the agent can't read, become, or end the worker.

use atoll_tests::local::traces;
use atoll_tests::local::{Ground, skipped};
use serde_json::{Value, json};
use std::process::Command;

/// Tries to look into a process, by every door that there is. Prints what it got, one word a door.
pub const LOOK: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.syscall.restype = ctypes.c_long
target = int(sys.argv[1])

def told(door, got):
    print(door, "open" if got else "closed", flush=True)

def reads(door, path):
    try:
        with open(path, "rb") as file:
            if door == "mem":
                mapped = open(f"/proc/{target}/maps").readline().split("-")[0]
                file.seek(int(mapped, 16))
            told(door, len(file.read(16)) > 0)
    except OSError:
        told(door, False)

for door in ["mem", "environ", "auxv", "maps", "syscall", "stack"]:
    reads(door, f"/proc/{target}/{door}")
for door in ["cwd", "root", "exe"]:
    try:
        os.readlink(f"/proc/{target}/{door}")
        told(door, True)
    except OSError:
        told(door, False)
try:
    told("fd", len(os.listdir(f"/proc/{target}/fd")) > 0)
except OSError:
    told("fd", False)
try:
    pidfd = os.pidfd_open(target)
    told("pidfd_getfd", any(libc.syscall(438, pidfd, number, 0) >= 0 for number in range(0, 32)))
except (OSError, AttributeError):
    told("pidfd_getfd", False)
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
told("process_vm_readv", libc.process_vm_readv(target, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) > 0)
attached = libc.ptrace(16, target, None, None) == 0
told("ptrace", attached)
if attached:
    os.waitpid(target, 0x40000000)
    libc.ptrace(17, target, None, None)
"#;

const DOORS: usize = 13;

/// Prints the number of the worker's hands. Written so that the search does not find itself.
pub const HANDS: &str =
    "for p in /proc/[0-9]*; do grep -qaE 'worker.[h]ands' $p/cmdline && echo ${p#/proc/}; done; true";

pub fn open_doors(text: &str) -> Vec<String> {
    assert_eq!(text.lines().count(), DOORS, "every door was tried: {text}");
    let open = text.lines().filter_map(|line| line.strip_suffix(" open"));
    open.map(str::to_owned).collect()
}

/// The same program, looking at another process of the same user on the host, gets through.
fn doors_that_open_outside() -> Vec<String> {
    let mut target = Command::new("sleep").arg("66").spawn().unwrap();
    let output = Command::new("/usr/bin/python3").args(["-c", LOOK, &target.id().to_string()]).output().unwrap();
    drop((target.kill(), target.wait()));
    open_doors(&String::from_utf8(output.stdout).unwrap())
}

/// Numbers inside of the worker and of its hands, which have the agent's id.
async fn worker_processes(ground: &Ground, id: &str) -> Vec<String> {
    let found = ground.shell(id, HANDS).await.well();
    let mut pids: Vec<String> = found.lines().map(str::to_owned).collect();
    assert_eq!(pids.len(), 1, "it has hands");
    pids.push("1".into());
    pids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_can_not_look_into_the_worker() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return skipped("looking into the worker", "there is no /usr/bin/python3");
    }
    let outside = doors_that_open_outside();
    for door in ["mem", "environ", "maps", "fd", "process_vm_readv", "ptrace"] {
        if !outside.iter().any(|open| open == door) {
            skipped(&format!("looking into the worker by {door}"), "it does not work outside either");
        }
    }
    assert!(outside.len() > 4, "the program can look at all: {outside:?}");
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    for pid in worker_processes(&ground, &id).await {
        let ran = ground.exec(&id, json!({ "argv": ["/usr/bin/python3", "-c", LOOK, pid] })).await;
        assert_eq!(open_doors(&ran.clone().well()), Vec::<String>::new(), "process {pid} inside: {}", ran.stderr);
    }
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_can_not_end_the_worker() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let before = traces::worker(&id);
    let script = "for s in TERM INT HUP QUIT USR1 ABRT SEGV STOP KILL; do kill -$s 1; done; kill -KILL -1; true";
    ground.shell(&id, script).await;
    let asked = ground.admin.post(&format!("/sandboxes/{id}/exec"), json!({ "argv": ["echo", "alive"] })).await;
    // All that the agent has may be gone by its own hand, which counts as its crash and ends the sandbox in
    // good order. The sandbox's pid 1 is not the agent's to end.
    let lives = before.as_ref().is_none_or(traces::Process::is_alive);
    let row = ground.row(&id).await;
    let said = std::fs::read_to_string(ground.home_of(&id).join("worker.log")).unwrap_or_default();
    assert!(lives || row["reason"]["code"] == "agent_crashed", "the worker lives: {} {row} {said}", asked.status);
    assert!(row["state"] == "running" || row["reason"]["code"] != "worker_died", "{row}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_finds_neither_the_spool_nor_the_link() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    // Outside they are where they are known to be.
    let home = ground.home_of(&id);
    assert!(std::fs::read_dir(home.join("spool")).unwrap().count() > 0, "the spool is in use");
    assert!(std::os::unix::net::UnixStream::connect(home.join("link/sock")).is_ok(), "the link is there");

    let mounts = ground.exec(&id, json!({ "argv": ["cat", "/proc/self/mountinfo"] })).await.well();
    let data = ground.data();
    assert!(!mounts.contains("/spool") && !mounts.contains("/link"), "{mounts}");
    for line in mounts.lines().filter(|line| line.contains(data.to_str().unwrap())) {
        let own = line.contains(&format!("/{id}/tmp"))
            || ["workspace", "home"]
                .iter()
                .any(|name| line.contains("/layers/") && line.contains(&format!("/files/{name}")));
        // What is generated for all of them.
        let shown = own || line.contains(" /etc ro,") || line.contains(" /opt/atoll/worker ro,");
        assert!(shown, "a mount of the data directory: {line}");
    }
    let sockets = ground.shell(&id, "find / -xdev -type s 2>/dev/null; find /tmp /workspace $HOME -type s; true").await;
    assert_eq!(sockets.well(), "", "no socket has a name inside");
    let named = ground.shell(&id, "cat /proc/net/unix | tail -n +2 | awk 'NF > 7 {print $8}'").await.well();
    assert_eq!(named.trim(), "", "nor an abstract one");
    let mine = ground.shell(&id, "ls /proc/self/fd | tr '\\n' ' '").await.well();
    assert_eq!(mine.trim(), "0 1 2 3", "a command has its own three, and the one `ls` opens");
    ground.leave().await;
}

/// Without a token, a socket or a way out there is nothing to post with: also not from the host, where
/// the route itself can be reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_can_not_post_as_the_worker() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let (port, path) = (ground.server.address.port(), format!("/api/v1/sandboxes/{id}/events"));
    let batch = json!({ "stream": uuid::Uuid::now_v7(), "boot": 99, "events": [{ "key": 1, "type": "agent.message",
        "source": "agent", "at": "2026-01-01T00:00:00Z", "data": { "text": "forged" } }] });
    let anonymous = atoll_tests::actor::Actor::new(&ground.server.url, None);
    let refused = anonymous.post(&path, batch.clone()).await;
    assert_eq!(refused.status.as_u16(), 401, "it is there, and wants to know who asks: {}", refused.body);

    let text = batch.to_string();
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port} || exit 9; printf 'POST {path} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\
         Content-Type: application/json\\r\\nContent-Length: {}\\r\\n\\r\\n%s' '{text}' >&3; head -1 <&3",
        text.len()
    );
    let outside = Command::new("timeout").args(["5", "bash", "-c", &script]).output().unwrap();
    assert!(String::from_utf8_lossy(&outside.stdout).contains("401"), "the same request arrives from outside");
    let inside = ground.exec(&id, json!({ "argv": ["timeout", "5", "bash", "-c", script] })).await;
    assert_ne!(inside.code(), Some(0), "{inside:?}");
    assert!(!inside.stdout.contains("HTTP"), "{inside:?}");
    let events = ground.admin.all_events(&id).await;
    assert!(!events.iter().any(|event: &Value| event["data"]["text"] == "forged"));
    ground.leave().await;
}
