//! The model gateway's overhead per request: the same program calls the same upstream from a sandbox through the gateway,
//! and directly from the host.

use super::local_sandboxes::LocalSandboxes;
use crate::bench::{Bench, print_progress};
use crate::report::{Figure, FigureVerdict};
use crate::server::BenchServer;
use crate::stats::{Latencies, median_of};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

const BAR_MS: f64 = 2.0;
/// A typical request of an agent in the middle of its work.
const BODY_BYTES: usize = 100_000;
const PYTHON: &str = "/usr/bin/python3";
/// Sends requests sequentially over one connection and prints each latency in microseconds.
const CLIENT_PROGRAM: &str = r#"
import http.client, json, os, sys, time
host, port, path, count, size = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
body = json.dumps({"model": "bench", "max_tokens": 100, "messages": [{"role": "user", "content": "x" * size}]})
headers = {"x-api-key": os.environ.get("ATOLL_GATEWAY_KEY", ""), "content-type": "application/json"}
connection = http.client.HTTPConnection(host, port)
took = []
for number in range(count + 20):
    began = time.perf_counter()
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    data = answer.read()
    if answer.status != 200:
        sys.exit(data.decode())
    if number >= 20:
        took.append(round((time.perf_counter() - began) * 1e6))
print(json.dumps(took))
"#;

fn model_answer() -> Bytes {
    let text = "A sentence of an answer. ".repeat(40);
    let usage = json!({ "input_tokens": 25_000, "output_tokens": 200, "cache_read_input_tokens": 20_000 });
    json!({ "type": "message", "content": [{ "type": "text", "text": text }], "usage": usage }).to_string().into()
}

/// Starts a model API with a fixed response, on its own thread.
fn start_upstream() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || serve_upstream(listener));
    Ok(address)
}

fn serve_upstream(listener: TcpListener) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (listener, answer) = (tokio::net::TcpListener::from_std(listener)?, model_answer());
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let answer = answer.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    let answer = answer.clone();
                    async move {
                        request.into_body().collect().await?;
                        Ok::<_, hyper::Error>(Response::new(Full::new(answer)))
                    }
                });
                drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
            });
        }
    })
}

fn client_arguments(address: &str, path: &str, count: usize) -> Result<Vec<String>> {
    let (host, port) = address.split_once(':').context("the address has no port")?;
    let all = [PYTHON, "-c", CLIENT_PROGRAM, host, port, path, &count.to_string(), &BODY_BYTES.to_string()];
    Ok(all.map(str::to_owned).to_vec())
}

fn parse_latencies(output: &str) -> Result<Latencies> {
    let took: Vec<u64> = serde_json::from_str(output).with_context(|| format!("unexpected output: {output}"))?;
    let mut latencies = Latencies::default();
    took.into_iter().for_each(|micros| latencies.push(Duration::from_micros(micros)));
    Ok(latencies)
}

fn time_direct_calls(upstream: SocketAddr, count: usize) -> Result<Latencies> {
    let arguments = client_arguments(&upstream.to_string(), "/v1/messages", count)?;
    let output = Command::new(PYTHON).args(&arguments[1..]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    parse_latencies(&String::from_utf8_lossy(&output.stdout))
}

async fn time_gateway_calls(server: &BenchServer, sandbox: &str, count: usize) -> Result<Latencies> {
    let argv = client_arguments("127.0.0.1:7709", "/anthropic/v1/messages", count)?;
    let path = format!("/api/v1/sandboxes/{sandbox}/exec").parse()?;
    let response = server.connect_admin().await?.post(&path, json!({ "argv": argv }).to_string().into()).await?;
    let lines = String::from_utf8_lossy(&response);
    let mut output = String::new();
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let line: Value = serde_json::from_str(line)?;
        output.push_str(line["data"].as_str().unwrap_or_default());
    }
    parse_latencies(&output)
}

pub async fn measure_gateway(bench: &Bench) -> Result<Vec<Figure>> {
    let (upstream, dir) = (start_upstream()?, bench.scratch_dir()?);
    let upstream_url = format!("http://{upstream}");
    let environment = [("ANTHROPIC_BASE_URL", upstream_url.as_str()), ("ANTHROPIC_API_KEY", "sk-bench")];
    let server = BenchServer::start_with_env(&bench.program, &dir.path().join("data"), None, &environment)?;
    let work = LocalSandboxes::new(&server);
    let id = work.create_sandbox(json!({ "provider": "local", "agent": "demo" })).await?;
    work.wait_for_state(&id, &["running"]).await?;
    let count = bench.plan.page_reads;
    let (mut floors, mut figures, mut tails) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.plan.rounds {
        let mut floor = tokio::task::spawn_blocking(move || time_direct_calls(upstream, count)).await??;
        let mut figure = time_gateway_calls(&server, &id, count).await?;
        print_progress(&format!(
            "  request p50 {:.2} ms through the gateway, {:.2} ms direct",
            figure.p50(),
            floor.p50()
        ));
        floors.push(floor.p50());
        tails.push(figure.p99() - floor.p99());
        figures.push(figure.p50());
    }
    work.delete_sandbox(&id).await?;
    let [floor, figure, tail] = [&floors, &figures, &tails].map(|all| median_of(all.iter().copied()));
    let added = figure - floor;
    Ok(vec![Figure {
        name: "model request through the gateway".into(),
        measured: format!("+{added:.2} ms at p50, +{tail:.2} at p99 (p50 {figure:.2} ms)"),
        floor: format!("direct p50 {floor:.2} ms"),
        bar: format!("< {BAR_MS} ms added"),
        verdict: FigureVerdict::from_met(added < BAR_MS),
        numbers: json!({ "p50_ms": figures, "without_p50_ms": floors, "added_p99_ms": tails, "requests": count }),
    }])
}
