//! The worker's memory while its agent makes many tool calls: bounded, and flat over the run.

use super::local_sandboxes::LocalSandboxes;
use super::sandbox_memory::SandboxProcess;
use crate::bench::{Bench, ScratchServer};
use crate::report::{Figure, FigureVerdict, group_digits};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::time::{Duration, Instant};

const BAR_MB: f64 = 30.0;
/// Allowed growth after the first tenth of the calls.
const MAX_GROWTH_MB: f64 = 4.0;
const CALLS_TIMEOUT: Duration = Duration::from_secs(1800);

fn kilobytes_to_megabytes(kilobytes: f64) -> f64 {
    kilobytes * 1024.0 / 1e6
}

pub async fn measure_tool_calls(bench: &Bench) -> Result<Vec<Figure>> {
    let ScratchServer { server, dir } = bench.start_server(None)?;
    let work = LocalSandboxes::new(&server);
    let calls = bench.plan.tool_calls;
    let prompt = "run true\n".repeat(calls);
    let id =
        work.create_sandbox(json!({ "provider": "local", "agent": "demo", "end": "keep", "prompt": prompt })).await?;
    work.wait_for_state(&id, &["running"]).await?;
    let worker = SandboxProcess::find_all(&bench.installed_worker(&dir.path().join("data"))?)
        .into_iter()
        .find(SandboxProcess::is_worker);
    let worker = worker.context("no worker process found")?;
    let (began, mut early) = (Instant::now(), None);
    loop {
        let row: serde_json::Value =
            server.connect_admin().await?.get_json(&format!("/api/v1/sandboxes/{id}").parse()?).await?;
        let events = usize::try_from(row["last_seq"].as_i64().unwrap_or(0)).unwrap_or(0);
        if early.is_none() && events >= calls / 5 {
            early = Some(kilobytes_to_megabytes(worker.read_number("status", "VmRSS:")));
        }
        // Each call is two events.
        if events >= 2 * calls && row["activity"] == "waiting_message" {
            break;
        }
        ensure!(began.elapsed() < CALLS_TIMEOUT, "only {events} events after {calls} calls");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (late, peak) = (
        kilobytes_to_megabytes(worker.read_number("status", "VmRSS:")),
        kilobytes_to_megabytes(worker.read_number("status", "VmHWM:")),
    );
    let early = early.unwrap_or(late);
    work.delete_sandbox(&id).await?;
    Ok(vec![Figure {
        name: format!("worker memory, an agent with {} tool calls", group_digits(calls as f64)),
        measured: format!("peak {peak:.1} MB; {early:.1} MB after a tenth, {late:.1} at the end"),
        floor: "—".into(),
        bar: format!("< {BAR_MB} MB, flat"),
        verdict: FigureVerdict::from_met(peak < BAR_MB && late - early < MAX_GROWTH_MB),
        numbers: json!({ "peak_mb": peak, "early_mb": early, "late_mb": late, "calls": calls }),
    }])
}
