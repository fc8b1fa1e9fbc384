//! Many at once, and one after the other: each is whole, and nothing stays.

use atoll_tests::local::{Ground, assert_whole, said};
use atoll_tests::scale;
use futures_util::future::join_all;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_all_complete() {
    let ground = Ground::start();
    let count = scale::scaled(300);
    let made =
        (0..count).map(|number| ground.make(json!({ "prompt": format!("say {number}\nedit a.txt x\nrun cat a.txt") })));
    let ids = join_all(made).await;
    for (number, id) in ids.iter().enumerate() {
        let row = ground.ended(id).await;
        assert_eq!(row["outcome"], "succeeded", "{row}");
        let events = ground.admin.all_events(id).await;
        assert_whole(&events);
        assert_eq!(said(&events), [number.to_string()], "each has its own");
    }
    for id in &ids {
        ground.gone(id).await;
    }
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stopped_at_any_moment_is_gone() {
    let ground = Ground::start();
    for round in 0..scale::scaled(100) {
        let id = ground.make(json!({ "prompt": "say hi\nrun sleep 69" })).await;
        tokio::time::sleep(std::time::Duration::from_millis(round as u64 * 37 % 400)).await;
        let results = ["take", "discard"][round % 2];
        ground.admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": results })).await.expect(200);
        let row = ground.ended(&id).await;
        assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("cancelled")), "{row}");
        ground.gone(&id).await;
    }
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_removed_by_force_at_any_moment_is_gone() {
    let ground = Ground::start();
    for round in 0..scale::scaled(100) {
        let id = ground.make(json!({ "prompt": "say hi\nrun sleep 70" })).await;
        tokio::time::sleep(std::time::Duration::from_millis(round as u64 * 41 % 400)).await;
        ground.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect(200);
        ground.gone(&id).await;
    }
    ground.leave().await;
}
