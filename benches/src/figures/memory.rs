//! The server's share of the machine's memory, idle and after a million events.

use super::million::Million;
use crate::bench::Bench;
use crate::report::{Figure, Verdict, grouped};
use anyhow::Result;
use serde_json::json;

const IDLE_MB: f64 = 40.0;
const LOADED_MB: f64 = 80.0;

pub async fn measure(bench: &mut Bench) -> Result<Vec<Figure>> {
    let (events, settle) = (bench.plan.events, bench.plan.settle.as_secs());
    let million = Million::of(bench).await?;
    let line = |what: String, measured: f64, bar: f64| Figure {
        figure: format!("server memory, {what}"),
        measured: format!("{measured:.1} MB"),
        floor: "—".into(),
        bar: format!("< {bar:.0} MB"),
        verdict: Verdict::of(measured < bar),
        numbers: json!({ "pss_mb": measured, "peak_rss_mb": million.peak_mb,
            "load_events_per_second": million.events_per_second }),
    };
    Ok(vec![
        line(format!("idle for {settle} s"), million.idle_mb, IDLE_MB),
        line(format!("{settle} s after {} events", grouped(events as f64)), million.loaded_mb, LOADED_MB),
    ])
}
