//! Rights that are taken away end what is open.

use atoll_tests::actor::Socket;
use atoll_tests::local::{Ground, PATIENCE};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

/// The code of the problem that it is closed with.
async fn closed(socket: &mut Socket) -> String {
    let mut code = String::new();
    loop {
        match tokio::time::timeout(PATIENCE, socket.next()).await.expect("it stays open") {
            Some(Ok(Message::Text(text))) => {
                let word: Value = serde_json::from_str(&text).unwrap();
                if word["type"] == "problem" {
                    code = word["code"].as_str().unwrap().to_owned();
                }
            }
            Some(Ok(Message::Close(_)) | Err(_)) | None => return code,
            Some(Ok(_)) => {}
        }
    }
}

async fn over(mut stream: reqwest::Response) {
    let reading = async { while let Ok(Some(_)) = stream.chunk().await {} };
    tokio::time::timeout(PATIENCE, reading).await.expect("the stream goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_no_longer_see_or_type_is_shown_out() {
    let ground = Ground::start();
    let project = ground.admin.post("/projects", json!({ "name": "closed" })).await.expect(201)["id"].clone();
    let id = ground.kept(json!({ "project_id": project })).await;
    let user =
        ground.admin.post("/users", json!({ "name": "guest", "role": "member" })).await.expect(201)["id"].clone();
    let member = format!("/projects/{}/members/{}", project.as_str().unwrap(), user.as_str().unwrap());
    ground.admin.put(&member, json!({ "role": "member" })).await.expect(200);
    let token = |name: &'static str| {
        let asked = ground.admin.post("/tokens", json!({ "name": name, "user_id": user }));
        async move { asked.await.expect(201) }
    };
    let (kept, lost) = (token("kept").await, token("lost").await);
    let (kept, leaked) = (
        ground.admin.with_token(kept["token"].as_str().unwrap()),
        ground.admin.with_token(lost["token"].as_str().unwrap()),
    );
    let path = format!("/sandboxes/{id}/terminal");
    let (mut typed, mut stolen) = (kept.web_socket(&path).await, leaked.web_socket(&path).await);
    let mut events = kept.web_socket("/events/ws").await;
    let all = json!({ "type": "subscribe", "sandboxes": "*" });
    events.send(Message::text(all.to_string())).await.unwrap();
    let stream = kept.request(reqwest::Method::GET, &format!("/sandboxes/{id}/events/stream"));
    let stream = stream.send().await.unwrap();
    assert_eq!(stream.status(), 200);
    let mut still = ground.admin.web_socket(&path).await;

    ground.admin.delete(&format!("/tokens/{}", lost["id"].as_str().unwrap())).await.expect(200);
    ground.admin.delete(&member).await.expect(200);
    let ended = tokio::join!(closed(&mut typed), closed(&mut stolen), closed(&mut events), over(stream));
    assert_eq!((ended.0.as_str(), ended.1.as_str(), ended.2.as_str()), ("not_found", "unauthorized", "forbidden"));
    // Who may, stays.
    still.send(Message::binary(b"echo st''ill here; exit 3\r".to_vec())).await.unwrap();
    loop {
        match tokio::time::timeout(PATIENCE, still.next()).await.unwrap() {
            Some(Ok(Message::Text(text))) if text.contains("exited") => break,
            Some(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    ground.leave().await;
}
