//! Durable ingest over HTTP, independent of the database: clients, samples and the table row.

use crate::bench::{ScratchServer, print_progress};
use crate::client::HttpClient;
use crate::load::{BatchBodies, EVENTS_PER_BATCH};
use crate::report::{Figure, FigureVerdict, group_digits};
use crate::server::{BenchServer, ExternalSandbox};
use crate::stats::median_of;
use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use hyper::Uri;
use serde::Deserialize;
use serde_json::json;
use std::time::{Duration, Instant};

/// Concurrent clients, each with its own sandbox.
pub const CLIENTS: usize = 8;
/// Bar, relative to the floor.
const BAR: f64 = 0.5;

/// Writes events for a while and returns the rate per second.
pub trait Floor {
    async fn measure_rate(&mut self, duration: Duration) -> Result<f64>;
}

struct IngestClient {
    client: HttpClient,
    path: Uri,
    batches: BatchBodies,
    sandbox: ExternalSandbox,
}

#[derive(Deserialize)]
struct IngestAnswer {
    stored: i64,
    last_key: i64,
}

impl IngestClient {
    async fn open(server: &BenchServer) -> Result<Self> {
        let sandbox = server.create_sandbox().await?;
        Ok(Self {
            client: server.connect_worker(&sandbox).await?,
            path: sandbox.api_path("events").parse()?,
            batches: BatchBodies::new(sandbox.stream, EVENTS_PER_BATCH),
            sandbox,
        })
    }

    /// Posts batches sequentially; returns the number of stored events.
    async fn post_until(&mut self, until: Instant) -> Result<i64> {
        let mut stored = 0;
        while Instant::now() < until {
            let answer = self.client.post(&self.path, self.batches.next_body()).await?;
            let answer: IngestAnswer = serde_json::from_slice(&answer)?;
            ensure!(answer.last_key == self.batches.sent_events(), "events are missing after key {}", answer.last_key);
            stored += answer.stored;
        }
        Ok(stored)
    }
}

async fn run_sample(lanes: &mut [IngestClient], duration: Duration) -> Result<f64> {
    let began = Instant::now();
    let stored = try_join_all(lanes.iter_mut().map(|lane| lane.post_until(began + duration))).await?;
    Ok(stored.iter().sum::<i64>() as f64 / began.elapsed().as_secs_f64())
}

/// Alternates floor and figure, and compares each sample with the mean of the floors before and after it.
pub async fn measure_ingest(
    database: &str,
    scratch: &ScratchServer,
    floor: &mut impl Floor,
    rounds: usize,
    length: Duration,
) -> Result<Vec<Figure>> {
    let mut lanes = Vec::with_capacity(CLIENTS);
    for _ in 0..CLIENTS {
        lanes.push(IngestClient::open(&scratch.server).await?);
    }
    // Warm up both.
    run_sample(&mut lanes, length / 10).await?;
    floor.measure_rate(length / 10).await?;
    let mut floors = vec![floor.measure_rate(length).await?];
    let mut figures = Vec::new();
    for _ in 0..rounds {
        figures.push(run_sample(&mut lanes, length).await?);
        floors.push(floor.measure_rate(length).await?);
        print_progress(&format!(
            "  {:.0} events/s, floors {:.0?}",
            figures[figures.len() - 1],
            &floors[floors.len() - 2..]
        ));
    }
    for lane in &lanes {
        let stored = scratch.server.count_events(&lane.sandbox).await?;
        ensure!(
            stored >= lane.batches.sent_events(),
            "the server stored {stored} events of {}",
            lane.batches.sent_events()
        );
    }
    let ratios = figures.iter().zip(floors.windows(2)).map(|(figure, floors)| 2.0 * figure / (floors[0] + floors[1]));
    let ratio = median_of(ratios);
    let (rate, floor_rate) = (median_of(figures.iter().copied()), median_of(floors.iter().copied()));
    Ok(vec![Figure {
        name: format!("durable ingest, {database}, {CLIENTS} clients × {EVENTS_PER_BATCH} events of 1 KB"),
        measured: format!("{} events/s ({ratio:.2} ×)", group_digits(rate)),
        floor: format!("{} events/s", group_digits(floor_rate)),
        bar: format!("≥ {BAR} × floor"),
        verdict: FigureVerdict::from_met(ratio >= BAR),
        numbers: json!({ "ratio": ratio, "events_per_second": figures, "floor_events_per_second": floors }),
    }])
}
