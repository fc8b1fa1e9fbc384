//! `atoll-bench`: measures Atoll's performance bars, each next to a floor from the same run.
//!
//! The server is a separate process; the clients run here. Floor and figure alternate, so that other load on the
//! machine affects both. `figures::FigureName` lists the figures.

mod append;
mod bench;
mod client;
mod figures;
mod load;
mod machine;
mod pace;
mod plan;
mod report;
mod server;
mod socket;
mod stats;

use anyhow::{Context, Result};
use bench::Bench;
use clap::Parser;
use figures::FigureName;
use machine::{Machine, OtherLoad};
use plan::Plan;
use report::Report;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure Atoll's performance figures next to their floors
#[derive(Debug, Parser)]
#[command(name = "atoll-bench", max_term_width = 110)]
struct Arguments {
    /// Measure only this figure (repeatable)
    #[arg(long, value_name = "NAME", value_enum)]
    only: Vec<FigureName>,
    /// Use small sizes, as a smoke test
    #[arg(long)]
    quick: bool,
    /// Number of idle sandboxes [default: 300]
    #[arg(long, value_name = "COUNT")]
    idle: Option<usize>,
    /// Fail if a figure misses its bar
    #[arg(long)]
    strict: bool,
    /// Directory for the databases, on the file system to measure
    #[arg(long, value_name = "DIR", default_value = "target/bench-data")]
    dir: PathBuf,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE", default_value = "target/bench.json")]
    output: PathBuf,
    /// Path of the server program [default: `atoll` next to this one]
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,
}

fn main() -> ExitCode {
    // The server does the same.
    atoll_jail::request_short_slices(atoll_jail::SliceInheritance::Inherit);
    // One thread for all clients leaves the rest of the machine to the server.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return print_and_return(&format!("cannot start: {error}"), ExitCode::FAILURE),
    };
    match runtime.block_on(run_benches(&Arguments::parse())) {
        Ok(code) => code,
        Err(error) => print_and_return(&format!("{error:#}"), ExitCode::FAILURE),
    }
}

fn print_and_return(text: &str, code: ExitCode) -> ExitCode {
    bench::print_progress(text);
    code
}

async fn run_benches(arguments: &Arguments) -> Result<ExitCode> {
    std::fs::create_dir_all(&arguments.dir).with_context(|| format!("cannot create {}", arguments.dir.display()))?;
    let dir = arguments.dir.canonicalize()?;
    let mut plan = if arguments.quick { Plan::quick_size() } else { Plan::full_size() };
    plan.idle_sandboxes = arguments.idle.unwrap_or(plan.idle_sandboxes).max(1);
    let mut machine = Machine::inspect_host(&dir, plan.appends)?;
    bench::print_progress(&machine.to_string());
    let mut bench = Bench::new(server::find_program(arguments.server.clone())?, dir, plan);
    let others = OtherLoad::start_watching();
    let mut figures = Vec::new();
    for name in FigureName::ALL.into_iter().filter(|name| arguments.only.is_empty() || arguments.only.contains(name)) {
        bench::print_progress(&format!("{name} …"));
        figures.extend(name.measure_figure(&mut bench).await);
    }
    drop(bench);
    machine.other_cores = others.busy_cores();
    let report = Report { machine, quick: arguments.quick, figures };
    let mut out = std::io::stdout().lock();
    write!(out, "{report}")?;
    report.write_json(&arguments.output)?;
    writeln!(out, "results: {}", arguments.output.display())?;
    let failed = report.has_failure() || (arguments.strict && !report.all_met());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
