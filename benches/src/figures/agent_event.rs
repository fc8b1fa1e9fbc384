//! From an agent's output line to its stored event, in a real sandbox: the worker records when it read the line, the server
//! when it received the event.

use super::local_sandboxes::LocalSandboxes;
use crate::bench::{Bench, ScratchServer};
use crate::report::{Figure, FigureVerdict};
use crate::stats::Latencies;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

const BAR_MS: f64 = 50.0;

fn parse_micros(event: &Value, field: &str) -> Result<i64> {
    let text = event[field].as_str().with_context(|| format!("the event has no {field}"))?;
    let time: atoll_core::time::Timestamp = text.parse().map_err(|_| anyhow::anyhow!("{text} is not a timestamp"))?;
    Ok(time.as_micros())
}

pub async fn measure_agent_event(bench: &Bench) -> Result<Vec<Figure>> {
    let ScratchServer { server, dir: _dir } = bench.start_server(None)?;
    let work = LocalSandboxes::new(&server);
    let prompt = "say a step\nwait 0.005\n".repeat(bench.plan.agent_steps);
    let id = work.create_sandbox(json!({ "provider": "local", "agent": "demo", "prompt": prompt })).await?;
    work.wait_for_state(&id, &["completed", "failed"]).await?;
    let mut latencies = Latencies::default();
    for event in work.list_events(&id).await? {
        if event["type"] == "agent.message" {
            let took = parse_micros(&event, "received_at")? - parse_micros(&event, "at")?;
            latencies.push(Duration::from_micros(u64::try_from(took).unwrap_or(0)));
        }
    }
    ensure!(
        latencies.count() >= bench.plan.agent_steps,
        "{} of {} steps were stored",
        latencies.count(),
        bench.plan.agent_steps
    );
    let (p50, p99) = (latencies.p50(), latencies.p99());
    Ok(vec![Figure {
        name: "agent output line → stored event".into(),
        measured: format!("p99 {p99:.2} ms (p50 {p50:.2})"),
        floor: "—".into(),
        bar: format!("p99 < {BAR_MS} ms"),
        verdict: FigureVerdict::from_met(p99 < BAR_MS),
        numbers: json!({ "p50_ms": p50, "p99_ms": p99, "events": latencies.count() }),
    }])
}
