//! A page of a long trajectory against the same page of a short one, each on its own server.

use super::loaded_server::{self, LoadedServer};
use crate::bench::{Bench, ScratchServer};
use crate::client::HttpClient;
use crate::report::{Figure, FigureVerdict, group_digits};
use crate::server::ExternalSandbox;
use crate::stats::Latencies;
use anyhow::{Context, Result, ensure};
use hyper::Uri;
use rand::seq::IndexedRandom;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use std::time::Instant;

const SHORT_LOG_EVENTS: i64 = 1000;
const PAGE: usize = 100;
const BAR: f64 = 3.0;

#[derive(Deserialize)]
struct TrajectoryPage {
    events: Vec<IgnoredAny>,
    next_cursor: Option<String>,
}

/// A log with the URLs of its measured pages.
struct MeasuredLog {
    client: HttpClient,
    newest: Uri,
    middle: Vec<Uri>,
    from_newest: Latencies,
    from_middle: Latencies,
}

impl MeasuredLog {
    /// Reads the whole log once, checks that it is complete, and collects cursors.
    async fn open(scratch: &ScratchServer, sandbox: &ExternalSandbox, events: i64, step: usize) -> Result<Self> {
        let mut client = scratch.server.connect_admin().await?;
        let (mut cursors, mut event_count, mut after) = (Vec::new(), 0, String::new());
        loop {
            let path = sandbox.api_path(&format!("trajectory?limit={step}{after}")).parse()?;
            let page: TrajectoryPage = client.get_json(&path).await?;
            event_count += page.events.len();
            let Some(cursor) = page.next_cursor else { break };
            after = format!("&cursor={cursor}");
            cursors.push(cursor);
        }
        ensure!(event_count as i64 >= events, "the trajectory has {event_count} of {events} events");
        let back = format!("trajectory?limit={PAGE}&direction=backward");
        // Skip the ends: a page from there could be shorter.
        let inner = &cursors[cursors.len() / 5..cursors.len() - cursors.len() / 5];
        let middle: Result<Vec<Uri>, _> =
            inner.iter().map(|cursor| sandbox.api_path(&format!("{back}&cursor={cursor}")).parse()).collect();
        let (from_newest, from_middle) = Default::default();
        Ok(Self { client, newest: sandbox.api_path(&back).parse()?, middle: middle?, from_newest, from_middle })
    }

    async fn time_pages(&mut self) -> Result<()> {
        let began = Instant::now();
        self.client.get(&self.newest).await?;
        self.from_newest.push(began.elapsed());
        let middle = self.middle.choose(&mut rand::rng()).context("the log has no middle")?;
        let began = Instant::now();
        self.client.get(middle).await?;
        self.from_middle.push(began.elapsed());
        Ok(())
    }
}

fn page_figure(what: &str, events: i64, long: &mut Latencies, short: &mut Latencies) -> Figure {
    let ratio = long.p50() / short.p50();
    Figure {
        name: format!("trajectory page, {what}, {} events", group_digits(events as f64)),
        measured: format!("p50 {:.2} ms ({ratio:.2} ×)", long.p50()),
        floor: format!("p50 {:.2} ms ({} events)", short.p50(), group_digits(SHORT_LOG_EVENTS as f64)),
        bar: format!("< {BAR:.0} × floor"),
        verdict: FigureVerdict::from_met(ratio < BAR),
        numbers: json!({ "ratio": ratio, "p50_ms": long.p50(), "p99_ms": long.p99(), "floor_p50_ms": short.p50(),
            "floor_p99_ms": short.p99() }),
    }
}

pub async fn measure_trajectory(bench: &mut Bench) -> Result<Vec<Figure>> {
    let (events, pages) = (bench.plan.log_events, bench.plan.page_reads);
    let other = bench.start_server(None)?;
    let few = loaded_server::fill_log(&other, SHORT_LOG_EVENTS).await?;
    let million = LoadedServer::get_or_start(bench).await?;
    let mut long = MeasuredLog::open(&million.scratch, &million.sandbox, events, 1000).await?;
    let mut short = MeasuredLog::open(&other, &few, SHORT_LOG_EVENTS, PAGE).await?;
    for _ in 0..pages {
        long.time_pages().await?;
        short.time_pages().await?;
    }
    Ok(vec![
        page_figure("newest", events, &mut long.from_newest, &mut short.from_newest),
        page_figure("middle", events, &mut long.from_middle, &mut short.from_middle),
    ])
}
