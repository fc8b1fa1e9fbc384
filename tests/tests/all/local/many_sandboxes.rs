//! Many sandboxes at once, and many in a row: each one completes or is removed, and leaves nothing.

use atoll_tests::local::{LocalServer, agent_messages, assert_log_is_complete};
use atoll_tests::scale;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_concurrent_sandboxes_all_complete() {
    let server = LocalServer::start();
    let count = scale::scale_count(300);
    let requests = (0..count)
        .map(|number| server.create_sandbox(json!({ "prompt": format!("say {number}\nedit a.txt x\nrun cat a.txt") })));
    let ids = join_all(requests).await;
    for (number, id) in ids.iter().enumerate() {
        let row = server.wait_until_ended(id).await;
        assert_eq!(row["outcome"], "succeeded", "{row}");
        let events = server.admin.all_events(id).await;
        assert_log_is_complete(&events);
        assert_eq!(agent_messages(&events), [number.to_string()], "each sandbox must have its own message");
    }
    for id in &ids {
        server.wait_until_removed(id).await;
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_stopped_at_any_moment_is_removed() {
    let server = LocalServer::start();
    let stop_one = async |round: usize| {
        let id = server.create_sandbox(json!({ "prompt": "say hi\nrun sleep 69" })).await;
        tokio::time::sleep(Duration::from_millis(round as u64 * 37 % 400)).await;
        let results = ["take", "discard"][round % 2];
        server.admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": results })).await.expect_status(200);
        let row = server.wait_until_ended(&id).await;
        assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("cancelled")), "{row}");
        server.wait_until_removed(&id).await;
    };
    // Most of a round is waiting.
    stream::iter(0..scale::scale_count(100)).for_each_concurrent(5, stop_one).await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_deleted_by_force_at_any_moment_is_removed() {
    let server = LocalServer::start();
    for round in 0..scale::scale_count(100) {
        let id = server.create_sandbox(json!({ "prompt": "say hi\nrun sleep 70" })).await;
        tokio::time::sleep(Duration::from_millis(round as u64 * 41 % 400)).await;
        server.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect_status(200);
        server.wait_until_removed(&id).await;
    }
    server.stop_and_check().await;
}
