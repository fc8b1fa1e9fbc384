//! Taking more than one's share. What is refused to one sandbox is given to another whose limits are wider.

use super::table::{Proof, Table, row};
use atoll_tests::local::{Ground, told, traces};
use serde_json::json;

const GROUP: &str = "bombs";

/// What a sandbox was told not to be held to here.
async fn unlimited(ground: &Ground, id: &str) -> String {
    let events = ground.admin.all_events(id).await;
    let texts = told(&events, "sandbox.notice").into_iter().filter_map(|data| data["text"].as_str());
    texts.filter(|text| text.starts_with("not limited")).collect()
}

pub async fn attempts(ground: &Ground, table: &mut Table) {
    let narrow = ground.kept(json!({ "resources": { "pids": 64, "memory_gb": 0.2, "disk_gb": 0.05 } })).await;
    let wide = ground.kept(json!({ "resources": { "pids": 600, "memory_gb": 1.5, "disk_gb": 2.0 } })).await;
    for id in [&narrow, &wide] {
        table.equip(ground, id).await;
    }
    let unlimited = unlimited(ground, &narrow).await;
    let wider = || Proof::In(wide.clone());
    if traces::process_count(&narrow).is_some() {
        table.attempt(ground, &narrow, GROUP, row("300 processes", "calls forks 300", &["EAGAIN"], wider())).await;
    } else {
        table.skipped(GROUP, "300 processes", "nothing here bounds the number of processes");
    }
    if traces::limits_memory(&narrow) {
        let bomb = row("700 MB of memory", "calls allocate 700", &["SIGKILL"], wider());
        table.attempt(ground, &narrow, GROUP, bomb).await;
        // In memory too, and nobody's whose end would free it.
        let files = "calls fill 700 /dev/shm/much; rm -f /dev/shm/much";
        let bomb = row("700 MB of files in memory", files, &["SIGKILL", "ENOSPC"], wider());
        table.attempt(ground, &narrow, GROUP, bomb).await;
    } else {
        table.skipped(GROUP, "700 MB of memory", "nothing here enforces a memory limit");
    }
    let descriptors = row("a million descriptors", "calls descriptors 1000000", &["EMFILE"], wider());
    table.attempt(ground, &narrow, GROUP, descriptors.elsewhere("calls descriptors 1000")).await;
    if unlimited.contains("disk space") {
        table.skipped(GROUP, "400 MB of disk", &unlimited);
        table.skipped(GROUP, "60,000 empty files", &unlimited);
    } else {
        // Slowly enough that a bound which is only watched is seen to be crossed, also on a busy machine and where nobody
        // can be seen to work: every five seconds then, or ten.
        let script = |pace: &str| format!("calls fill 400 /workspace/much {pace}; rm -f /workspace/much");
        let refused = &["SIGKILL", "SIGTERM", "ENOSPC", "EDQUOT"];
        let bomb = row("400 MB of disk", script("60000"), refused, wider()).elsewhere(script("0"));
        table.attempt(ground, &narrow, GROUP, bomb).await;
        let script = |pace: &str| {
            format!("mkdir -p /workspace/many; calls many-files 60000 /workspace/many {pace}; rm -rf /workspace/many")
        };
        let bomb = row("60,000 empty files", script("400"), refused, wider()).elsewhere(script("0"));
        table.attempt(ground, &narrow, GROUP, bomb).await;
    }
    for id in [&narrow, &wide] {
        let alive = traces::worker(id).is_none_or(|worker| worker.is_alive());
        assert!(alive && ground.row(id).await["state"] == "running", "the sandbox goes on");
        assert_eq!(ground.shell(id, "echo well").await.well(), "well\n");
    }
}
