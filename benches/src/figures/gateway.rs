//! What the model gateway adds to a request: the same program asks the same upstream, once from inside a sandbox through
//! the gateway, and once on the host without anything between.

use super::local_work::Work;
use crate::bench::{Bench, note};
use crate::report::{Figure, Verdict};
use crate::server::Server;
use crate::stats::{Latencies, median};
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
/// As an agent's is in the middle of its work.
const BODY: usize = 100_000;
const PYTHON: &str = "/usr/bin/python3";
/// Asks one after another over one connection; says how long each took, in microseconds.
const PROGRAM: &str = r#"
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

fn answer() -> Bytes {
    let text = "A sentence of an answer. ".repeat(40);
    let usage = json!({ "input_tokens": 25_000, "output_tokens": 200, "cache_read_input_tokens": 20_000 });
    json!({ "type": "message", "content": [{ "type": "text", "text": text }], "usage": usage }).to_string().into()
}

/// A model that knows its answer, on a thread of its own.
fn upstream() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || serve(listener));
    Ok(address)
}

fn serve(listener: TcpListener) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (listener, answer) = (tokio::net::TcpListener::from_std(listener)?, answer());
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

fn arguments(address: &str, path: &str, count: usize) -> Result<Vec<String>> {
    let (host, port) = address.split_once(':').context("an address without port")?;
    let all = [PYTHON, "-c", PROGRAM, host, port, path, &count.to_string(), &BODY.to_string()];
    Ok(all.map(str::to_owned).to_vec())
}

fn read(said: &str) -> Result<Latencies> {
    let took: Vec<u64> = serde_json::from_str(said).with_context(|| format!("the program said {said}"))?;
    let mut latencies = Latencies::default();
    took.into_iter().for_each(|micros| latencies.push(Duration::from_micros(micros)));
    Ok(latencies)
}

fn directly(upstream: SocketAddr, count: usize) -> Result<Latencies> {
    let arguments = arguments(&upstream.to_string(), "/v1/messages", count)?;
    let output = Command::new(PYTHON).args(&arguments[1..]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    read(&String::from_utf8_lossy(&output.stdout))
}

async fn through(server: &Server, sandbox: &str, count: usize) -> Result<Latencies> {
    let argv = arguments("127.0.0.1:7709", "/anthropic/v1/messages", count)?;
    let path = format!("/api/v1/sandboxes/{sandbox}/exec").parse()?;
    let said = server.admin().await?.post(&path, json!({ "argv": argv }).to_string().into()).await?;
    let lines = String::from_utf8_lossy(&said);
    let mut output = String::new();
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let line: Value = serde_json::from_str(line)?;
        output.push_str(line["data"].as_str().unwrap_or_default());
    }
    read(&output)
}

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let (upstream, dir) = (upstream()?, bench.scratch()?);
    let place = format!("http://{upstream}");
    let environment = [("ANTHROPIC_BASE_URL", place.as_str()), ("ANTHROPIC_API_KEY", "sk-bench")];
    let server = Server::start_in(&bench.program, &dir.path().join("data"), None, &environment)?;
    let work = Work::new(&server);
    let id = work.make(json!({ "provider": "local", "agent": "demo" })).await?;
    work.until(&id, &["running"]).await?;
    let count = bench.plan.pages;
    let (mut floors, mut figures, mut tails) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.plan.rounds {
        let mut floor = tokio::task::spawn_blocking(move || directly(upstream, count)).await??;
        let mut figure = through(&server, &id, count).await?;
        note(&format!("  a request p50 {:.2} ms through the gateway, {:.2} ms without", figure.p50(), floor.p50()));
        floors.push(floor.p50());
        tails.push(figure.p99() - floor.p99());
        figures.push(figure.p50());
    }
    work.remove(&id).await?;
    let [floor, figure, tail] = [&floors, &figures, &tails].map(|all| median(all.iter().copied()));
    let added = figure - floor;
    Ok(vec![Figure {
        figure: "a request to a model through the gateway".into(),
        measured: format!("+{added:.2} ms at p50, +{tail:.2} at p99 (p50 {figure:.2} ms)"),
        floor: format!("without p50 {floor:.2} ms"),
        bar: format!("< {BAR_MS} ms added"),
        verdict: Verdict::of(added < BAR_MS),
        numbers: json!({ "p50_ms": figures, "without_p50_ms": floors, "added_p99_ms": tails, "requests": count }),
    }])
}
