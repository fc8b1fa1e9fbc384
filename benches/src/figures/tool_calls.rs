//! The worker's memory while it drives an agent that uses a tool very often: bounded, and the same at the end as at the
//! beginning.

use super::local_work::Work;
use super::sandbox_memory::Process;
use crate::bench::{Bench, Scratch};
use crate::report::{Figure, Verdict, grouped};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::time::{Duration, Instant};

const BAR_MB: f64 = 30.0;
/// More than it had after a tenth of the calls.
const FLAT_MB: f64 = 4.0;
const PATIENCE: Duration = Duration::from_secs(1800);

fn megabytes(kilobytes: f64) -> f64 {
    kilobytes * 1024.0 / 1e6
}

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let Scratch { server, dir } = bench.server(None)?;
    let work = Work::new(&server);
    let calls = bench.plan.calls;
    let prompt = "run true\n".repeat(calls);
    let id = work.make(json!({ "provider": "local", "agent": "demo", "end": "keep", "prompt": prompt })).await?;
    work.until(&id, &["running"]).await?;
    let worker = Process::all(&bench.worker_of(&dir.path().join("data"))?).into_iter().find(Process::is_worker);
    let worker = worker.context("the worker was not found")?;
    let (began, mut early) = (Instant::now(), None);
    loop {
        let row: serde_json::Value = server.admin().await?.ask(&format!("/api/v1/sandboxes/{id}").parse()?).await?;
        let events = usize::try_from(row["last_seq"].as_i64().unwrap_or(0)).unwrap_or(0);
        if early.is_none() && events >= calls / 5 {
            early = Some(megabytes(worker.number("status", "VmRSS:")));
        }
        // Each call is two events.
        if events >= 2 * calls && row["activity"] == "waiting_message" {
            break;
        }
        ensure!(began.elapsed() < PATIENCE, "{events} events of {calls} calls were told");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (late, peak) = (megabytes(worker.number("status", "VmRSS:")), megabytes(worker.number("status", "VmHWM:")));
    let early = early.unwrap_or(late);
    work.remove(&id).await?;
    Ok(vec![Figure {
        figure: format!("worker memory, an agent with {} tool calls", grouped(calls as f64)),
        measured: format!("peak {peak:.1} MB; {early:.1} MB after a tenth, {late:.1} at the end"),
        floor: "—".into(),
        bar: format!("< {BAR_MB} MB, flat"),
        verdict: Verdict::of(peak < BAR_MB && late - early < FLAT_MB),
        numbers: json!({ "peak_mb": peak, "early_mb": early, "late_mb": late, "calls": calls }),
    }])
}
