//! Durable ingest over HTTP, whatever the database: the clients, the turns and the line of the table.

use crate::bench::{Scratch, note};
use crate::client::Client;
use crate::load::{BATCH, Batches};
use crate::report::{Figure, Verdict, grouped};
use crate::server::{Sandbox, Server};
use crate::stats::median;
use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use hyper::Uri;
use serde::Deserialize;
use serde_json::json;
use std::time::{Duration, Instant};

/// Clients at the same time, each with a sandbox of its own.
pub const CLIENTS: usize = 8;
/// The part of the floor that has to be reached.
const BAR: f64 = 0.5;

/// Something that writes events for a while and says how many a second it wrote.
pub trait Floor {
    async fn run(&mut self, turn: Duration) -> Result<f64>;
}

struct Lane {
    client: Client,
    path: Uri,
    batches: Batches,
    sandbox: Sandbox,
}

#[derive(Deserialize)]
struct Stored {
    stored: i64,
    last_key: i64,
}

impl Lane {
    async fn open(server: &Server) -> Result<Self> {
        let sandbox = server.sandbox().await?;
        Ok(Self {
            client: server.worker(&sandbox).await?,
            path: sandbox.path("events").parse()?,
            batches: Batches::new(sandbox.stream, BATCH),
            sandbox,
        })
    }

    /// One batch after the other; says how many events were answered for.
    async fn run(&mut self, until: Instant) -> Result<i64> {
        let mut stored = 0;
        while Instant::now() < until {
            let answer = self.client.post(&self.path, self.batches.next()).await?;
            let answer: Stored = serde_json::from_slice(&answer)?;
            ensure!(answer.last_key == self.batches.sent(), "events are missing behind key {}", answer.last_key);
            stored += answer.stored;
        }
        Ok(stored)
    }
}

async fn turn(lanes: &mut [Lane], turn: Duration) -> Result<f64> {
    let began = Instant::now();
    let stored = try_join_all(lanes.iter_mut().map(|lane| lane.run(began + turn))).await?;
    Ok(stored.iter().sum::<i64>() as f64 / began.elapsed().as_secs_f64())
}

/// Floor, figure, floor, figure … floor: each turn of the figure has the floors on both its sides beside it.
pub async fn measure(
    database: &str,
    scratch: &Scratch,
    floor: &mut impl Floor,
    rounds: usize,
    length: Duration,
) -> Result<Vec<Figure>> {
    let mut lanes = Vec::with_capacity(CLIENTS);
    for _ in 0..CLIENTS {
        lanes.push(Lane::open(&scratch.server).await?);
    }
    // Nobody's first steps are measured.
    turn(&mut lanes, length / 10).await?;
    floor.run(length / 10).await?;
    let mut floors = vec![floor.run(length).await?];
    let mut figures = Vec::new();
    for _ in 0..rounds {
        figures.push(turn(&mut lanes, length).await?);
        floors.push(floor.run(length).await?);
        note(&format!("  {:.0} events/s, floors {:.0?}", figures[figures.len() - 1], &floors[floors.len() - 2..]));
    }
    for lane in &lanes {
        let held = scratch.server.events(&lane.sandbox).await?;
        ensure!(held >= lane.batches.sent(), "{held} events are there of {}", lane.batches.sent());
    }
    let ratios = figures.iter().zip(floors.windows(2)).map(|(figure, beside)| 2.0 * figure / (beside[0] + beside[1]));
    let ratio = median(ratios);
    let (rate, least) = (median(figures.iter().copied()), median(floors.iter().copied()));
    Ok(vec![Figure {
        figure: format!("durable ingest, {database}, {CLIENTS} clients × {BATCH} events of 1 KB"),
        measured: format!("{} events/s ({ratio:.2} ×)", grouped(rate)),
        floor: format!("{} events/s", grouped(least)),
        bar: format!("≥ {BAR} × floor"),
        verdict: Verdict::of(ratio >= BAR),
        numbers: json!({ "ratio": ratio, "events_per_second": figures, "floor_events_per_second": floors }),
    }])
}
