//! The server from an agent's view: TCP and Unix sockets, streams, failures and disconnects.

use anyhow::{Context, Result};
use atoll_model_script::{ListenOptions, RequestOutcome, ScriptedModel, Scripts};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

const SCRIPTS: &str = r"
scripts:
  - name: main
    steps:
      - say: hello
      - end
  - name: slow
    steps:
      - slow: {pieces: [one, two, three], pause: 30}
  - name: late
    steps:
      - delay: 30
  - name: limited
    steps:
      - fail: {status: 429, retry_after: 7}
      - say: at last
  - name: refused
    steps:
      - fail: {status: 403, body: {why: no}, times: always}
  - name: cut
    steps:
      - cut: 2
      - say: whole
";

fn request_body(script: &str, stream: bool) -> Value {
    json!({
        "model": "m", "max_tokens": 10, "stream": stream, "tools": [{"name": "Bash", "input_schema": {}}],
        "messages": [{"role": "user", "content": format!("go #script:{script}")}],
    })
}

fn http_client() -> Client {
    // No TLS is used, but a client needs a crypto provider.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::new()
}

async fn start_model() -> Result<ScriptedModel> {
    Ok(ScriptedModel::start(Scripts::parse(SCRIPTS)?).await?)
}

async fn post_message(model: &ScriptedModel, body: &Value) -> Result<reqwest::Response> {
    let url = format!("{}/v1/messages?beta=true", model.base_url());
    Ok(http_client().post(url).header("x-api-key", "sk-1").json(body).send().await?)
}

#[tokio::test]
async fn answers_whole_and_streamed_and_records_requests() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let record = dir.path().join("requests.jsonl");
    let listen = ListenOptions {
        tcp: Some(([127, 0, 0, 1], 0).into()),
        record_file: Some(record.clone()),
        ..ListenOptions::default()
    };
    let model = ScriptedModel::start_with(Scripts::parse(SCRIPTS)?, listen).await?;
    let whole: Value = post_message(&model, &request_body("main", false)).await?.json().await?;
    assert_eq!(whole["content"][0]["text"], "hello");
    let stream = post_message(&model, &request_body("main", true)).await?;
    assert_eq!(stream.headers()["content-type"], "text/event-stream; charset=utf-8");
    assert!(stream.text().await?.ends_with("data: {\"type\":\"message_stop\"}\n\n"));

    let requests = model.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!((requests[0].number, requests[0].path.as_str()), (1, "/v1/messages?beta=true"));
    assert_eq!(requests[0].headers["x-api-key"], "sk-1");
    assert_eq!((requests[1].script.as_deref(), requests[1].outcome), (Some("main"), RequestOutcome::Answered));
    assert!(requests[1].body_contains("go #script:main") && !requests[1].body_contains("nothing"));
    let url = format!("{}/requests?after=1", model.base_url());
    let recorded: Value = http_client().get(url).send().await?.json().await?;
    assert_eq!(recorded["requests"].as_array().map(Vec::len), Some(1));
    assert_eq!(recorded["requests"][0]["number"], 2);
    let lines = std::fs::read_to_string(record)?;
    let kinds: Vec<_> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["type"].clone()).collect();
    assert_eq!(kinds, ["request", "end", "request", "end"]);
    Ok(())
}

#[tokio::test]
async fn scripted_failures_end_after_their_count() -> Result<()> {
    let model = start_model().await?;
    let limited = post_message(&model, &request_body("limited", true)).await?;
    assert_eq!((limited.status(), &limited.headers()["retry-after"]), (StatusCode::TOO_MANY_REQUESTS, &"7".parse()?));
    assert_eq!(limited.json::<Value>().await?["error"]["type"], "rate_limit_error");
    let answer: Value = post_message(&model, &request_body("limited", false)).await?.json().await?;
    assert_eq!(answer["content"][0]["text"], "at last");
    for _ in 0..3 {
        let refused = post_message(&model, &request_body("refused", false)).await?;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        assert_eq!(refused.json::<Value>().await?, json!({"why": "no"}));
    }
    let bad = http_client().post(format!("{}/v1/responses", model.base_url())).body("{").send().await?;
    assert_eq!(bad.status(), StatusCode::BAD_REQUEST);
    let unknown = http_client().get(format!("{}/nothing", model.base_url())).send().await?;
    assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
    let outcomes: Vec<_> = model.requests().iter().map(|request| request.outcome).collect();
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == RequestOutcome::Refused).count(), 6);
    Ok(())
}

