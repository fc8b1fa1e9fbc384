//! From a client's request for a sandbox to the exit of its first command, over HTTP. Floor: a whole bubblewrap run.

use super::local_sandboxes::LocalSandboxes;
use super::sandbox::{bubblewrap_command, time_programs};
use crate::bench::{Bench, ScratchServer, print_progress};
use crate::report::{Figure, FigureVerdict};
use crate::stats::{Latencies, median_of};
use anyhow::Result;
use serde_json::json;
use std::time::Instant;

/// Relative to bubblewrap.
const BAR: f64 = 3.0;

async fn time_first_commands(sandboxes: &LocalSandboxes<'_>, count: usize) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    for _ in 0..count {
        let began = Instant::now();
        let id = sandboxes.create_sandbox(json!({ "provider": "local", "agent": "demo" })).await?;
        sandboxes.run_true(&id).await?;
        latencies.push(began.elapsed());
        sandboxes.delete_sandbox(&id).await?;
    }
    Ok(latencies)
}

pub async fn measure_first_command(bench: &Bench) -> Result<Vec<Figure>> {
    let ScratchServer { server, dir: _dir } = bench.start_server(None)?;
    let sandboxes = LocalSandboxes::new(&server);
    time_first_commands(&sandboxes, 3).await?;
    let (mut starts, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..bench.plan.rounds {
        floors.push(time_programs(bench.plan.sandboxes, bubblewrap_command)?.p50());
        starts.push(time_first_commands(&sandboxes, bench.plan.sandboxes).await?.p50());
        if let (Some(start), Some(floor)) = (starts.last(), floors.last()) {
            print_progress(&format!("  POST /sandboxes → exit of true {start:.2} ms, bwrap {floor:.2} ms"));
        }
    }
    let [start, bwrap] = [&starts, &floors].map(|all| median_of(all.iter().copied()));
    Ok(vec![Figure {
        name: "POST /sandboxes → exit of the first `true`".into(),
        measured: format!("p50 {start:.2} ms ({:.2} × bwrap)", start / bwrap),
        floor: format!("bwrap {bwrap:.2} ms"),
        bar: format!("< {BAR} × bwrap"),
        verdict: FigureVerdict::from_met(start < BAR * bwrap),
        numbers: json!({ "p50_ms": starts, "bwrap_p50_ms": floors }),
    }])
}
