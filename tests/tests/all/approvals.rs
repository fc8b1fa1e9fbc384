//! What agents wait for, as lists show it.

use atoll_tests::database::Kind;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use atoll_tests::worker::{HandWorker, event};
use serde_json::{Value, json};

on_both_databases!(one_that_asks_for_everything_buries_nothing);

async fn one_that_asks_for_everything_buries_nothing(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let (loud, quiet) = (admin.external(json!({})).await, admin.external(json!({})).await);
    let (first, second) = (HandWorker::new(&admin, &loud), HandWorker::new(&admin, &quiet));
    for worker in [&first, &second] {
        worker.heartbeat("starting").await.expect(200);
    }
    let asks =
        |key: i64| event(key, "approval.requested", json!({ "approval_id": format!("apr_{key}"), "kind": "tool" }));
    first.batch((1..=300).map(asks).collect()).await.expect(200);
    second.batch(vec![asks(1)]).await.expect(200);
    let all = admin.everything("/approvals", 30).await;
    let of = |id: &str| all.iter().filter(|item| item["sandbox_id"] == id).collect::<Vec<&Value>>();
    assert_eq!((of(&loud.id).len(), of(&quiet.id).len()), (100, 1), "one sandbox has a bound, others are seen");
    let mut names: Vec<&str> = of(&loud.id).iter().map(|item| item["approval_id"].as_str().unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 100, "each once");
    assert_eq!(admin.everything(&format!("/sandboxes/{}/approvals", loud.id), 7).await.len(), 100);
    let cursor = admin.get("/approvals?limit=1").await.expect(200)["next_cursor"].as_str().unwrap().to_owned();
    admin.get(&format!("/projects?cursor={cursor}")).await.refused(400, "bad_cursor");
    admin.get("/approvals?cursor=bm9uc2Vuc2U").await.refused(400, "bad_cursor");
    // One less that waits is room for one more, and a known one may ask again.
    admin.post(&format!("/sandboxes/{}/approvals/apr_7", loud.id), json!({ "decision": "allow" })).await.expect(200);
    first.batch(vec![asks(301)]).await.expect(200);
    admin.post(&format!("/sandboxes/{}/approvals/apr_301", loud.id), json!({ "decision": "deny" })).await.expect(200);
    server.stop().await;
}
