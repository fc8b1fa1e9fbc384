//! The server as an agent meets it: over TCP and a socket file, with streams, failures and going away.

use anyhow::{Context, Result};
use atoll_model_script::{Listen, Outcome, ScriptedModel, Scripts};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

const SOON: Duration = Duration::from_secs(10);

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

fn ask(script: &str, stream: bool) -> Value {
    json!({
        "model": "m", "max_tokens": 10, "stream": stream, "tools": [{"name": "Bash", "input_schema": {}}],
        "messages": [{"role": "user", "content": format!("go #script:{script}")}],
    })
}

fn client() -> Client {
    // All in the clear; without a provider no client can be made.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::new()
}

async fn model() -> Result<ScriptedModel> {
    Ok(ScriptedModel::start(Scripts::parse(SCRIPTS)?).await?)
}

async fn post(model: &ScriptedModel, body: &Value) -> Result<reqwest::Response> {
    let url = format!("{}/v1/messages?beta=true", model.base_url());
    Ok(client().post(url).header("x-api-key", "sk-1").json(body).send().await?)
}

#[tokio::test]
async fn answers_come_whole_and_as_a_stream_and_are_written_down() -> Result<()> {
    let place = tempfile::tempdir()?;
    let record = place.path().join("requests.jsonl");
    let listen = Listen { tcp: Some(([127, 0, 0, 1], 0).into()), record: Some(record.clone()), ..Listen::default() };
    let model = ScriptedModel::start_on(Scripts::parse(SCRIPTS)?, listen).await?;
    let whole: Value = post(&model, &ask("main", false)).await?.json().await?;
    assert_eq!(whole["content"][0]["text"], "hello");
    let stream = post(&model, &ask("main", true)).await?;
    assert_eq!(stream.headers()["content-type"], "text/event-stream; charset=utf-8");
    assert!(stream.text().await?.ends_with("data: {\"type\":\"message_stop\"}\n\n"));

    let requests = model.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!((requests[0].number, requests[0].path.as_str()), (1, "/v1/messages?beta=true"));
    assert_eq!(requests[0].headers["x-api-key"], "sk-1");
    assert_eq!((requests[1].script.as_deref(), requests[1].outcome), (Some("main"), Outcome::Answered));
    assert!(requests[1].mentions("go #script:main") && !requests[1].mentions("nothing"));
    let url = format!("{}/requests?after=1", model.base_url());
    let shown: Value = client().get(url).send().await?.json().await?;
    assert_eq!(shown["requests"].as_array().map(Vec::len), Some(1));
    assert_eq!(shown["requests"][0]["number"], 2);
    let lines = std::fs::read_to_string(record)?;
    let kinds: Vec<_> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["type"].clone()).collect();
    assert_eq!(kinds, ["request", "end", "request", "end"]);
    Ok(())
}

#[tokio::test]
async fn failures_are_as_the_script_says_and_then_over() -> Result<()> {
    let model = model().await?;
    let limited = post(&model, &ask("limited", true)).await?;
    assert_eq!((limited.status(), &limited.headers()["retry-after"]), (StatusCode::TOO_MANY_REQUESTS, &"7".parse()?));
    assert_eq!(limited.json::<Value>().await?["error"]["type"], "rate_limit_error");
    let answer: Value = post(&model, &ask("limited", false)).await?.json().await?;
    assert_eq!(answer["content"][0]["text"], "at last");
    for _ in 0..3 {
        let refused = post(&model, &ask("refused", false)).await?;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        assert_eq!(refused.json::<Value>().await?, json!({"why": "no"}));
    }
    let bad = client().post(format!("{}/v1/responses", model.base_url())).body("{").send().await?;
    assert_eq!(bad.status(), StatusCode::BAD_REQUEST);
    let unknown = client().get(format!("{}/nothing", model.base_url())).send().await?;
    assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
    let outcomes: Vec<_> = model.requests().iter().map(|request| request.outcome).collect();
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Refused).count(), 6);
    Ok(())
}

#[tokio::test]
async fn a_cut_stream_breaks_after_its_events_once() -> Result<()> {
    let model = model().await?;
    for stream in [true, false] {
        let mut response = post(&model, &ask("cut", stream)).await?;
        assert_eq!(response.status(), StatusCode::OK);
        if !stream {
            // The one before was the cut one.
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
        assert!(broke, "it must not look like an end: {text}");
        assert_eq!(text.matches("data: ").count(), 2, "{text}");
    }
    assert_eq!(model.requests()[0].outcome, Outcome::Cut);
    Ok(())
}

/// Sends a request and gives the connection back, to be dropped.
async fn open(model: &ScriptedModel, body: &Value) -> Result<TcpStream> {
    let body = body.to_string();
    let mut stream = TcpStream::connect(model.base_url().trim_start_matches("http://")).await?;
    let head = format!("POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).await?;
    Ok(stream)
}

#[tokio::test]
async fn who_goes_away_is_written_down() -> Result<()> {
    let model = model().await?;
    // In the middle of a stream, and before its first byte.
    for script in ["slow", "late"] {
        let mut stream = open(&model, &ask(script, true)).await?;
        if script == "slow" {
            stream.read_exact(&mut [0; 100]).await?;
        }
        let asked = model.wait_for(|request| request.script.as_deref() == Some(script), SOON).await;
        assert_eq!(asked.context("not asked")?.outcome, Outcome::Answering);
        let left = Instant::now();
        drop(stream);
        let gone = |request: &atoll_model_script::Request| {
            request.script.as_deref() == Some(script) && request.outcome == Outcome::Disconnected
        };
        let gone = model.wait_for(gone, SOON).await.with_context(|| format!("{script}: not noticed"))?;
        assert!(gone.ended_at.is_some() && left.elapsed() < SOON);
    }
    assert!(model.wait_for(|_| false, Duration::from_millis(10)).await.is_none());
    Ok(())
}

#[tokio::test]
async fn a_socket_file_serves_too_and_goes_with_the_model() -> Result<()> {
    let place = tempfile::tempdir()?;
    let path = place.path().join("model.sock");
    let listen = Listen { unix: Some(path.clone()), ..Listen::default() };
    let model = ScriptedModel::start_on(Scripts::parse(SCRIPTS)?, listen).await?;
    assert_eq!((model.base_url().as_str(), model.unix()), ("", Some(path.as_path())));
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
async fn a_model_that_is_gone_answers_nobody() -> Result<()> {
    let model = model().await?;
    let client = client();
    let url = format!("{}/v1/models", model.base_url());
    client.get(&url).send().await?.text().await?;
    drop(model);
    // Not even on the connection that is open.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(client.get(&url).send().await.is_err());
    Ok(())
}

#[tokio::test]
async fn gemini_says_model_and_kind_in_the_path() -> Result<()> {
    let model = model().await?;
    let body = json!({
        "contents": [{"role": "user", "parts": [{"text": "go"}]}],
        "tools": [{"functionDeclarations": [{"name": "write_file"}]}],
    });
    let url = |operation: &str| format!("{}/v1beta/models/g-1:{operation}", model.base_url());
    let stream = client().post(url("streamGenerateContent?alt=sse")).json(&body).send().await?.text().await?;
    assert!(stream.starts_with("data: ") && stream.contains("\"modelVersion\":\"g-1\""), "{stream}");
    let whole: Value = client().post(url("generateContent")).json(&body).send().await?.json().await?;
    assert_eq!(whole["candidates"][0]["content"]["parts"][0]["text"], "hello");
    let count: Value = client().post(url("countTokens")).json(&body).send().await?.json().await?;
    assert!(count["totalTokens"].as_u64() > Some(0));
    Ok(())
}
