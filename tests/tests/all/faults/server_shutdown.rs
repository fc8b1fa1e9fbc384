//! A second server on the same data, and the shutdown of a server.

use super::{create_temp_dir, start_server};
use atoll_tests::actor::Actor;
use atoll_tests::manual_worker::ManualWorker;
use atoll_tests::process;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::process::Stdio;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

#[test]
fn a_second_server_on_the_same_data_names_the_lock_holder() {
    let dir = create_temp_dir();
    let server = start_server(dir.path(), "", &[]);
    let mut command = process::program_command("atoll");
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.path().join("data"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = process::spawn_process(command).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let stderr = String::from_utf8(output.stderr).unwrap();
    let error: Value = serde_json::from_str(stderr.lines().last().unwrap()).unwrap();
    assert_eq!(error["code"], "locked", "{stderr}");
    let holder = format!("held by atoll serve (pid {} on ", server.pid());
    assert!(error["detail"].as_str().unwrap().contains(&holder), "{stderr}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_server_closes_every_connection_cleanly() {
    let dir = create_temp_dir();
    let mut server = start_server(dir.path(), "", &[]);
    let admin = Actor::new(&server.url, Some(&server.admin_token()));
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("starting").await.expect_status(200);

    // Open both kinds of event readers, a worker's stream, and a lease request that waits for a message.
    let path = format!("/sandboxes/{}/events/stream?since=0", sandbox.id);
    let response = admin.request(reqwest::Method::GET, &path).send().await.unwrap();
    let mut events = response.bytes_stream();
    assert!(events.next().await.unwrap().is_ok());
    let mut reader = admin.open_web_socket("/events/ws").await;
    let subscribe = json!({ "type": "subscribe", "sandboxes": [sandbox.id], "since": { (&sandbox.id): 0 } });
    assert!(reader.send(Message::text(subscribe.to_string())).await.is_ok());
    assert!(reader.next().await.unwrap().is_ok());
    let path = format!("/sandboxes/{}/stream?stream={}", sandbox.id, worker.stream);
    let mut stream = worker.actor.open_web_socket(&path).await;
    // The server answers `100 Continue` when its handler reads the body.
    let body = json!({ "stream": worker.stream, "max": 1, "wait_s": 60 }).to_string();
    let head = format!(
        "POST /api/v1/sandboxes/{}/messages/lease HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\r\n",
        sandbox.id,
        server.address,
        sandbox.token,
        body.len()
    );
    let mut leasing = tokio::net::TcpStream::connect(server.address).await.unwrap();
    leasing.write_all(head.as_bytes()).await.unwrap();
    let mut proceed = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    leasing.read_exact(&mut proceed).await.unwrap();
    assert!(proceed.starts_with(b"HTTP/1.1 100 "), "{}", String::from_utf8_lossy(&proceed));
    leasing.write_all(body.as_bytes()).await.unwrap();

    server.terminate();
    let ended = tokio::task::spawn_blocking(move || server.wait_for_exit()).await.unwrap();
    assert_eq!(ended.code(), Some(0));
    while let Some(chunk) = events.next().await {
        assert!(chunk.is_ok(), "the event stream must end without an error: {chunk:?}");
    }
    let mut got_notice = false;
    while let Some(Ok(message)) = reader.next().await {
        let Message::Text(text) = message else { continue };
        let frame: Value = serde_json::from_str(text.as_str()).unwrap();
        got_notice |= frame["type"] == "problem" && frame["code"] == "shutting_down";
    }
    assert!(got_notice, "the reader got no shutting_down frame");
    while let Some(Ok(_)) = stream.next().await {}
    let mut answer = String::new();
    leasing.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"items\":[]"), "{answer}");
}
