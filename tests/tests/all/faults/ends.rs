//! A second server on the same data, and the end of a server.

use super::{PATIENCE, serve, temporary};
use atoll_tests::actor::Actor;
use atoll_tests::process;
use atoll_tests::worker::HandWorker;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

#[test]
fn a_second_server_on_the_same_data_says_who_holds_it() {
    let dir = temporary();
    let server = serve(dir.path(), "", &[]);
    let mut command = process::command("atoll");
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.path().join("data"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = process::spawn(command).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let said = String::from_utf8(output.stderr).unwrap();
    let error: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(error["code"], "locked", "{said}");
    let holder = format!("held by atoll serve (pid {}, ", server.pid());
    assert!(error["detail"].as_str().unwrap().contains(&holder), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_told_to_stop_lets_everybody_go() {
    let dir = temporary();
    let mut server = serve(dir.path(), "", &[]);
    let admin = Actor::new(&server.url, Some(&server.token()));
    let sandbox = admin.external(json!({})).await;
    let worker = HandWorker::new(&admin, &sandbox);
    worker.heartbeat("starting").await.expect(200);

    // A reader of each kind, a worker's stream, and a worker's question that waits for a message.
    let path = format!("/sandboxes/{}/events/stream?since=0", sandbox.id);
    let response = admin.request(reqwest::Method::GET, &path).send().await.unwrap();
    let mut events = response.bytes_stream();
    assert!(events.next().await.unwrap().is_ok());
    let mut reader = admin.web_socket("/events/ws").await;
    let subscribe = json!({ "type": "subscribe", "sandboxes": [sandbox.id], "since": { (&sandbox.id): 0 } });
    assert!(reader.send(Message::text(subscribe.to_string())).await.is_ok());
    assert!(reader.next().await.unwrap().is_ok());
    let path = format!("/sandboxes/{}/stream?stream={}", sandbox.id, worker.stream);
    let mut stream = worker.actor.web_socket(&path).await;
    let asking = {
        let worker = worker.clone();
        tokio::spawn(async move {
            let body = json!({ "stream": worker.stream, "max": 1, "wait_s": 60 });
            worker.actor.post(&format!("/sandboxes/{}/messages/lease", worker.id), body).await
        })
    };
    tokio::time::sleep(Duration::from_millis(200)).await;

    server.terminate();
    let ended = tokio::task::spawn_blocking(move || server.wait(PATIENCE)).await.unwrap();
    assert_eq!(ended.and_then(|status| status.code()), Some(0));
    while let Some(chunk) = events.next().await {
        assert!(chunk.is_ok(), "the event stream ends, it does not break: {chunk:?}");
    }
    let mut told = false;
    while let Some(Ok(message)) = reader.next().await {
        let Message::Text(text) = message else { continue };
        let frame: Value = serde_json::from_str(text.as_str()).unwrap();
        told |= frame["type"] == "problem" && frame["code"] == "shutting_down";
    }
    assert!(told, "a reader is told that the server stops");
    while let Some(Ok(_)) = stream.next().await {}
    let answer = asking.await.unwrap();
    assert!(answer.status == 200 && answer.body["items"] == json!([]), "{}", answer.body);
}
