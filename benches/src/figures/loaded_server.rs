//! A server with a million events, sent over its API, and its memory before and after.

use crate::bench::{Bench, ScratchServer, print_progress};
use crate::load::BatchBodies;
use crate::server::ExternalSandbox;
use anyhow::{Result, ensure};
use std::time::Instant;

/// Events in one request: the server's maximum.
const EVENTS_PER_REQUEST: i64 = 500;

pub struct LoadedServer {
    pub scratch: ScratchServer,
    pub sandbox: ExternalSandbox,
    pub idle_mb: f64,
    pub loaded_mb: f64,
    pub peak_mb: f64,
    pub events_per_second: f64,
}

/// Creates a sandbox and fills its log.
pub async fn fill_log(scratch: &ScratchServer, events: i64) -> Result<ExternalSandbox> {
    let sandbox = scratch.server.create_sandbox().await?;
    let mut worker = scratch.server.connect_worker(&sandbox).await?;
    let mut batches = BatchBodies::new(sandbox.stream, EVENTS_PER_REQUEST.min(events) as usize);
    let path = sandbox.api_path("events").parse()?;
    while batches.sent_events() < events {
        worker.post(&path, batches.next_body()).await?;
    }
    ensure!(scratch.server.count_events(&sandbox).await? >= events, "not all events are in the log");
    Ok(sandbox)
}

impl LoadedServer {
    pub async fn start_and_fill(bench: &Bench) -> Result<Self> {
        let plan = bench.plan;
        let scratch = bench.start_server(None)?;
        tokio::time::sleep(plan.settle_duration).await;
        let idle_mb = scratch.server.pss_mb()?;
        let began = Instant::now();
        let sandbox = fill_log(&scratch, plan.log_events).await?;
        let events_per_second = plan.log_events as f64 / began.elapsed().as_secs_f64();
        print_progress(&format!("  {} events in {:.1} s", plan.log_events, began.elapsed().as_secs_f64()));
        tokio::time::sleep(plan.settle_duration).await;
        let (loaded_mb, peak_mb) = (scratch.server.pss_mb()?, scratch.server.peak_rss_mb()?);
        Ok(Self { scratch, sandbox, idle_mb, loaded_mb, peak_mb, events_per_second })
    }

    /// The loaded server of this run, started on first use.
    pub async fn get_or_start(bench: &mut Bench) -> Result<&Self> {
        let loaded = match bench.loaded_server.take() {
            Some(loaded) => loaded,
            None => Self::start_and_fill(bench).await?,
        };
        Ok(bench.loaded_server.insert(loaded))
    }
}
