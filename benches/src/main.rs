//! `atoll-bench`: measures what Atoll promises, each figure beside a floor from the same run.
//!
//! The server is a process of its own, the clients are here. Floor and figure take turns, so that
//! a noisy neighbour meets both. The map of the figures is `figures::Name`.

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
use figures::Name;
use machine::{Machine, Others};
use plan::Plan;
use report::Report;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure the figures that Atoll promises, beside their floors.
#[derive(Debug, Parser)]
#[command(name = "atoll-bench", max_term_width = 110)]
struct Arguments {
    /// Measure only this figure; may be given several times
    #[arg(long, value_name = "NAME", value_enum)]
    only: Vec<Name>,
    /// Small sizes, to see that everything works; the numbers mean little
    #[arg(long)]
    quick: bool,
    /// So many idle sandboxes instead of 300, where there is little memory
    #[arg(long, value_name = "COUNT")]
    idle: Option<usize>,
    /// Fail when a bar is not met
    #[arg(long)]
    strict: bool,
    /// Where the databases are made and removed again; its file system is what is measured
    #[arg(long, value_name = "DIR", default_value = "target/bench-data")]
    dir: PathBuf,
    /// Where the same is written as JSON
    #[arg(long, value_name = "FILE", default_value = "target/bench.json")]
    output: PathBuf,
    /// The server's program [default: `atoll` beside this one]
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,
}

fn main() -> ExitCode {
    // As the server does.
    atoll_jail::prompt(atoll_jail::Heirs::Same);
    // One thread for all clients: the server should have the rest of the machine.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return say(&format!("can't start: {error}"), ExitCode::FAILURE),
    };
    match runtime.block_on(run(&Arguments::parse())) {
        Ok(code) => code,
        Err(error) => say(&format!("{error:#}"), ExitCode::FAILURE),
    }
}

fn say(text: &str, code: ExitCode) -> ExitCode {
    bench::note(text);
    code
}

async fn run(arguments: &Arguments) -> Result<ExitCode> {
    std::fs::create_dir_all(&arguments.dir).with_context(|| format!("can't make {}", arguments.dir.display()))?;
    let dir = arguments.dir.canonicalize()?;
    let mut plan = if arguments.quick { Plan::quick() } else { Plan::full() };
    plan.idle = arguments.idle.unwrap_or(plan.idle).max(1);
    let mut machine = Machine::look(&dir, plan.appends)?;
    bench::note(&machine.to_string());
    let mut bench = Bench::new(server::find(arguments.server.clone())?, dir, plan);
    let others = Others::watch();
    let mut figures = Vec::new();
    for name in Name::ALL.into_iter().filter(|name| arguments.only.is_empty() || arguments.only.contains(name)) {
        bench::note(&format!("{name} …"));
        figures.extend(name.measure(&mut bench).await);
    }
    drop(bench);
    machine.others_cores = others.cores();
    let report = Report { machine, quick: arguments.quick, figures };
    let mut out = std::io::stdout().lock();
    write!(out, "{report}")?;
    report.write(&arguments.output)?;
    writeln!(out, "written to {}", arguments.output.display())?;
    let failed = report.failed() || (arguments.strict && !report.met());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
