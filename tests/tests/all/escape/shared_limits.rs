//! Bombs on what the kernel limits for a user or for the whole machine. While one sandbox holds all that it can get, its
//! neighbour and the host still get theirs.

use super::attempt_table::{AttemptTable, CALLS_PATH_IN_SANDBOX, SuccessProof, new_attempt};
use atoll_tests::local::{ExecResult, LocalServer, host_state};
use serde_json::json;

const GROUP: &str = "limits that sandboxes share";

/// A bomb: the attempt of `shared_limits.h`, the units that it tries to take, and those that a neighbour needs.
struct SharedLimitBomb {
    name: &'static str,
    attempt: &'static str,
    wanted: u32,
    needed: u32,
}

const BOMBS: [SharedLimitBomb; 6] = [
    SharedLimitBomb { name: "inotify instances", attempt: "inotify-instances", wanted: 1000, needed: 3 },
    SharedLimitBomb { name: "inotify watches", attempt: "inotify-watches", wanted: 30_000, needed: 10 },
    SharedLimitBomb { name: "pending signals", attempt: "pending-signals", wanted: 1_000_000, needed: 10 },
    SharedLimitBomb { name: "message queues", attempt: "message-queues", wanted: 100, needed: 1 },
    SharedLimitBomb { name: "terminals", attempt: "terminals", wanted: 5000, needed: 3 },
    SharedLimitBomb { name: "TCP buffers", attempt: "tcp-megabytes", wanted: 700, needed: 1 },
];

async fn run_script(server: &LocalServer, id: &str, script: &str) -> ExecResult {
    let body =
        json!({ "shell": format!("cd /tmp\n{script}"), "env": { "CALLS": CALLS_PATH_IN_SANDBOX }, "timeout_s": 120 });
    server.run_exec(id, body).await
}

/// Starts the bomb in the background; returns the error that stopped it, or `all`.
async fn start_bomb(server: &LocalServer, id: &str, bomb: &SharedLimitBomb) -> String {
    let script = format!(
        "rm -f held refused; (\"$CALLS\" {} {} /tmp/held >refused 2>&1 &)\n\
         until [ -s held ] || [ -s refused ]; do sleep 0.05; done; cat held refused 2>/dev/null",
        bomb.attempt, bomb.wanted
    );
    run_script(server, id, &script).await.stdout.trim().to_owned()
}

pub async fn run_shared_limit_attempts(server: &LocalServer, table: &mut AttemptTable) {
    let limits = json!({ "resources": { "memory_gb": 0.5, "pids": 100 } });
    let (bombed, neighbour) = (server.create_idle_sandbox(limits).await, server.create_idle_sandbox(json!({})).await);
    for id in [&bombed, &neighbour] {
        table.install_calls(server, id).await;
    }
    // The kernel has one limit for the whole machine, so that no sandbox may have any.
    let contexts = new_attempt("AIO contexts", "calls aio-contexts 1", &["ENOSYS"], SuccessProof::Host);
    table.run_attempt(server, &bombed, GROUP, contexts).await;
    for bomb in BOMBS {
        let held = start_bomb(server, &bombed, &bomb).await;
        let small = format!("\"$CALLS\" {} {}", bomb.attempt, bomb.needed);
        let beside = run_script(server, &neighbour, &small).await.stdout.trim().to_owned();
        let on_host = table.run_calls_on_host(&[bomb.attempt, &bomb.needed.to_string()]);
        run_script(server, &bombed, "pkill -KILL calls; rm -rf watched held refused").await;
        // Landlock forbids message queues to all agents.
        let is_forbidden = held.contains("EACCES") && beside.contains("EACCES");
        // Buffers are memory, so the sandbox's own limit stops the bomb too.
        let has_limit = bomb.attempt == "tcp-megabytes" && host_state::has_memory_limit(&bombed);
        let is_stopped = !has_limit || held != "all";
        let works = (beside.starts_with("DONE") || is_forbidden) && on_host.starts_with("DONE") && is_stopped;
        let proof = format!("beside it: {beside}, on the host: {on_host}");
        table.record_bomb(GROUP, bomb.name, format!("{} units: {held}", bomb.wanted), &proof, works);
    }
    for id in [&bombed, &neighbour] {
        assert_eq!(server.run_shell(id, "echo alive").await.expect_success(), "alive\n");
    }
}
