//! Sync-in of `atoll code`: one changed file in a large worktree, and a whole worktree. Floors: `git status`, `tar` into
//! another `tar` through a pipe, and `rsync` into a local directory.

use super::generated_repository::{RepositorySize, create_repository, file_path, run_git};
use crate::bench::{Bench, ScratchServer, print_progress};
use crate::report::{Figure, FigureVerdict};
use crate::stats::median_of;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Sync-in of one file, relative to `git status`.
const BAR_ONE_FILE: f64 = 2.0;
/// A whole worktree, relative to the throughput of tar.
const BAR_WHOLE: f64 = 0.6;

/// Runs `atoll code` and returns the duration of its sync-in, and the sandbox.
fn time_sync_in(bench: &Bench, scratch: &ScratchServer, worktree: &Path) -> Result<(f64, String)> {
    let mut command = Command::new(&bench.program);
    command.args(["code", "--json", "--provider", "local", "--agent", "demo", "--apply", "never", "say ready"]);
    command.env("ATOLL_SERVER", format!("http://{}", scratch.server.address)).env("ATOLL_TOKEN", &scratch.server.token);
    command.env("ATOLL_DATA_DIR", scratch.dir.path().join("client")).current_dir(worktree);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let (mut began, mut took, mut sandbox) = (None, None, String::new());
    let mut error = Value::Null;
    for line in BufReader::new(child.stdout.take().context("no stdout")?).lines() {
        let line: Value = serde_json::from_str(&line?)?;
        match (line["type"].as_str(), line["phase"].as_str()) {
            (Some("started"), _) => sandbox = line["sandbox"].as_str().unwrap_or_default().to_owned(),
            (Some("phase"), Some("sync_in")) => began = Some(Instant::now()),
            (Some("phase"), Some("agent")) => took = began.map(|began| began.elapsed().as_secs_f64()),
            (Some("error"), _) => error = line,
            _ => {}
        }
    }
    ensure!(child.wait()?.success(), "`atoll code` failed: {error}");
    Ok((took.context("no sync-in")?, sandbox))
}

fn time_tar(from: &Path, to: &Path) -> Result<f64> {
    std::fs::create_dir(to)?;
    let mut command = Command::new("sh");
    command.args(["-c", "tar -C \"$0\" --exclude ./.git -c . | tar -C \"$1\" -x"]).arg(from).arg(to);
    let began = Instant::now();
    ensure!(command.status()?.success(), "tar failed");
    let took = began.elapsed().as_secs_f64();
    std::fs::remove_dir_all(to)?;
    Ok(took)
}

/// Copies what differs, as a tool without git does.
fn time_rsync(from: &Path, to: &Path) -> Result<f64> {
    let mut command = Command::new("rsync");
    command.args(["--archive", "--delete", "--exclude", "/.git", "--"]);
    command.arg(from.join("")).arg(to.join(""));
    let began = Instant::now();
    ensure!(command.status().context("`scripts/need rsync` installs rsync")?.success(), "rsync failed");
    Ok(began.elapsed().as_secs_f64())
}

pub async fn measure_worktrees(bench: &Bench) -> Result<Vec<Figure>> {
    Ok(vec![measure_one_file(bench)?, measure_whole(bench).await?])
}

fn measure_one_file(bench: &Bench) -> Result<Figure> {
    let scratch = bench.start_server(None)?;
    let worktree = scratch.dir.path().join("worktree");
    create_repository(&worktree, RepositorySize { commits: 1, ..bench.plan.repository })?;
    let change = |round: usize, what: &str| {
        std::fs::write(worktree.join(file_path(round * 37)), format!("changed for {what} {round}\n"))
    };
    let copy = scratch.dir.path().join("copy");
    // All of them know all files afterwards.
    time_rsync(&worktree, &copy)?;
    for round in 0..2 {
        change(round, "the first calls")?;
        time_sync_in(bench, &scratch, &worktree)?;
        run_git(&worktree, &["status", "--porcelain"])?;
    }
    let (mut syncs, mut floors, mut copies) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..bench.plan.rounds * 3 {
        change(round, "git status")?;
        floors.push(run_git(&worktree, &["status", "--porcelain"])?.as_secs_f64() * 1000.0);
        change(round, "the sync")?;
        syncs.push(time_sync_in(bench, &scratch, &worktree)?.0 * 1000.0);
        copies.push(time_rsync(&worktree, &copy)? * 1000.0);
        if let (Some(sync), Some(floor)) = (syncs.last(), floors.last()) {
            print_progress(&format!("  sync-in of one file {sync:.0} ms, git status {floor:.0} ms"));
        }
    }
    let [sync, floor, rsync] = [&syncs, &floors, &copies].map(|all| median_of(all.iter().copied()));
    Ok(Figure {
        name: format!("sync-in of one file of {}", bench.plan.repository.files),
        measured: format!("{sync:.0} ms ({:.2} × status)", sync / floor),
        floor: format!("git status {floor:.0} ms, rsync {rsync:.0} ms"),
        bar: format!("< {BAR_ONE_FILE} × status"),
        verdict: FigureVerdict::from_met(sync < BAR_ONE_FILE * floor),
        numbers: json!({ "sync_ms": syncs, "status_ms": floors, "rsync_ms": copies }),
    })
}

async fn measure_whole(bench: &Bench) -> Result<Figure> {
    let scratch = bench.start_server_in_memory()?;
    let worktree = scratch.dir.path().join("worktree");
    let size = RepositorySize { files: bench.plan.worktree_files, file_bytes: 50_000, commits: 1 };
    create_repository(&worktree, size)?;
    let bytes = (size.files * size.file_bytes) as f64;
    let (mut rates, mut floors, mut copies) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms the caches.
    for round in 0..=bench.plan.rounds {
        let floor = bytes / time_tar(&worktree, &scratch.dir.path().join(format!("tar-{round}")))? / 1e6;
        let copy = scratch.dir.path().join(format!("rsync-{round}"));
        let rsync = bytes / time_rsync(&worktree, &copy)? / 1e6;
        std::fs::remove_dir_all(&copy)?;
        let (took, sandbox) = time_sync_in(bench, &scratch, &worktree)?;
        let rate = bytes / took / 1e6;
        super::local_sandboxes::LocalSandboxes::new(&scratch.server).delete_sandbox(&sandbox).await?;
        // The next call sends everything again.
        std::fs::remove_dir_all(worktree.join(".git/atoll"))?;
        print_progress(&format!("  full sync-in {rate:.0} MB/s, tar through a pipe {floor:.0} MB/s"));
        if round > 0 {
            rates.push(rate);
            floors.push(floor);
            copies.push(rsync);
        }
    }
    let [rate, floor, rsync] = [&rates, &floors, &copies].map(|all| median_of(all.iter().copied()));
    Ok(Figure {
        name: format!("full sync-in of {:.0} MB", bytes / 1e6),
        measured: format!("{rate:.0} MB/s ({:.2} × tar)", rate / floor),
        floor: format!("tar through a pipe {floor:.0} MB/s, rsync {rsync:.0} MB/s"),
        bar: format!("≥ {BAR_WHOLE} × tar"),
        verdict: FigureVerdict::from_met(rate >= BAR_WHOLE * floor),
        numbers: json!({ "megabytes_per_second": rates, "tar_megabytes_per_second": floors,
            "rsync_megabytes_per_second": copies }),
    })
}
