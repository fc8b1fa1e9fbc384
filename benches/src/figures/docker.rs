//! Docker and local sandboxes against `docker run` with the same engine and image, alternating. Skipped where no engine
//! can start.

use super::sandbox::{SilentLinkHost, time_creations, time_programs};
use crate::bench::{Bench, print_progress};
use crate::report::{Figure, FigureVerdict};
use crate::stats::median_of;
use anyhow::Result;
use atoll_jail::{Launcher, LauncherOptions};
use atoll_providers::{Docker, DockerOptions, Local};
use atoll_tests::docker_engine::{DockerEngine, TEST_IMAGE};
use serde_json::json;
use std::process::Command;
use std::sync::Arc;

/// Creating a container with a worker that runs `true`, relative to `docker run`.
const BAR_CONTAINER: f64 = 1.5;
/// `docker run`, relative to a local sandbox.
const BAR_LOCAL: f64 = 20.0;

fn docker_run_command(engine: &DockerEngine) -> Command {
    let mut command = engine.docker_command();
    command.args(["run", "--rm", "--network", "none", TEST_IMAGE, "true"]);
    command
}

pub async fn measure_docker(bench: &Bench) -> Result<Vec<Figure>> {
    let engine = match DockerEngine::get_or_start() {
        Ok(engine) => engine,
        Err(why) => {
            print_progress(&format!("  skipped: {why}"));
            return Ok(Vec::new());
        }
    };
    let (dir, worker) = (bench.scratch_dir()?, bench.worker_program()?);
    let data = dir.path().join("data");
    std::fs::create_dir(&data)?;
    let options = LauncherOptions { exe: bench.program.clone(), ..LauncherOptions::new(data, worker.clone(), "bench") };
    let local = Local::new(Ok(Arc::new(Launcher::start(options)?)), Arc::new(SilentLinkHost));
    let options = DockerOptions { socket: engine.socket_url(), image: Some(TEST_IMAGE.to_owned()), worker: Ok(worker) };
    let docker = Docker::new(options, "bench", dir.path().join("docker"), Arc::new(SilentLinkHost));

    let count = bench.plan.sandboxes.div_ceil(4);
    time_creations(&docker, 1).await?;
    time_creations(&local, 3).await?;
    let (mut docker_runs, mut containers, mut locals) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.plan.rounds {
        docker_runs.push(time_programs(count, || docker_run_command(&engine))?.p50());
        containers.push(time_creations(&docker, count).await?.p50());
        locals.push(time_creations(&local, bench.plan.sandboxes).await?.p50());
        if let (Some(run), Some(container), Some(local)) = (docker_runs.last(), containers.last(), locals.last()) {
            print_progress(&format!(
                "  docker run {run:.0} ms, container → exit of true {container:.0} ms, local {local:.2} ms"
            ));
        }
    }
    let [run, container, local] = [&docker_runs, &containers, &locals].map(|all| median_of(all.iter().copied()));
    let numbers = json!({ "docker_run_p50_ms": docker_runs, "container_p50_ms": containers, "local_p50_ms": locals });
    Ok(vec![
        Figure {
            name: "container: create → exit of `true`".into(),
            measured: format!("p50 {container:.0} ms ({:.2} × docker run)", container / run),
            floor: format!("docker run {run:.0} ms"),
            bar: format!("< {BAR_CONTAINER} × docker run"),
            verdict: FigureVerdict::from_met(container < BAR_CONTAINER * run),
            numbers: numbers.clone(),
        },
        Figure {
            name: "local sandbox vs `docker run`".into(),
            measured: format!("p50 {local:.2} ms ({:.0} × faster)", run / local),
            floor: format!("docker run {run:.0} ms"),
            bar: format!("> {BAR_LOCAL} × faster"),
            verdict: FigureVerdict::from_met(run > BAR_LOCAL * local),
            numbers,
        },
    ])
}
