//! The web page in Chromium: `web/e2e/measure.ts` measures it against this server.

use crate::bench::Bench;
use crate::plan::PageSizes;
use crate::report::{Figure, FigureVerdict};
use anyhow::{Context, Result, ensure};
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::node::find_node;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const CHROMIUM: &str = "/usr/bin/chromium";
const FIRST_LOAD_BAR_KB: f64 = 400.0;
const EVENT_BAR_MS: f64 = 150.0;
const OPEN_BAR_MS: f64 = 1000.0;
const FILE_BAR_MS: f64 = 300.0;
const TASK_BAR_MS: f64 = 100.0;

#[derive(Deserialize)]
struct Measured {
    first_load: FirstLoad,
    event: Value,
    timeline: Value,
    diff: Value,
    list: Value,
}

#[derive(Deserialize)]
struct FirstLoad {
    kilobytes: f64,
    first_paint_ms: f64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Spread {
    p50: f64,
    p95: f64,
}

pub fn measure_page(bench: &Bench) -> Result<Vec<Figure>> {
    let scratch = bench.start_server(None)?;
    let repository = SampleRepository::create();
    let (address, token) = (scratch.server.address, scratch.server.token.clone());
    let sizes = bench.plan.page;
    let mut script = measuring_script(sizes)?;
    script.env("E2E_URL", format!("http://{address}")).env("E2E_TOKEN", token).env("E2E_REPO", repository.path());
    script.env("HOME", scratch.dir.path()).env("TMPDIR", scratch.dir.path());
    // The script talks to the server only: this thread may wait.
    let output = script.stderr(Stdio::inherit()).output().context("cannot run node")?;
    ensure!(output.status.success(), "measure.ts: {}", output.status);
    let measured: Measured = serde_json::from_slice(&output.stdout).context("unexpected output of measure.ts")?;
    list_figures(&measured, sizes)
}

fn measuring_script(sizes: PageSizes) -> Result<Command> {
    let web: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("web");
    let runner = web.join("node_modules/tsx/dist/cli.mjs");
    ensure!(runner.exists(), "{} is missing: run `make page`", runner.display());
    ensure!(Path::new(CHROMIUM).exists(), "{CHROMIUM} is missing: install the package chromium");
    let mut command = Command::new(find_node());
    command.arg(runner).arg("e2e/measure.ts").current_dir(web).env("CHROMIUM", CHROMIUM);
    let counts = [
        ("MEASURE_EVENTS", sizes.events),
        ("MEASURE_FILES", sizes.files),
        ("MEASURE_AGENTS", sizes.agents),
        ("MEASURE_ROUNDS", sizes.rounds),
    ];
    command.envs(counts.map(|(name, count)| (name, count.to_string())));
    Ok(command)
}

fn list_figures(measured: &Measured, sizes: PageSizes) -> Result<Vec<Figure>> {
    let PageSizes { events, files, agents, .. } = sizes;
    let Measured { first_load, event, timeline, diff, list } = measured;
    let kilobytes = first_load.kilobytes;
    let mut figures = vec![Figure {
        name: "page, script before the first paint".into(),
        measured: format!("{kilobytes:.0} KB gzipped"),
        floor: "—".into(),
        bar: format!("< {FIRST_LOAD_BAR_KB:.0} KB"),
        verdict: FigureVerdict::from_met(kilobytes < FIRST_LOAD_BAR_KB),
        numbers: json!({ "kilobytes": kilobytes, "first_paint_ms": first_load.first_paint_ms }),
    }];
    for (name, measured, floor, bar) in [
        ("page, event stored → seen".to_owned(), &event["seen"], &event["floor"], EVENT_BAR_MS),
        (format!("page, opens {events} events"), &timeline["open"], &timeline["floor"], OPEN_BAR_MS),
        (format!("page, opens a diff of {files} files"), &diff["open"], &diff["floor"], OPEN_BAR_MS),
        (format!("page, shows a file of {files}"), &diff["file"], &diff["file_floor"], FILE_BAR_MS),
        (format!("page, opens a list of {agents} agents"), &list["open"], &list["floor"], OPEN_BAR_MS),
    ] {
        figures.push(time_figure(name, Spread::deserialize(measured)?, Spread::deserialize(floor)?, bar));
    }
    let scrolls = format!("page, longest task while {events} events scroll");
    figures.push(task_figure(scrolls, timeline, timeline["reached_oldest"] == true)?);
    figures.push(task_figure(format!("page, longest task of {agents} live agents"), list, true)?);
    Ok(figures)
}

/// The bar applies to the 95th percentile.
fn time_figure(name: String, measured: Spread, floor: Spread, bar_ms: f64) -> Figure {
    Figure {
        name,
        measured: format!("p50 {:.0} ms, p95 {:.0} ms", measured.p50, measured.p95),
        floor: format!("p50 {:.0} ms", floor.p50),
        bar: format!("< {bar_ms:.0} ms"),
        verdict: FigureVerdict::from_met(measured.p95 < bar_ms),
        numbers: json!({ "p50_ms": measured.p50, "p95_ms": measured.p95, "floor_p50_ms": floor.p50,
            "floor_p95_ms": floor.p95 }),
    }
}

/// Browsers report no task below 50 ms.
fn task_figure(name: String, numbers: &Value, is_complete: bool) -> Result<Figure> {
    let longest = numbers["longest_task_ms"].as_f64().context("no longest task")?;
    Ok(Figure {
        name,
        measured: if longest < 50.0 { "< 50 ms".into() } else { format!("{longest:.0} ms") },
        floor: "50 ms (least reported)".into(),
        bar: format!("< {TASK_BAR_MS:.0} ms"),
        verdict: FigureVerdict::from_met(longest < TASK_BAR_MS && is_complete),
        numbers: json!({ "longest_task_ms": longest, "is_complete": is_complete }),
    })
}
