//! One event per request at 500 requests per second, open loop. Floor: append a kilobyte to a file and fsync, right before
//! and right after.

use super::ingest::CLIENTS;
use crate::append;
use crate::bench::{Bench, ScratchServer, print_progress};
use crate::client::HttpClient;
use crate::load::SingleEventBody;
use crate::pace::{self, DueTimes};
use crate::report::{Figure, FigureVerdict};
use crate::server::ExternalSandbox;
use crate::stats::{Latencies, median_of};
use anyhow::Result;
use futures_util::future::try_join_all;
use serde_json::json;
use std::time::Duration;

const RATE: u32 = 500;
/// Connections that share the rate: the maximum of requests in flight.
const CONNECTIONS: usize = 32;
const BAR_MS: f64 = 10.0;
const BAR_FLOORS: f64 = 3.0;

async fn post_when_due(client: &mut HttpClient, sandbox: &ExternalSandbox, mut due: DueTimes) -> Result<Latencies> {
    let (path, single) = (sandbox.api_path("events").parse()?, SingleEventBody::new());
    let mut latencies = Latencies::default();
    while let Some(due) = due.recv().await {
        client.post(&path, single.body_sent_at(0)).await?;
        latencies.push(due.elapsed());
    }
    Ok(latencies)
}

async fn time_sample(clients: &mut [(HttpClient, ExternalSandbox)], length: Duration) -> Result<Latencies> {
    let count = (f64::from(RATE) * length.as_secs_f64()) as usize;
    let (lanes, _pace) = pace::start_schedule(RATE, count, clients.len());
    let lanes = clients.iter_mut().zip(lanes).map(|((client, sandbox), due)| post_when_due(client, sandbox, due));
    let mut all = Latencies::default();
    try_join_all(lanes).await?.into_iter().for_each(|latencies| all.extend(latencies));
    Ok(all)
}

pub async fn measure_single_event(bench: &Bench) -> Result<Vec<Figure>> {
    let plan = bench.plan;
    let ScratchServer { server, dir } = bench.start_server(None)?;
    let mut sandboxes = Vec::new();
    for _ in 0..CLIENTS {
        sandboxes.push(server.create_sandbox().await?);
    }
    let mut clients = Vec::new();
    for sandbox in sandboxes.iter().cycle().take(CONNECTIONS) {
        clients.push((server.connect_worker(sandbox).await?, sandbox.clone()));
    }
    time_sample(&mut clients, plan.sample_duration / 10).await?;
    let mut floors = vec![append::measure_appends(dir.path(), plan.appends)?];
    let mut samples = Vec::new();
    for _ in 0..plan.rounds {
        samples.push(time_sample(&mut clients, plan.sample_duration).await?);
        floors.push(append::measure_appends(dir.path(), plan.appends)?);
        if let (Some(sample), Some(floor)) = (samples.last_mut(), floors.last_mut()) {
            let (p50, p99, max) = (sample.p50(), sample.p99(), sample.max());
            print_progress(&format!(
                "  p50 {p50:.2} ms, p99 {p99:.2} ms, max {max:.2} ms, floor p99 {:.2} ms",
                floor.p99()
            ));
        }
    }
    let p50 = median_of(samples.iter_mut().map(Latencies::p50));
    let p99s: Vec<f64> = samples.iter_mut().map(Latencies::p99).collect();
    let floor_p99s: Vec<f64> = floors.iter_mut().map(Latencies::p99).collect();
    let (p99, floor) = (median_of(p99s.iter().copied()), median_of(floor_p99s.iter().copied()));
    let bar = BAR_MS.max(BAR_FLOORS * floor);
    Ok(vec![Figure {
        name: format!("single-event POST at {RATE}/s"),
        measured: format!("p99 {p99:.2} ms (p50 {p50:.2})"),
        floor: format!("p99 {floor:.2} ms (append + fsync)"),
        bar: format!("p99 < {bar:.1} ms"),
        verdict: FigureVerdict::from_met(p99 < bar),
        numbers: json!({ "p50_ms": p50, "p99_ms": p99s, "floor_p99_ms": floor_p99s, "bar_ms": bar,
            "requests": samples.iter().map(Latencies::count).sum::<usize>(),
            "max_ms": samples.iter_mut().map(Latencies::max).collect::<Vec<_>>() }),
    }])
}
