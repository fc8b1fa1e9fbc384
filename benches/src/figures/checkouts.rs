//! The second sandbox of a large repository: from `create` to the end of its first `git status`. Floor: a shallow clone of
//! the same repository.

use super::generated_repository::{create_repository, git_command};
use super::local_sandboxes::LocalSandboxes;
use crate::bench::{Bench, print_progress};
use crate::report::{Figure, FigureVerdict};
use crate::server::BenchServer;
use crate::stats::median_of;
use anyhow::{Result, ensure};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// How many times faster than the clone.
const BAR: f64 = 10.0;

fn time_clone(repository: &Path, target: &Path) -> Result<f64> {
    let began = Instant::now();
    let mut command = git_command(Path::new("/"));
    command.args(["clone", "--quiet", "--depth", "1"]).arg(format!("file://{}", repository.display())).arg(target);
    ensure!(command.status()?.success(), "`git clone` failed");
    let took = began.elapsed().as_secs_f64();
    std::fs::remove_dir_all(target)?;
    Ok(took)
}

async fn time_start(sandboxes: &LocalSandboxes<'_>, repository: &Path) -> Result<f64> {
    let request = json!({ "provider": "local", "agent": "demo", "end": "keep", "repo": { "path": repository } });
    let began = Instant::now();
    let id = sandboxes.create_sandbox(request).await?;
    sandboxes.wait_for_state(&id, &["running"]).await?;
    sandboxes.run_command(&id, &["git", "status", "--porcelain"]).await?;
    let took = began.elapsed().as_secs_f64();
    sandboxes.delete_sandbox(&id).await?;
    Ok(took)
}

pub async fn measure_checkouts(bench: &Bench) -> Result<Vec<Figure>> {
    let (dir, size) = (bench.scratch_dir()?, bench.plan.repository);
    let repository = dir.path().join("repository");
    create_repository(&repository, size)?;
    // The first checkout writes all files.
    let environment = [("ATOLL_SANDBOX_CREATE_TIMEOUT_LOCAL", "10m")];
    let server = BenchServer::start_with_env(&bench.program, &dir.path().join("data"), None, &environment)?;
    let sandboxes = LocalSandboxes::new(&server);
    let first = time_start(&sandboxes, &repository).await?;
    let (mut starts, mut clones) = (Vec::new(), Vec::new());
    for round in 0..bench.plan.rounds {
        clones.push(time_clone(&repository, &dir.path().join(format!("clone-{round}")))?);
        starts.push(time_start(&sandboxes, &repository).await?);
        if let (Some(start), Some(clone)) = (starts.last(), clones.last()) {
            print_progress(&format!("  ready and status {start:.3} s, shallow clone {clone:.3} s"));
        }
    }
    let [start, clone] = [&starts, &clones].map(|all| median_of(all.iter().copied()));
    Ok(vec![Figure {
        name: format!("second sandbox: {} files, {} commits", size.files, size.commits),
        measured: format!("{start:.3} s ({:.1} × faster); first {first:.2} s", clone / start),
        floor: format!("git clone --depth 1 {clone:.3} s"),
        bar: format!("{BAR:.0} × faster"),
        verdict: FigureVerdict::from_met(clone >= BAR * start),
        numbers: json!({ "start_s": starts, "clone_s": clones, "first_s": first }),
    }])
}
