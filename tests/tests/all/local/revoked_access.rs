//! Revoked tokens and memberships end open connections.

use atoll_test_wait::WAIT_TIMEOUT;
use atoll_tests::actor::ClientWebSocket;
use atoll_tests::local::LocalServer;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

/// Reads until the socket closes, and returns the code of the last problem frame.
async fn read_close_code(socket: &mut ClientWebSocket) -> String {
    let mut code = String::new();
    loop {
        match tokio::time::timeout(WAIT_TIMEOUT, socket.next()).await.expect("the socket stays open") {
            Some(Ok(Message::Text(text))) => {
                let frame: Value = serde_json::from_str(&text).unwrap();
                if frame["type"] == "problem" {
                    code = frame["code"].as_str().unwrap().to_owned();
                }
            }
            Some(Ok(Message::Close(_)) | Err(_)) | None => return code,
            Some(Ok(_)) => {}
        }
    }
}

async fn wait_until_stream_ends(mut stream: reqwest::Response) {
    let reading = async { while let Ok(Some(_)) = stream.chunk().await {} };
    tokio::time::timeout(WAIT_TIMEOUT, reading).await.expect("the stream stays open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_access_closes_open_terminals_and_streams() {
    let server = LocalServer::start();
    let project = server.admin.post("/projects", json!({ "name": "closed" })).await.expect_status(201)["id"].clone();
    let id = server.create_idle_sandbox(json!({ "project_id": project })).await;
    let user = server.admin.post("/users", json!({ "name": "guest", "role": "member" })).await.expect_status(201)["id"]
        .clone();
    let member = format!("/projects/{}/members/{}", project.as_str().unwrap(), user.as_str().unwrap());
    server.admin.put(&member, json!({ "role": "member" })).await.expect_status(200);
    let token = |name: &'static str| {
        let response = server.admin.post("/tokens", json!({ "name": name, "user_id": user }));
        async move { response.await.expect_status(201) }
    };
    let (valid, revoked_token) = (token("kept").await, token("lost").await);
    let (valid, revoked) = (
        server.admin.with_token(valid["token"].as_str().unwrap()),
        server.admin.with_token(revoked_token["token"].as_str().unwrap()),
    );
    let path = format!("/sandboxes/{id}/terminal");
    let (mut member_terminal, mut revoked_terminal) =
        (valid.open_web_socket(&path).await, revoked.open_web_socket(&path).await);
    let mut events = valid.open_web_socket("/events/ws").await;
    let all = json!({ "type": "subscribe", "sandboxes": "*" });
    events.send(Message::text(all.to_string())).await.unwrap();
    let stream = valid.request(reqwest::Method::GET, &format!("/sandboxes/{id}/events/stream"));
    let stream = stream.send().await.unwrap();
    assert_eq!(stream.status(), 200);
    let mut admin_terminal = server.admin.open_web_socket(&path).await;

    server.admin.delete(&format!("/tokens/{}", revoked_token["id"].as_str().unwrap())).await.expect_status(200);
    server.admin.delete(&member).await.expect_status(200);
    let ended = tokio::join!(
        read_close_code(&mut member_terminal),
        read_close_code(&mut revoked_terminal),
        read_close_code(&mut events),
        wait_until_stream_ends(stream)
    );
    assert_eq!((ended.0.as_str(), ended.1.as_str(), ended.2.as_str()), ("not_found", "unauthorized", "forbidden"));
    // Connections of other users stay open.
    admin_terminal.send(Message::binary(b"echo st''ill here; exit 3\r".to_vec())).await.unwrap();
    loop {
        match tokio::time::timeout(WAIT_TIMEOUT, admin_terminal.next()).await.unwrap() {
            Some(Ok(Message::Text(text))) if text.contains("exited") => break,
            Some(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    server.stop_and_check().await;
}
