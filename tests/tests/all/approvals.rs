//! Lists of pending approvals.

use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use serde_json::{Value, json};

on_both_databases!(pending_approvals_are_capped_per_sandbox);

async fn pending_approvals_are_capped_per_sandbox(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let (busy, other) =
        (admin.create_external_sandbox(json!({})).await, admin.create_external_sandbox(json!({})).await);
    let (first, second) = (ManualWorker::new(&admin, &busy), ManualWorker::new(&admin, &other));
    for worker in [&first, &second] {
        worker.send_heartbeat("starting").await.expect_status(200);
    }
    let approval_request = |key: i64| {
        build_event(key, "approval.requested", json!({ "approval_id": format!("apr_{key}"), "kind": "tool" }))
    };
    first.send_batch((1..=300).map(approval_request).collect()).await.expect_status(200);
    second.send_batch(vec![approval_request(1)]).await.expect_status(200);
    let all = admin.list_all("/approvals", 30).await;
    let approvals_of = |id: &str| all.iter().filter(|item| item["sandbox_id"] == id).collect::<Vec<&Value>>();
    assert_eq!((approvals_of(&busy.id).len(), approvals_of(&other.id).len()), (100, 1));
    let mut ids: Vec<&str> = approvals_of(&busy.id).iter().map(|item| item["approval_id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 100, "an approval is listed twice");
    assert_eq!(admin.list_all(&format!("/sandboxes/{}/approvals", busy.id), 7).await.len(), 100);
    let cursor = admin.get("/approvals?limit=1").await.expect_status(200)["next_cursor"].as_str().unwrap().to_owned();
    admin.get(&format!("/projects?cursor={cursor}")).await.expect_problem(400, "bad_cursor");
    admin.get("/approvals?cursor=bm9uc2Vuc2U").await.expect_problem(400, "bad_cursor");
    // One id finds the approvals of every sandbox, in any state.
    assert_eq!(admin.get("/approvals?id=apr_1").await.expect_status(200)["items"].as_array().unwrap().len(), 2);
    assert_eq!(admin.get("/approvals?id=apr_none").await.expect_status(200)["items"], json!([]));
    // A decided approval makes room for a new one.
    admin
        .post(&format!("/sandboxes/{}/approvals/apr_7", busy.id), json!({ "decision": "allow" }))
        .await
        .expect_status(200);
    let decided = admin.get("/approvals?id=apr_7").await.expect_status(200);
    assert_eq!(decided["items"][0]["state"], "answered", "{decided}");
    first.send_batch(vec![approval_request(301)]).await.expect_status(200);
    admin
        .post(&format!("/sandboxes/{}/approvals/apr_301", busy.id), json!({ "decision": "deny" }))
        .await
        .expect_status(200);
    let path = |id: &str| format!("/sandboxes/{}/approvals/{id}", busy.id);
    // Allowing an input requires its hash; the answer to another input allows nothing.
    let request = |key: i64, id: &str, hash: &str| {
        let data = json!({ "approval_id": id, "kind": "permission", "tool": "Bash", "sha256": hash });
        build_event(key, "approval.requested", data)
    };
    admin.post(&path("apr_8"), json!({ "decision": "deny" })).await.expect_status(200);
    first.send_batch(vec![request(302, "apr_x", "aa"), request(303, "apr_y", "bb")]).await.expect_status(200);
    first.send_batch(vec![request(304, "apr_x", "cc")]).await.expect_status(200);
    admin.post(&path("apr_x"), json!({ "decision": "allow" })).await.expect_problem(422, "invalid");
    let outdated = json!({ "decision": "allow", "sha256": "aa" });
    admin.post(&path("apr_x"), outdated).await.expect_problem(409, "approval_changed");
    for _ in 0..2 {
        let allowed = json!({ "decision": "allow", "sha256": "cc" });
        assert_eq!(admin.post(&path("apr_x"), allowed).await.expect_status(200)["state"], "answered");
    }
    admin.post(&path("apr_y"), json!({ "decision": "deny" })).await.expect_status(200);
    server.stop().await;
}
