//! Concurrent creation of many local sandboxes through the provider. Floor: the same number, two at a time.

use super::sandbox::{run_true, sandbox_spec, start_provider};
use crate::bench::{Bench, print_progress};
use crate::report::{Figure, FigureVerdict};
use crate::stats::median_of;
use anyhow::{Result, ensure};
use atoll_core::provider::{Provider, ProviderId};
use atoll_providers::Local;
use futures_util::{StreamExt, stream};
use serde_json::json;
use std::time::Instant;

const BAR: f64 = 1.3;
const LOW_CONCURRENCY: usize = 2;

async fn create_and_run(local: &Local) -> Result<ProviderId> {
    let found = local.create(&sandbox_spec(), "bench").await?;
    run_true(local, &found.id).await?;
    Ok(found.id)
}

/// Creates `count` sandboxes with `at_once` in progress and runs `true` in each. Returns the seconds until the last one has
/// finished, without the time to destroy them.
async fn time_concurrent_creations(local: &Local, count: usize, at_once: usize) -> Result<f64> {
    let began = Instant::now();
    let results: Vec<Result<ProviderId>> =
        stream::iter(0..count).map(|_| create_and_run(local)).buffer_unordered(at_once).collect().await;
    let took = began.elapsed().as_secs_f64();
    let mut failed = Vec::new();
    for result in results {
        match result {
            Ok(id) => local.destroy(&id).await?,
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    ensure!(failed.is_empty(), "{} of {count} failed: {}", failed.len(), failed.join("; "));
    Ok(took)
}

pub async fn measure_concurrent_creation(bench: &Bench) -> Result<Vec<Figure>> {
    let dir = bench.scratch_dir()?;
    let local = start_provider(bench, dir.path())?;
    let count = bench.plan.concurrent_sandboxes;
    time_concurrent_creations(&local, 3, 1).await?;
    let (mut floods, mut pairs) = (Vec::new(), Vec::new());
    for _ in 0..bench.plan.rounds {
        let pair = time_concurrent_creations(&local, count, LOW_CONCURRENCY).await?;
        let flood = time_concurrent_creations(&local, count, count).await?;
        print_progress(&format!("  {count} at once {flood:.2} s, two at a time {pair:.2} s"));
        floods.push(flood);
        pairs.push(pair);
    }
    let [flood, pair] = [&floods, &pairs].map(|all| median_of(all.iter().copied()));
    Ok(vec![Figure {
        name: format!("{count} local sandboxes created at once"),
        measured: format!("all, in {flood:.2} s ({:.2} ×)", flood / pair),
        floor: format!("two at a time {pair:.2} s"),
        bar: format!("< {BAR} × two at a time"),
        verdict: FigureVerdict::from_met(flood < BAR * pair),
        numbers: json!({ "at_once_s": floods, "two_at_a_time_s": pairs, "sandboxes": count }),
    }])
}
