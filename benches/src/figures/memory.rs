//! The server's memory, idle and after a million events.

use super::loaded_server::LoadedServer;
use crate::bench::Bench;
use crate::report::{Figure, FigureVerdict, group_digits};
use anyhow::Result;
use serde_json::json;

const MAX_IDLE_MB: f64 = 40.0;
const MAX_LOADED_MB: f64 = 80.0;

pub async fn measure_server_memory(bench: &mut Bench) -> Result<Vec<Figure>> {
    let (events, settle) = (bench.plan.log_events, bench.plan.settle_duration.as_secs());
    let million = LoadedServer::get_or_start(bench).await?;
    let line = |what: String, measured: f64, bar: f64| Figure {
        name: format!("server memory, {what}"),
        measured: format!("{measured:.1} MB"),
        floor: "—".into(),
        bar: format!("< {bar:.0} MB"),
        verdict: FigureVerdict::from_met(measured < bar),
        numbers: json!({ "pss_mb": measured, "peak_rss_mb": million.peak_mb,
            "load_events_per_second": million.events_per_second }),
    };
    Ok(vec![
        line(format!("idle for {settle} s"), million.idle_mb, MAX_IDLE_MB),
        line(format!("{settle} s after {} events", group_digits(events as f64)), million.loaded_mb, MAX_LOADED_MB),
    ])
}
