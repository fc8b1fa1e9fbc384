//! A server that was given a million events through its own door, and what it weighed before.

use crate::bench::{Bench, Scratch, note};
use crate::load::Batches;
use crate::server::Sandbox;
use anyhow::{Result, ensure};
use std::time::Instant;

/// Events in one request: as many as the server takes.
const BATCH: i64 = 500;

pub struct Million {
    pub scratch: Scratch,
    pub sandbox: Sandbox,
    pub idle_mb: f64,
    pub loaded_mb: f64,
    pub peak_mb: f64,
    pub events_per_second: f64,
}

/// Fills one sandbox's log.
pub async fn fill(scratch: &Scratch, events: i64) -> Result<Sandbox> {
    let sandbox = scratch.server.sandbox().await?;
    let mut worker = scratch.server.worker(&sandbox).await?;
    let mut batches = Batches::new(sandbox.stream, BATCH.min(events) as usize);
    let path = sandbox.path("events").parse()?;
    while batches.sent() < events {
        worker.post(&path, batches.next()).await?;
    }
    ensure!(scratch.server.events(&sandbox).await? >= events, "not all events are in the log");
    Ok(sandbox)
}

impl Million {
    pub async fn make(bench: &Bench) -> Result<Self> {
        let plan = bench.plan;
        let scratch = bench.server(None)?;
        tokio::time::sleep(plan.settle).await;
        let idle_mb = scratch.server.pss()?;
        let began = Instant::now();
        let sandbox = fill(&scratch, plan.events).await?;
        let events_per_second = plan.events as f64 / began.elapsed().as_secs_f64();
        note(&format!("  {} events in {:.1} s", plan.events, began.elapsed().as_secs_f64()));
        tokio::time::sleep(plan.settle).await;
        let (loaded_mb, peak_mb) = (scratch.server.pss()?, scratch.server.peak()?);
        Ok(Self { scratch, sandbox, idle_mb, loaded_mb, peak_mb, events_per_second })
    }

    /// The one of this run.
    pub async fn of(bench: &mut Bench) -> Result<&Self> {
        let made = match bench.million.take() {
            Some(made) => made,
            None => Self::make(bench).await?,
        };
        Ok(bench.million.insert(made))
    }
}
