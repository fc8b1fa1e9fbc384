//! Texts that are too long for an event: the event shows their start, and a blob holds the whole.

use atoll_test_wait::wait_until;
use atoll_tests::local::spool::spooled_messages;
use atoll_tests::local::{LocalServer, event_data, host_state, is_root, report_skipped};
use atoll_tests::process;
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;
use tokio::task::block_in_place;

/// Runs `atoll` with the server's data directory; returns its output.
fn run_atoll(server: &LocalServer, arguments: &[&str]) -> String {
    let done = process::program_command("atoll").args(arguments).env("ATOLL_DATA_DIR", server.data_dir()).output();
    let done = done.unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// The output of `seq 1 N`.
fn counted_lines(count: u32) -> String {
    (1..=count).map(|number| format!("{number}\n")).collect()
}

async fn read_blob(server: &LocalServer, id: &str, name: &Value) -> String {
    let name = name.as_str().unwrap_or_else(|| panic!("no blob: {name}"));
    let request = server.admin.request(Method::GET, &format!("/sandboxes/{id}/blobs/{name}"));
    let response = request.send().await.unwrap().error_for_status().unwrap();
    response.text().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blobs_hold_the_whole_of_long_texts() {
    let server = LocalServer::start();
    let (output, words) = (counted_lines(60_000), "word ".repeat(20_000));
    let prompt = format!("run seq 1 60000\nsay {words}\nedit big.txt {words}");
    let id = server.create_sandbox(json!({ "prompt": prompt })).await;
    assert_eq!(server.wait_until_ended(&id).await["outcome"], "succeeded");
    let events = server.admin.all_events(&id).await;

    let ended = event_data(&events, "agent.tool_completed")[0];
    assert_eq!((&ended["truncated"], &ended["output_bytes"]), (&json!(true), &json!(output.len())), "{ended}");
    assert!(output.starts_with(ended["output"].as_str().unwrap()));
    assert_eq!(read_blob(&server, &id, &ended["output_blob"]).await, output);

    let message = event_data(&events, "agent.message")[0];
    assert_eq!((&message["truncated"], &message["text_bytes"]), (&json!(true), &json!(words.trim().len())));
    assert_eq!(read_blob(&server, &id, &message["text_blob"]).await, words.trim());

    let edit = event_data(&events, "agent.file_edited")[0];
    let diff = read_blob(&server, &id, &edit["full_diff_blob"]).await;
    assert_eq!((&edit["full_diff_truncated"], &edit["full_diff_bytes"]), (&json!(true), &json!(diff.len())));
    assert!(diff.ends_with(&format!("\n+{}\n", words.trim())) && diff.starts_with("--- /dev/null\n"));
    let input = event_data(&events, "agent.tool_use").into_iter().find(|call| call["tool"] == "Write").unwrap();
    let whole: Value = serde_json::from_str(&read_blob(&server, &id, &input["input_blob"]).await).unwrap();
    assert_eq!((&input["truncated"], whole["content"].as_str().unwrap().trim()), (&json!(true), words.trim()));

    block_in_place(|| {
        let log = run_atoll(&server, &["logs", &id]);
        let hint = format!("atoll sandbox blob {id} {}", ended["output_blob"].as_str().unwrap());
        assert!(log.contains(&hint) && log.contains("the whole has 340.7 KiB") && !log.contains("\n    60000\n"));
        let full = run_atoll(&server, &["logs", &id, "--full"]);
        assert!(full.contains("\n    60000\n") && !full.contains("truncated"), "{}", &full[..2_000]);
        let printed = run_atoll(&server, &["sandbox", "blob", &id, ended["output_blob"].as_str().unwrap()]);
        assert_eq!(printed, output);
    });
    server.stop_and_check().await;
}

fn has_blobs(spool: &Path) -> bool {
    let mut entries = std::fs::read_dir(spool).into_iter().flatten().flatten();
    entries.any(|entry| entry.path().extension().is_some_and(|extension| extension == "blob"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_takes_the_blobs_of_a_killed_worker() {
    if !is_root() {
        return report_skipped("the kill of a worker", "only root has cgroups to find its process by");
    }
    let mut server = LocalServer::start();
    let prompt = "say ready\nrun while [ ! -e go ]; do sleep 0.05; done; seq 1 60000\nsay spooled\nwait 600";
    let id = server.create_sandbox(json!({ "prompt": prompt })).await;
    server.wait_for_event(&id, |event| event["type"] == "agent.tool_use").await;
    let spool = server.sandbox_dir(&id).join("spool");
    block_in_place(|| {
        server.process.kill();
        std::fs::write(server.workspace_dir(&id).join("go"), "").unwrap();
        wait_until("the blob to be in the spool", || {
            has_blobs(&spool) && spooled_messages(&spool).contains(&"spooled".to_owned())
        });
        let worker = host_state::find_worker_process(&id).unwrap();
        assert!(worker.kill() && worker.ends_in_time());
        assert!(has_blobs(&spool), "the kill leaves the blob");
        server.process.restart();
    });
    assert_eq!(server.wait_until_ended(&id).await["state"], "failed");
    let events = server.admin.all_events(&id).await;
    let ended = event_data(&events, "agent.tool_completed")[0];
    assert_eq!(read_blob(&server, &id, &ended["output_blob"]).await, counted_lines(60_000));
    assert!(!has_blobs(&spool), "the server has removed what it stored");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_shows_a_long_input_and_binds_its_hash() {
    let server = LocalServer::start();
    let words = "word ".repeat(30_000);
    let policy = json!({ "rules": [{ "tools": ["Write"], "then": "ask" }] });
    let prompt = format!("edit big.txt {words}\nrun wc -c big.txt");
    let id = server.create_sandbox(json!({ "prompt": prompt, "policy": policy })).await;
    server.wait_until(&id, |row| row["activity"] == "waiting_approval").await;
    let request = server.wait_for_event(&id, |event| event["type"] == "approval.requested").await["data"].clone();
    let (approval, hash) = (request["approval_id"].as_str().unwrap(), request["sha256"].as_str().unwrap());
    assert_eq!(request["input_truncated"], true, "{request}");
    let whole = read_blob(&server, &id, &request["sha256"]).await;
    assert_eq!(request["input_bytes"], whole.len());
    let input: Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(input["content"].as_str().unwrap().trim(), words.trim());
    block_in_place(|| {
        let shown = run_atoll(&server, &["approvals", approval]);
        assert!(shown.contains(words.trim()) && shown.contains("big.txt"), "{}", &shown[..500]);
    });
    let path = format!("/sandboxes/{id}/approvals/{approval}");
    let other = json!({ "decision": "allow", "sha256": "0".repeat(64) });
    server.admin.post(&path, other).await.expect_problem(409, "approval_changed");
    server.admin.post(&path, json!({ "decision": "allow" })).await.expect_problem(422, "invalid");
    server.admin.post(&path, json!({ "decision": "allow", "sha256": hash })).await.expect_status(200);
    assert_eq!(server.wait_until_ended(&id).await["outcome"], "succeeded");
    let events = server.admin.all_events(&id).await;
    let counted = event_data(&events, "agent.tool_completed")[1]["output"].as_str().unwrap().to_owned();
    assert_eq!(counted, format!("{} big.txt\n", words.trim().len() + 1), "the approved input is what ran");
    server.stop_and_check().await;
}
