//! From the POST of a message until the worker receives it. Floor: a request over loopback to a server that only commits
//! one row.

use super::commit_server;
use crate::bench::{Bench, ScratchServer, print_progress};
use crate::client::HttpClient;
use crate::report::{Figure, FigureVerdict};
use crate::server::{BenchServer, ExternalSandbox};
use crate::socket::ServerSocket;
use crate::stats::{Latencies, median_of};
use anyhow::Result;
use serde::Deserialize;
use serde_json::json;
use std::time::{Duration, Instant};

const MESSAGE_INTERVAL: Duration = Duration::from_millis(10);
const BAR_MS: f64 = 10.0;
const BAR_FLOORS: f64 = 3.0;

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum MessageFrame {
    Message {
        message: MessageLease,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct MessageLease {
    id: String,
    lease: String,
}

/// A worker with an open stream and a connection for acknowledgements, and a client that sends messages to it.
struct WorkerAndSender {
    sandbox: ExternalSandbox,
    stream: ServerSocket,
    worker: HttpClient,
    sender: HttpClient,
}

impl WorkerAndSender {
    async fn open(server: &BenchServer) -> Result<Self> {
        let sandbox = server.create_sandbox().await?;
        let path = sandbox.api_path(&format!("stream?stream={}&boot=1", sandbox.stream));
        let stream = ServerSocket::connect(server.address, &path, &sandbox.token).await?;
        let (worker, sender) = (server.connect_worker(&sandbox).await?, server.connect_admin().await?);
        Ok(Self { sandbox, stream, worker, sender })
    }

    async fn receive_message(stream: &mut ServerSocket) -> Result<(MessageLease, Instant)> {
        loop {
            let text = stream.next_text().await?;
            let at = Instant::now();
            if let MessageFrame::Message { message } = serde_json::from_str(&text)? {
                return Ok((message, at));
            }
        }
    }

    async fn deliver_message(&mut self) -> Result<Duration> {
        let path = self.sandbox.api_path("messages").parse()?;
        let body = json!({ "content": "Please also run the linter before you go on." }).to_string();
        let began = Instant::now();
        let (sent, received) =
            tokio::join!(self.sender.post(&path, body.into()), Self::receive_message(&mut self.stream));
        sent?;
        let (message, at) = received?;
        let path = self.sandbox.api_path(&format!("messages/{}/ack", message.id)).parse()?;
        let ack = json!({ "stream": self.sandbox.stream, "lease": message.lease, "how": "new_turn" });
        self.worker.post(&path, ack.to_string().into()).await?;
        Ok(at - began)
    }

    async fn time_deliveries(&mut self, count: usize) -> Result<Latencies> {
        let mut latencies = Latencies::default();
        for _ in 0..count {
            tokio::time::sleep(MESSAGE_INTERVAL).await;
            latencies.push(self.deliver_message().await?);
        }
        Ok(latencies)
    }
}

async fn time_floor_posts(floor: &mut HttpClient, count: usize) -> Result<Latencies> {
    let path = "/".parse()?;
    let mut latencies = Latencies::default();
    for _ in 0..count {
        tokio::time::sleep(MESSAGE_INTERVAL).await;
        let began = Instant::now();
        floor.post(&path, "{}".into()).await?;
        latencies.push(began.elapsed());
    }
    Ok(latencies)
}

pub async fn measure_delivery(bench: &Bench) -> Result<Vec<Figure>> {
    let (rounds, count) = (bench.plan.rounds, bench.plan.messages);
    let ScratchServer { server, dir } = bench.start_server(None)?;
    let address = commit_server::start_commit_server(&dir.path().join("floor.db")).await?;
    let mut floor = HttpClient::connect(address, "none").await?;
    let mut pair = WorkerAndSender::open(&server).await?;
    pair.time_deliveries(count / 10).await?;
    time_floor_posts(&mut floor, count / 10).await?;
    let mut floors = vec![time_floor_posts(&mut floor, count).await?];
    let mut samples = Vec::new();
    for _ in 0..rounds {
        samples.push(pair.time_deliveries(count).await?);
        floors.push(time_floor_posts(&mut floor, count).await?);
        if let (Some(sample), Some(floor)) = (samples.last_mut(), floors.last_mut()) {
            print_progress(&format!(
                "  p50 {:.2} ms, p99 {:.2} ms, floor p99 {:.2} ms",
                sample.p50(),
                sample.p99(),
                floor.p99()
            ));
        }
    }
    let p50 = median_of(samples.iter_mut().map(Latencies::p50));
    let p99s: Vec<f64> = samples.iter_mut().map(Latencies::p99).collect();
    let floor_p99s: Vec<f64> = floors.iter_mut().map(Latencies::p99).collect();
    let (p99, floor) = (median_of(p99s.iter().copied()), median_of(floor_p99s.iter().copied()));
    let bar = BAR_MS.max(BAR_FLOORS * floor);
    Ok(vec![Figure {
        name: "message POST → received by the worker".into(),
        measured: format!("p99 {p99:.2} ms (p50 {p50:.2})"),
        floor: format!("p99 {floor:.2} ms (round trip + commit)"),
        bar: format!("p99 < {bar:.1} ms"),
        verdict: FigureVerdict::from_met(p99 < bar),
        numbers: json!({ "p50_ms": p50, "p99_ms": p99s, "floor_p99_ms": floor_p99s, "bar_ms": bar,
            "floor_p50_ms": floors.iter_mut().map(Latencies::p50).collect::<Vec<_>>() }),
    }])
}
