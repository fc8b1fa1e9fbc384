//! From the POST of a message until the worker has it. Floor: a request over loopback to a server
//! that only commits one row.

use super::commit_server;
use crate::bench::{Bench, Scratch, note};
use crate::client::Client;
use crate::report::{Figure, Verdict};
use crate::server::{Sandbox, Server};
use crate::socket::Socket;
use crate::stats::{Latencies, median};
use anyhow::Result;
use serde::Deserialize;
use serde_json::json;
use std::time::{Duration, Instant};

/// Between one message and the next.
const PAUSE: Duration = Duration::from_millis(10);
const BAR_MS: f64 = 10.0;
const BAR_FLOORS: f64 = 3.0;

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Frame {
    Message {
        message: Leased,
    },
    Settled {},
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Leased {
    id: String,
    lease: String,
}

/// A worker with its stream open, and somebody who speaks to it.
struct Pair {
    sandbox: Sandbox,
    worker: Socket,
    sender: Client,
}

impl Pair {
    async fn open(server: &Server) -> Result<Self> {
        let sandbox = server.sandbox().await?;
        let path = sandbox.path(&format!("stream?stream={}&boot=1", sandbox.stream));
        let worker = Socket::connect(server.address, &path, &sandbox.token).await?;
        Ok(Self { worker, sender: server.admin().await?, sandbox })
    }

    async fn next(&mut self) -> Result<Frame> {
        Ok(serde_json::from_str(&self.worker.next().await?)?)
    }

    async fn receive(worker: &mut Socket) -> Result<(Leased, Instant)> {
        loop {
            let text = worker.next().await?;
            let at = Instant::now();
            if let Frame::Message { message } = serde_json::from_str(&text)? {
                return Ok((message, at));
            }
        }
    }

    async fn one(&mut self) -> Result<Duration> {
        let path = self.sandbox.path("messages").parse()?;
        let body = json!({ "content": "Please also run the linter before you go on." }).to_string();
        let began = Instant::now();
        let (sent, received) = tokio::join!(self.sender.post(&path, body.into()), Self::receive(&mut self.worker));
        sent?;
        let (message, at) = received?;
        let ack = json!({ "type": "ack", "id": message.id, "stream": self.sandbox.stream, "lease": message.lease,
            "how": "new_turn" });
        self.worker.send(ack.to_string()).await?;
        while !matches!(self.next().await?, Frame::Settled {}) {}
        Ok(at - began)
    }

    async fn turn(&mut self, count: usize) -> Result<Latencies> {
        let mut latencies = Latencies::default();
        for _ in 0..count {
            tokio::time::sleep(PAUSE).await;
            latencies.push(self.one().await?);
        }
        Ok(latencies)
    }
}

async fn floor_turn(floor: &mut Client, count: usize) -> Result<Latencies> {
    let path = "/".parse()?;
    let mut latencies = Latencies::default();
    for _ in 0..count {
        tokio::time::sleep(PAUSE).await;
        let began = Instant::now();
        floor.post(&path, "{}".into()).await?;
        latencies.push(began.elapsed());
    }
    Ok(latencies)
}

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let (rounds, count) = (bench.plan.rounds, bench.plan.messages);
    let Scratch { server, dir } = bench.server(None)?;
    let address = commit_server::start(&dir.path().join("floor.db")).await?;
    let mut floor = Client::connect(address, "none").await?;
    let mut pair = Pair::open(&server).await?;
    pair.turn(count / 10).await?;
    floor_turn(&mut floor, count / 10).await?;
    let mut floors = vec![floor_turn(&mut floor, count).await?];
    let mut turns = Vec::new();
    for _ in 0..rounds {
        turns.push(pair.turn(count).await?);
        floors.push(floor_turn(&mut floor, count).await?);
        if let (Some(turn), Some(floor)) = (turns.last_mut(), floors.last_mut()) {
            note(&format!("  p50 {:.2} ms, p99 {:.2} ms, floor p99 {:.2} ms", turn.p50(), turn.p99(), floor.p99()));
        }
    }
    let p50 = median(turns.iter_mut().map(Latencies::p50));
    let p99s: Vec<f64> = turns.iter_mut().map(Latencies::p99).collect();
    let floor_p99s: Vec<f64> = floors.iter_mut().map(Latencies::p99).collect();
    let (p99, floor) = (median(p99s.iter().copied()), median(floor_p99s.iter().copied()));
    let bar = BAR_MS.max(BAR_FLOORS * floor);
    Ok(vec![Figure {
        figure: "message POST → in the worker's hands".into(),
        measured: format!("p99 {p99:.2} ms (p50 {p50:.2})"),
        floor: format!("p99 {floor:.2} ms (round trip + commit)"),
        bar: format!("p99 < {bar:.1} ms"),
        verdict: Verdict::of(p99 < bar),
        numbers: json!({ "p50_ms": p50, "p99_ms": p99s, "floor_p99_ms": floor_p99s, "bar_ms": bar,
            "floor_p50_ms": floors.iter_mut().map(Latencies::p50).collect::<Vec<_>>() }),
    }])
}
