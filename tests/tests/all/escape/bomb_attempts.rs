//! Attempts to exhaust resources. Each fails in a sandbox with narrow limits and succeeds in one with wide limits.

use super::attempt_table::{AttemptTable, SuccessProof, new_attempt};
use atoll_tests::local::{LocalServer, event_data, host_state};
use serde_json::json;

const GROUP: &str = "resource exhaustion";

/// The notices of limits that this machine cannot enforce for the sandbox.
async fn missing_limits(server: &LocalServer, id: &str) -> String {
    let events = server.admin.all_events(id).await;
    let texts = event_data(&events, "sandbox.notice").into_iter().filter_map(|data| data["text"].as_str());
    texts.filter(|text| text.starts_with("not limited")).collect()
}

pub async fn run_bomb_attempts(server: &LocalServer, table: &mut AttemptTable) {
    let narrow =
        server.create_idle_sandbox(json!({ "resources": { "pids": 64, "memory_gb": 0.2, "disk_gb": 0.05 } })).await;
    let wide =
        server.create_idle_sandbox(json!({ "resources": { "pids": 600, "memory_gb": 1.5, "disk_gb": 2.0 } })).await;
    for id in [&narrow, &wide] {
        table.install_calls(server, id).await;
    }
    let unlimited = missing_limits(server, &narrow).await;
    let wider = || SuccessProof::InSandbox(wide.clone());
    if host_state::count_agent_processes(&narrow).is_some() {
        table
            .run_attempt(server, &narrow, GROUP, new_attempt("300 processes", "calls forks 300", &["EAGAIN"], wider()))
            .await;
    } else {
        table.record_skipped(GROUP, "300 processes", "no process limit on this machine");
    }
    if host_state::has_memory_limit(&narrow) {
        let bomb = new_attempt("700 MB of memory", "calls allocate 700", &["SIGKILL"], wider());
        table.run_attempt(server, &narrow, GROUP, bomb).await;
        // Files in /dev/shm count as memory, and no process's end frees them.
        let files = "calls fill 700 /dev/shm/much; rm -f /dev/shm/much";
        let bomb = new_attempt("700 MB of files in memory", files, &["SIGKILL", "ENOSPC"], wider());
        table.run_attempt(server, &narrow, GROUP, bomb).await;
    } else {
        table.record_skipped(GROUP, "700 MB of memory", "no memory limit on this machine");
    }
    let descriptors = new_attempt("a million descriptors", "calls descriptors 1000000", &["EMFILE"], wider());
    table.run_attempt(server, &narrow, GROUP, descriptors.with_proof_script("calls descriptors 1000")).await;
    if unlimited.contains("disk space") {
        table.record_skipped(GROUP, "400 MB of disk", &unlimited);
        table.record_skipped(GROUP, "60,000 empty files", &unlimited);
    } else {
        // Write slowly: where disk use is only monitored, the server scans every five to ten seconds.
        let script = |pace: &str| format!("calls fill 400 /workspace/much {pace}; rm -f /workspace/much");
        let refused = &["SIGKILL", "SIGTERM", "ENOSPC", "EDQUOT"];
        let bomb = new_attempt("400 MB of disk", script("60000"), refused, wider()).with_proof_script(script("0"));
        table.run_attempt(server, &narrow, GROUP, bomb).await;
        let script = |pace: &str| {
            format!("mkdir -p /workspace/many; calls many-files 60000 /workspace/many {pace}; rm -rf /workspace/many")
        };
        let bomb = new_attempt("60,000 empty files", script("400"), refused, wider()).with_proof_script(script("0"));
        table.run_attempt(server, &narrow, GROUP, bomb).await;
    }
    for id in [&narrow, &wide] {
        let alive = host_state::find_worker_process(id).is_none_or(|worker| worker.is_alive());
        assert!(alive && server.get_sandbox(id).await["state"] == "running", "the sandbox {id} still runs");
        assert_eq!(server.run_shell(id, "echo alive").await.expect_success(), "alive\n");
    }
}
