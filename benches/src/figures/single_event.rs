//! One event in one request, 500 a second whether or not the earlier ones are answered. Floor: one
//! kilobyte appended to a file and flushed, right before and right after.

use super::ingest::CLIENTS;
use crate::append;
use crate::bench::{Bench, Scratch, note};
use crate::client::Client;
use crate::load::Single;
use crate::pace::{self, Lane};
use crate::report::{Figure, Verdict};
use crate::server::Sandbox;
use crate::stats::{Latencies, median};
use anyhow::Result;
use futures_util::future::try_join_all;
use serde_json::json;
use std::time::Duration;

const RATE: u32 = 500;
/// Connections that share the rate; so many requests can be under way.
const LANES: usize = 32;
const BAR_MS: f64 = 10.0;
const BAR_FLOORS: f64 = 3.0;

async fn lane(client: &mut Client, sandbox: &Sandbox, mut due: Lane) -> Result<Latencies> {
    let (path, single) = (sandbox.path("events").parse()?, Single::new());
    let mut latencies = Latencies::default();
    while let Some(due) = due.recv().await {
        client.post(&path, single.body(0)).await?;
        latencies.push(due.elapsed());
    }
    Ok(latencies)
}

async fn turn(clients: &mut [(Client, Sandbox)], length: Duration) -> Result<Latencies> {
    let count = (f64::from(RATE) * length.as_secs_f64()) as usize;
    let (lanes, _pace) = pace::start(RATE, count, clients.len());
    let lanes = clients.iter_mut().zip(lanes).map(|((client, sandbox), due)| lane(client, sandbox, due));
    let mut all = Latencies::default();
    try_join_all(lanes).await?.into_iter().for_each(|latencies| all.extend(latencies));
    Ok(all)
}

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let plan = bench.plan;
    let Scratch { server, dir } = bench.server(None)?;
    let mut sandboxes = Vec::new();
    for _ in 0..CLIENTS {
        sandboxes.push(server.sandbox().await?);
    }
    let mut clients = Vec::new();
    for sandbox in sandboxes.iter().cycle().take(LANES) {
        clients.push((server.worker(sandbox).await?, sandbox.clone()));
    }
    turn(&mut clients, plan.turn / 10).await?;
    let mut floors = vec![append::measure(dir.path(), plan.appends)?];
    let mut turns = Vec::new();
    for _ in 0..plan.rounds {
        turns.push(turn(&mut clients, plan.turn).await?);
        floors.push(append::measure(dir.path(), plan.appends)?);
        if let (Some(turn), Some(floor)) = (turns.last_mut(), floors.last_mut()) {
            let (p50, p99, max) = (turn.p50(), turn.p99(), turn.max());
            note(&format!("  p50 {p50:.2} ms, p99 {p99:.2} ms, max {max:.2} ms, floor p99 {:.2} ms", floor.p99()));
        }
    }
    let p50 = median(turns.iter_mut().map(Latencies::p50));
    let p99s: Vec<f64> = turns.iter_mut().map(Latencies::p99).collect();
    let floor_p99s: Vec<f64> = floors.iter_mut().map(Latencies::p99).collect();
    let (p99, floor) = (median(p99s.iter().copied()), median(floor_p99s.iter().copied()));
    let bar = BAR_MS.max(BAR_FLOORS * floor);
    Ok(vec![Figure {
        figure: format!("single-event POST at {RATE}/s"),
        measured: format!("p99 {p99:.2} ms (p50 {p50:.2})"),
        floor: format!("p99 {floor:.2} ms (append + fsync)"),
        bar: format!("p99 < {bar:.1} ms"),
        verdict: Verdict::of(p99 < bar),
        numbers: json!({ "p50_ms": p50, "p99_ms": p99s, "floor_p99_ms": floor_p99s, "bar_ms": bar,
            "requests": turns.iter().map(Latencies::count).sum::<usize>(),
            "max_ms": turns.iter_mut().map(Latencies::max).collect::<Vec<_>>() }),
    }])
}
