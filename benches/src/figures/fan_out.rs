//! Fan-out to many readers of one sandbox: each reader gets each event once, in order and quickly.

use crate::bench::{Bench, ScratchServer};
use crate::client::HttpClient;
use crate::load::SingleEventBody;
use crate::pace::{self, DueTimes};
use crate::report::{Figure, FigureVerdict};
use crate::server::{BenchServer, ExternalSandbox};
use crate::socket::ServerSocket;
use crate::stats::Latencies;
use anyhow::{Result, bail};
use futures_util::future::try_join_all;
use serde::Deserialize;
use serde_json::json;
use std::time::{Duration, Instant};

const RATE: u32 = 200;
const WRITERS: usize = 8;
const BAR_MS: f64 = 100.0;
/// Time that readers have to catch up after the last event.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum EventFrame {
    Events {
        events: Vec<SeenEvent>,
    },
    CaughtUp {
        seq: i64,
    },
    Lagged {},
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct SeenEvent {
    seq: i64,
    data: SentTime,
}

#[derive(Deserialize)]
struct SentTime {
    #[serde(default)]
    sent_us: Option<i64>,
}

#[derive(Default)]
struct ReaderResult {
    events: usize,
    /// Missing, duplicate or out-of-order seqs.
    breaks: usize,
    lagged: usize,
    latencies: Latencies,
}

struct EventReader {
    socket: ServerSocket,
    seq: i64,
}

impl EventReader {
    async fn open(server: &BenchServer, sandbox: &ExternalSandbox) -> Result<Self> {
        let mut socket = ServerSocket::connect(server.address, "/api/v1/events/ws", &server.token).await?;
        socket.send_text(json!({ "type": "subscribe", "sandboxes": [sandbox.id] }).to_string()).await?;
        loop {
            let text = socket.next_text().await?;
            match serde_json::from_str(&text)? {
                EventFrame::CaughtUp { seq } => return Ok(Self { socket, seq }),
                EventFrame::Events { .. } | EventFrame::Lagged {} => {}
                EventFrame::Other => bail!("unexpected frame: {text}"),
            }
        }
    }

    /// Reads until `count` events have arrived or `until` has passed.
    async fn read_events(mut self, count: usize, clock: Instant, until: Instant) -> Result<ReaderResult> {
        let mut result = ReaderResult::default();
        while result.events < count {
            let Ok(text) = tokio::time::timeout_at(until.into(), self.socket.next_text()).await else { break };
            let (text, now) = (text?, clock.elapsed());
            match serde_json::from_str(&text)? {
                EventFrame::Events { events } => {
                    for event in events {
                        result.breaks += usize::from(event.seq != self.seq + 1);
                        self.seq = event.seq;
                        if let Some(sent) = event.data.sent_us {
                            result.events += 1;
                            result.latencies.push(now.saturating_sub(Duration::from_micros(sent.unsigned_abs())));
                        }
                    }
                }
                EventFrame::Lagged {} => result.lagged += 1,
                EventFrame::CaughtUp { .. } | EventFrame::Other => {}
            }
        }
        Ok(result)
    }
}

/// Sends one writer's share of the events; each carries its due time.
async fn post_events(
    client: &mut HttpClient,
    sandbox: &ExternalSandbox,
    clock: Instant,
    mut due: DueTimes,
) -> Result<()> {
    let (path, single) = (sandbox.api_path("events").parse()?, SingleEventBody::new());
    while let Some(due) = due.recv().await {
        client.post(&path, single.body_sent_at((due - clock).as_micros() as i64)).await?;
    }
    Ok(())
}

pub async fn measure_fan_out(bench: &Bench) -> Result<Vec<Figure>> {
    let (reader_count, length) = (bench.plan.readers, bench.plan.reading_duration);
    let ScratchServer { server, dir: _dir } = bench.start_server(None)?;
    let sandbox = server.create_sandbox().await?;
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        writers.push(server.connect_worker(&sandbox).await?);
    }
    let mut readers = Vec::new();
    for _ in 0..reader_count {
        readers.push(EventReader::open(&server, &sandbox).await?);
    }
    let count = (f64::from(RATE) * length.as_secs_f64()) as usize;
    let clock = Instant::now();
    let until = clock + length + CATCH_UP_TIMEOUT;
    let reading: Vec<_> =
        readers.into_iter().map(|reader| tokio::spawn(reader.read_events(count, clock, until))).collect();
    let (lanes, _pace) = pace::start_schedule(RATE, count, WRITERS);
    try_join_all(writers.iter_mut().zip(lanes).map(|(client, due)| post_events(client, &sandbox, clock, due))).await?;
    // Measure while all readers are still connected.
    let pss = server.pss_mb()?;
    let mut all = ReaderResult::default();
    let mut lost = 0;
    for reader in reading {
        let result = reader.await??;
        lost += count - result.events.min(count);
        all.events += result.events;
        all.breaks += result.breaks;
        all.lagged += result.lagged;
        all.latencies.extend(result.latencies);
    }
    let (p50, p99, max) = (all.latencies.p50(), all.latencies.p99(), all.latencies.max());
    let complete = lost == 0 && all.breaks == 0;
    Ok(vec![Figure {
        name: format!("fan-out: {reader_count} readers at {RATE} events/s"),
        measured: format!("{lost} lost, {} out of order, p99 {p99:.1} ms (p50 {p50:.1})", all.breaks),
        floor: "—".into(),
        bar: format!("none lost, p99 < {BAR_MS:.0} ms"),
        verdict: FigureVerdict::from_met(complete && p99 < BAR_MS),
        numbers: json!({ "events": count, "readers": reader_count, "seen": all.events, "lost": lost, "breaks": all.breaks,
            "lagged": all.lagged, "p50_ms": p50, "p99_ms": p99, "max_ms": max,
            "server_pss_mb": pss }),
    }])
}
