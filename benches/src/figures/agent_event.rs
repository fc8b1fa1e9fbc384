//! From a line of a working agent until its event is stored, in a real sandbox: the worker notes when
//! it read the line, the server when it had it.

use super::local_work::Work;
use crate::bench::{Bench, Scratch};
use crate::report::{Figure, Verdict};
use crate::stats::Latencies;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

const BAR_MS: f64 = 50.0;

fn micros(event: &Value, field: &str) -> Result<i64> {
    let text = event[field].as_str().with_context(|| format!("an event without {field}"))?;
    let time: atoll_core::time::Timestamp = text.parse().map_err(|_| anyhow::anyhow!("{text} is no time"))?;
    Ok(time.as_micros())
}

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let Scratch { server, dir: _dir } = bench.server(None)?;
    let work = Work::new(&server);
    let prompt = "say a step\nwait 0.005\n".repeat(bench.plan.steps);
    let id = work.make(json!({ "provider": "local", "agent": "demo", "prompt": prompt })).await?;
    work.until(&id, &["completed", "failed"]).await?;
    let mut latencies = Latencies::default();
    for event in work.events(&id).await? {
        if event["type"] == "agent.message" {
            let took = micros(&event, "received_at")? - micros(&event, "at")?;
            latencies.push(Duration::from_micros(u64::try_from(took).unwrap_or(0)));
        }
    }
    ensure!(latencies.count() >= bench.plan.steps, "{} of {} steps were told", latencies.count(), bench.plan.steps);
    let (p50, p99) = (latencies.p50(), latencies.p99());
    Ok(vec![Figure {
        figure: "agent's line → stored".into(),
        measured: format!("p99 {p99:.2} ms (p50 {p50:.2})"),
        floor: "—".into(),
        bar: format!("p99 < {BAR_MS} ms"),
        verdict: Verdict::of(p99 < BAR_MS),
        numbers: json!({ "p50_ms": p50, "p99_ms": p99, "events": latencies.count() }),
    }])
}
