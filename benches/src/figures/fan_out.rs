//! Many readers of one sandbox while events come in: each sees each event once, in order, and soon.

use crate::bench::{Bench, Scratch};
use crate::client::Client;
use crate::load::Single;
use crate::pace::{self, Lane};
use crate::report::{Figure, Verdict};
use crate::server::{Sandbox, Server};
use crate::socket::Socket;
use crate::stats::Latencies;
use anyhow::{Result, bail};
use futures_util::future::try_join_all;
use serde::Deserialize;
use serde_json::json;
use std::time::{Duration, Instant};

const RATE: u32 = 200;
const LANES: usize = 8;
const BAR_MS: f64 = 100.0;
/// How long after the last event readers may still be behind.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Frame {
    Events {
        events: Vec<Seen>,
    },
    CaughtUp {
        seq: i64,
    },
    Lagged {},
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Seen {
    seq: i64,
    data: Sent,
}

#[derive(Deserialize)]
struct Sent {
    #[serde(default)]
    sent_us: Option<i64>,
}

#[derive(Default)]
struct Saw {
    events: usize,
    /// Seqs that did not follow the one before: missing, double or out of order.
    breaks: usize,
    lagged: usize,
    latencies: Latencies,
}

struct Reader {
    socket: Socket,
    seq: i64,
}

impl Reader {
    async fn open(server: &Server, sandbox: &Sandbox) -> Result<Self> {
        let mut socket = Socket::connect(server.address, "/api/v1/events/ws", &server.token).await?;
        socket.send(json!({ "type": "subscribe", "sandboxes": [sandbox.id] }).to_string()).await?;
        loop {
            let text = socket.next().await?;
            match serde_json::from_str(&text)? {
                Frame::CaughtUp { seq } => return Ok(Self { socket, seq }),
                Frame::Events { .. } | Frame::Lagged {} => {}
                Frame::Other => bail!("an unexpected frame: {text}"),
            }
        }
    }

    /// Until it has seen so many events, or the time is over.
    async fn read(mut self, count: usize, clock: Instant, until: Instant) -> Result<Saw> {
        let mut saw = Saw::default();
        while saw.events < count {
            let Ok(text) = tokio::time::timeout_at(until.into(), self.socket.next()).await else { break };
            let (text, now) = (text?, clock.elapsed());
            match serde_json::from_str(&text)? {
                Frame::Events { events } => {
                    for event in events {
                        saw.breaks += usize::from(event.seq != self.seq + 1);
                        self.seq = event.seq;
                        if let Some(sent) = event.data.sent_us {
                            saw.events += 1;
                            saw.latencies.push(now.saturating_sub(Duration::from_micros(sent.unsigned_abs())));
                        }
                    }
                }
                Frame::Lagged {} => saw.lagged += 1,
                Frame::CaughtUp { .. } | Frame::Other => {}
            }
        }
        Ok(saw)
    }
}

/// Sends its share of the events; each carries the time when it was due.
async fn write(client: &mut Client, sandbox: &Sandbox, clock: Instant, mut due: Lane) -> Result<()> {
    let (path, single) = (sandbox.path("events").parse()?, Single::new());
    while let Some(due) = due.recv().await {
        client.post(&path, single.body((due - clock).as_micros() as i64)).await?;
    }
    Ok(())
}

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let (wanted, length) = (bench.plan.readers, bench.plan.reading);
    let Scratch { server, dir: _dir } = bench.server(None)?;
    let sandbox = server.sandbox().await?;
    let mut writers = Vec::new();
    for _ in 0..LANES {
        writers.push(server.worker(&sandbox).await?);
    }
    let mut readers = Vec::new();
    for _ in 0..wanted {
        readers.push(Reader::open(&server, &sandbox).await?);
    }
    let count = (f64::from(RATE) * length.as_secs_f64()) as usize;
    let clock = Instant::now();
    let until = clock + length + PATIENCE;
    let reading: Vec<_> = readers.into_iter().map(|reader| tokio::spawn(reader.read(count, clock, until))).collect();
    let (lanes, _pace) = pace::start(RATE, count, LANES);
    try_join_all(writers.iter_mut().zip(lanes).map(|(client, due)| write(client, &sandbox, clock, due))).await?;
    // With all readers still there.
    let pss = server.pss()?;
    let mut all = Saw::default();
    let mut lost = 0;
    for reader in reading {
        let saw = reader.await??;
        lost += count - saw.events.min(count);
        all.events += saw.events;
        all.breaks += saw.breaks;
        all.lagged += saw.lagged;
        all.latencies.extend(saw.latencies);
    }
    let (p50, p99, max) = (all.latencies.p50(), all.latencies.p99(), all.latencies.max());
    let whole = lost == 0 && all.breaks == 0;
    Ok(vec![Figure {
        figure: format!("fan-out: {wanted} readers at {RATE} events/s"),
        measured: format!("{lost} lost, {} out of order, p99 {p99:.1} ms (p50 {p50:.1})", all.breaks),
        floor: "—".into(),
        bar: format!("none lost, p99 < {BAR_MS:.0} ms"),
        verdict: Verdict::of(whole && p99 < BAR_MS),
        numbers: json!({ "events": count, "readers": wanted, "seen": all.events, "lost": lost, "breaks": all.breaks,
            "lagged": all.lagged, "p50_ms": p50, "p99_ms": p99, "max_ms": max,
            "server_pss_mb": pss }),
    }])
}