#[tokio::test]
async fn a_cut_stream_breaks_after_its_events_once() -> Result<()> {
    let model = start_model().await?;
    for stream in [true, false] {
        let mut response = post_message(&model, &request_body("cut", stream)).await?;
        assert_eq!(response.status(), StatusCode::OK);
        if !stream {
            // The script cuts only its first response.
            assert_eq!(response.json::<Value>().await?["content"][0]["text"], "whole");
            continue;
        }
        let mut text = String::new();
        let broke = loop {
            match response.chunk().await {
                Ok(Some(chunk)) => text.push_str(std::str::from_utf8(&chunk)?),
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        assert!(broke, "the stream must not end normally: {text}");
        assert_eq!(text.matches("data: ").count(), 2, "{text}");
    }
    assert_eq!(model.requests()[0].outcome, RequestOutcome::Cut);
    Ok(())
}

/// Sends a request and returns the connection.
async fn open_request(model: &ScriptedModel, body: &Value) -> Result<TcpStream> {
    let body = body.to_string();
    let mut stream = TcpStream::connect(model.base_url().trim_start_matches("http://")).await?;
    let head = format!("POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).await?;
    Ok(stream)
}

#[tokio::test]
async fn records_disconnects() -> Result<()> {
    let model = start_model().await?;
    // Disconnect during a stream, and before its first byte.
    for script in ["slow", "late"] {
        let mut stream = open_request(&model, &request_body(script, true)).await?;
        if script == "slow" {
            stream.read_exact(&mut [0; 100]).await?;
        }
        let request = model.wait_for_request(|request| request.script.as_deref() == Some(script), WAIT_TIMEOUT).await;
        assert_eq!(request.context("no request")?.outcome, RequestOutcome::Answering);
        let disconnected = Instant::now();
        drop(stream);
        let is_disconnected = |request: &atoll_model_script::RecordedRequest| {
            request.script.as_deref() == Some(script) && request.outcome == RequestOutcome::Disconnected
        };
        let request = model
            .wait_for_request(is_disconnected, WAIT_TIMEOUT)
            .await
            .with_context(|| format!("{script}: the disconnect was not recorded"))?;
        assert!(request.ended_at.is_some() && disconnected.elapsed() < WAIT_TIMEOUT);
    }
    assert!(model.wait_for_request(|_| false, Duration::from_millis(10)).await.is_none());
    Ok(())
}

#[tokio::test]
async fn serves_a_unix_socket_and_removes_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model.sock");
    let listen = ListenOptions { unix_socket: Some(path.clone()), ..ListenOptions::default() };
    let model = ScriptedModel::start_with(Scripts::parse(SCRIPTS)?, listen).await?;
    assert_eq!((model.base_url().as_str(), model.unix_socket()), ("", Some(path.as_path())));
    let mut stream = UnixStream::connect(&path).await?;
    stream.write_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"id\":\"scripted\""), "{answer}");
    drop(model);
    assert!(!path.exists());
    Ok(())
}

#[tokio::test]
async fn a_dropped_model_closes_its_connections() -> Result<()> {
    let model = start_model().await?;
    let client = http_client();
    let url = format!("{}/v1/models", model.base_url());
    client.get(&url).send().await?.text().await?;
    drop(model);
    let is_closed = async || client.get(&url).send().await.is_err();
    atoll_test_wait::poll_until("the open connection to be closed", is_closed).await;
    Ok(())
}

#[tokio::test]
async fn gemini_has_model_and_operation_in_the_path() -> Result<()> {
    let model = start_model().await?;
    let body = json!({
        "contents": [{"role": "user", "parts": [{"text": "go"}]}],
        "tools": [{"functionDeclarations": [{"name": "write_file"}]}],
    });
    let url = |operation: &str| format!("{}/v1beta/models/g-1:{operation}", model.base_url());
    let stream = http_client().post(url("streamGenerateContent?alt=sse")).json(&body).send().await?.text().await?;
    assert!(stream.starts_with("data: ") && stream.contains("\"modelVersion\":\"g-1\""), "{stream}");
    let whole: Value = http_client().post(url("generateContent")).json(&body).send().await?.json().await?;
    assert_eq!(whole["candidates"][0]["content"]["parts"][0]["text"], "hello");
    let count: Value = http_client().post(url("countTokens")).json(&body).send().await?.json().await?;
    assert!(count["totalTokens"].as_u64() > Some(0));
    Ok(())
}
