//! Many local sandboxes made at once, by the provider's own interface. Floor: as many, two at a time.

use super::sandbox::{provider, run_true, spec};
use crate::bench::{Bench, note};
use crate::report::{Figure, Verdict};
use crate::stats::median;
use anyhow::{Result, ensure};
use atoll_core::provider::{Provider, ProviderId};
use atoll_providers::Local;
use futures_util::{StreamExt, stream};
use serde_json::json;
use std::time::Instant;

const BAR: f64 = 1.3;
const FEW: usize = 2;

async fn made(local: &Local) -> Result<ProviderId> {
    let found = local.create(&spec(), "bench").await?;
    run_true(local, &found.id).await?;
    Ok(found.id)
}

/// Makes `count` with so many on their way, all of which must run `true`; seconds until the last has. They go unmeasured.
async fn wave(local: &Local, count: usize, at_once: usize) -> Result<f64> {
    let began = Instant::now();
    let all: Vec<Result<ProviderId>> =
        stream::iter(0..count).map(|_| made(local)).buffer_unordered(at_once).collect().await;
    let took = began.elapsed().as_secs_f64();
    let mut failed = Vec::new();
    for one in all {
        match one {
            Ok(id) => local.destroy(&id).await?,
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    ensure!(failed.is_empty(), "{} of {count} failed: {}", failed.len(), failed.join("; "));
    Ok(took)
}

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let dir = bench.scratch()?;
    let local = provider(bench, dir.path())?;
    let count = bench.plan.at_once;
    wave(&local, 3, 1).await?;
    let (mut floods, mut pairs) = (Vec::new(), Vec::new());
    for _ in 0..bench.plan.rounds {
        let pair = wave(&local, count, FEW).await?;
        let flood = wave(&local, count, count).await?;
        note(&format!("  {count} at once {flood:.2} s, two at a time {pair:.2} s"));
        floods.push(flood);
        pairs.push(pair);
    }
    let [flood, pair] = [&floods, &pairs].map(|all| median(all.iter().copied()));
    Ok(vec![Figure {
        figure: format!("{count} local sandboxes made at once"),
        measured: format!("all, in {flood:.2} s ({:.2} ×)", flood / pair),
        floor: format!("two at a time {pair:.2} s"),
        bar: format!("< {BAR} × two at a time"),
        verdict: Verdict::of(flood < BAR * pair),
        numbers: json!({ "at_once_s": floods, "two_at_a_time_s": pairs, "sandboxes": count }),
    }])
}
