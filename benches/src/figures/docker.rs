//! Sandboxes beside `docker run`, where an engine can be started: ours as containers, and ours without an engine. The
//! same image, the same engine, in turns.

use super::sandbox::{Nobody, creations, programs};
use crate::bench::{Bench, note};
use crate::report::{Figure, Verdict};
use crate::stats::median;
use anyhow::Result;
use atoll_jail::{Launcher, LauncherOptions};
use atoll_providers::{Docker, DockerOptions, Local};
use atoll_tests::engine::{Engine, IMAGE};
use serde_json::json;
use std::process::Command;
use std::sync::Arc;

/// A container with a worker that runs `true`, against the engine's own command line doing the same.
const BAR_CONTAINER: f64 = 1.5;
/// `docker run`, against a local sandbox.
const BAR_LOCAL: f64 = 20.0;

fn docker_run(engine: &Engine) -> Command {
    let mut command = engine.command();
    command.args(["run", "--rm", "--network", "none", IMAGE, "true"]);
    command
}

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let engine = match Engine::shared() {
        Ok(engine) => engine,
        Err(why) => {
            note(&format!("  skipped: {why}"));
            return Ok(Vec::new());
        }
    };
    let (dir, worker) = (bench.scratch()?, bench.worker()?);
    let data = dir.path().join("data");
    std::fs::create_dir(&data)?;
    let options = LauncherOptions { exe: bench.program.clone(), ..LauncherOptions::new(data, worker.clone(), "bench") };
    let local = Local::new(Ok(Arc::new(Launcher::start(options)?)), Arc::new(Nobody));
    let options = DockerOptions { socket: engine.socket(), image: Some(IMAGE.to_owned()), worker: Ok(worker) };
    let docker = Docker::new(options, "bench", dir.path().join("docker"), Arc::new(Nobody));

    let count = bench.plan.sandboxes.div_ceil(4);
    creations(&docker, 1).await?;
    creations(&local, 3).await?;
    let (mut runs, mut ours, mut here) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.plan.rounds {
        runs.push(programs(count, || docker_run(&engine))?.p50());
        ours.push(creations(&docker, count).await?.p50());
        here.push(creations(&local, bench.plan.sandboxes).await?.p50());
        if let (Some(run), Some(container), Some(local)) = (runs.last(), ours.last(), here.last()) {
            note(&format!("  docker run {run:.0} ms, container → exit of true {container:.0} ms, local {local:.2} ms"));
        }
    }
    let [run, container, local] = [&runs, &ours, &here].map(|all| median(all.iter().copied()));
    let numbers = json!({ "docker_run_p50_ms": runs, "container_p50_ms": ours, "local_p50_ms": here });
    Ok(vec![
        Figure {
            figure: "container: create → exit of `true`".into(),
            measured: format!("p50 {container:.0} ms ({:.2} × docker run)", container / run),
            floor: format!("docker run {run:.0} ms"),
            bar: format!("< {BAR_CONTAINER} × docker run"),
            verdict: Verdict::of(container < BAR_CONTAINER * run),
            numbers: numbers.clone(),
        },
        Figure {
            figure: "local sandbox beside `docker run`".into(),
            measured: format!("p50 {local:.2} ms ({:.0} × faster)", run / local),
            floor: format!("docker run {run:.0} ms"),
            bar: format!("> {BAR_LOCAL} × faster"),
            verdict: Verdict::of(run > BAR_LOCAL * local),
            numbers,
        },
    ])
}
