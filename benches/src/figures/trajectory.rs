//! A page of a long trajectory against the same page of a short one, on servers that hold nothing else.

use super::million::{self, Million};
use crate::bench::{Bench, Scratch};
use crate::client::Client;
use crate::report::{Figure, Verdict, grouped};
use crate::server::Sandbox;
use crate::stats::Latencies;
use anyhow::{Context, Result, ensure};
use hyper::Uri;
use rand::seq::IndexedRandom;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use std::time::Instant;

const SHORT: i64 = 1000;
const PAGE: usize = 100;
const BAR: f64 = 3.0;

#[derive(Deserialize)]
struct Page {
    events: Vec<IgnoredAny>,
    next_cursor: Option<String>,
}

/// A log, and the places in it that a page can start from.
struct Log {
    client: Client,
    newest: Uri,
    middle: Vec<Uri>,
    from_newest: Latencies,
    from_middle: Latencies,
}

impl Log {
    /// Walks through the whole log once; what it finds must be all of it.
    async fn open(scratch: &Scratch, sandbox: &Sandbox, events: i64, step: usize) -> Result<Self> {
        let mut client = scratch.server.admin().await?;
        let (mut cursors, mut seen, mut after) = (Vec::new(), 0, String::new());
        loop {
            let path = sandbox.path(&format!("trajectory?limit={step}{after}")).parse()?;
            let page: Page = client.ask(&path).await?;
            seen += page.events.len();
            let Some(cursor) = page.next_cursor else { break };
            after = format!("&cursor={cursor}");
            cursors.push(cursor);
        }
        ensure!(seen as i64 >= events, "{seen} events are in the trajectory of {events}");
        let back = format!("trajectory?limit={PAGE}&direction=backward");
        // Not the ends: a page from there could be a short one.
        let inner = &cursors[cursors.len() / 5..cursors.len() - cursors.len() / 5];
        let middle: Result<Vec<Uri>, _> =
            inner.iter().map(|cursor| sandbox.path(&format!("{back}&cursor={cursor}")).parse()).collect();
        let (from_newest, from_middle) = Default::default();
        Ok(Self { client, newest: sandbox.path(&back).parse()?, middle: middle?, from_newest, from_middle })
    }

    async fn read(&mut self) -> Result<()> {
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

fn line(what: &str, events: i64, long: &mut Latencies, short: &mut Latencies) -> Figure {
    let ratio = long.p50() / short.p50();
    Figure {
        figure: format!("trajectory page, {what}, {} events", grouped(events as f64)),
        measured: format!("p50 {:.2} ms ({ratio:.2} ×)", long.p50()),
        floor: format!("p50 {:.2} ms ({} events)", short.p50(), grouped(SHORT as f64)),
        bar: format!("< {BAR:.0} × floor"),
        verdict: Verdict::of(ratio < BAR),
        numbers: json!({ "ratio": ratio, "p50_ms": long.p50(), "p99_ms": long.p99(), "floor_p50_ms": short.p50(),
            "floor_p99_ms": short.p99() }),
    }
}

pub async fn measure(bench: &mut Bench) -> Result<Vec<Figure>> {
    let (events, pages) = (bench.plan.events, bench.plan.pages);
    let other = bench.server(None)?;
    let few = million::fill(&other, SHORT).await?;
    let million = Million::of(bench).await?;
    let mut long = Log::open(&million.scratch, &million.sandbox, events, 1000).await?;
    let mut short = Log::open(&other, &few, SHORT, PAGE).await?;
    for _ in 0..pages {
        long.read().await?;
        short.read().await?;
    }
    Ok(vec![
        line("from the newest back", events, &mut long.from_newest, &mut short.from_newest),
        line("from the middle", events, &mut long.from_middle, &mut short.from_middle),
    ])
}
