//! Fork of an idle local sandbox with a live worker: a small one and one with many files, which must take equally long.
//! Floor: one overlay mount on the same file system.

use crate::bench::{Bench, print_progress};
use crate::report::{Figure, FigureVerdict};
use crate::stats::{Latencies, median_of};
use anyhow::{Context, Result, ensure};
use atoll_core::id::SandboxId;
use atoll_jail::{Exit, Launcher, LauncherOptions, ResourceLimits, SandboxSpec};
use rustix::fs::FallocateFlags;
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::json;
use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

const BAR_MS: f64 = 10.0;
const BAR_MOUNTS: f64 = 3.0;
/// Fork time of the large sandbox relative to the small one.
const BAR_GROWTH: f64 = 1.5;
/// Size of each file: 100,000 of them are 5 GB.
const FILE_BYTES: u64 = 50_000;
const SMALL_FILES: usize = 1000;

fn sandbox_spec(name: &str) -> SandboxSpec {
    SandboxSpec {
        name: name.to_owned(),
        labels: Default::default(),
        limits: ResourceLimits::default(),
        hostname: "bench".to_owned(),
        image: None,
        snapshot: None,
        cache: None,
        protected: Vec::new(),
        programs: Vec::new(),
    }
}

/// Creates files that occupy disk space, without writing their content.
fn fill_workspace(workspace: &Path, files: usize) -> Result<()> {
    let owner = std::fs::metadata(workspace)?;
    let own = |path: &Path| chown(path, Some(owner.uid()), Some(owner.gid()));
    for number in 0..files {
        let directory = workspace.join(format!("d{}", number / 500));
        if number % 500 == 0 {
            std::fs::create_dir(&directory)?;
            own(&directory)?;
        }
        let path = directory.join(format!("f{number}"));
        let file = File::create(&path)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES)
            .context("not enough disk space for the large tree")?;
        own(&path)?;
    }
    Ok(())
}

/// Forks `count` times, each time after a change, so that every fork has to seal a layer.
fn time_forks(launcher: &Launcher, parent: &str, count: usize) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    let null = || -> Result<File> { Ok(File::options().read(true).write(true).open("/dev/null")?) };
    for number in 0..count {
        let argv = ["/usr/bin/touch".to_owned(), format!("/workspace/change{number}")];
        let mut running = launcher.run_program(parent, &argv, null()?.into(), null()?.into(), null()?.into())?;
        ensure!(running.wait(Duration::from_secs(60))? == Exit::Exited(0), "cannot change the parent's files");
        let child = sandbox_spec(&format!("{parent}_{number}"));
        let began = Instant::now();
        launcher.fork_sandbox(parent, &child)?;
        latencies.push(began.elapsed());
        launcher.destroy_sandbox(&child.name)?;
    }
    ensure!(launcher.find_sandbox(parent)?.is_some_and(|sandbox| sandbox.is_alive), "the parent's worker has ended");
    Ok(latencies)
}

/// Times single overlay mounts.
fn time_mounts(dir: &Path, count: usize) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    let [lower, merged] = ["lower", "merged"].map(|name| dir.join(name));
    for path in [&lower, &merged] {
        std::fs::create_dir_all(path)?;
    }
    for number in 0..count {
        let (upper, work) = (dir.join(format!("upper{number}")), dir.join(format!("work{number}")));
        std::fs::create_dir(&upper)?;
        std::fs::create_dir(&work)?;
        let options =
            format!("lowerdir={},upperdir={},workdir={},volatile", lower.display(), upper.display(), work.display());
        let options = CString::new(options)?;
        let began = Instant::now();
        rustix::mount::mount(c"overlay", &merged, c"overlay", MountFlags::empty(), options.as_c_str())?;
        latencies.push(began.elapsed());
        rustix::mount::unmount(&merged, UnmountFlags::DETACH)?;
        std::fs::remove_dir_all(&upper)?;
        std::fs::remove_dir_all(&work)?;
    }
    Ok(latencies)
}

pub fn measure_fork(bench: &Bench) -> Result<Vec<Figure>> {
    let dir = bench.scratch_dir()?;
    let data = dir.path().join("data");
    std::fs::create_dir(&data)?;
    let options =
        LauncherOptions { exe: bench.program.clone(), ..LauncherOptions::new(data, bench.worker_program()?, "forks") };
    let launcher = Launcher::start(options)?;
    let count = bench.plan.forks;
    let [small_parent, large_parent] = [(); 2].map(|()| SandboxId::new().to_string());
    for (name, files) in
        [(&small_parent, SMALL_FILES.min(bench.plan.forked_files)), (&large_parent, bench.plan.forked_files)]
    {
        let sandbox = launcher.prepare_sandbox(&sandbox_spec(name))?;
        fill_workspace(&sandbox.workspace, files)?;
        launcher.start_worker(name)?;
    }
    time_forks(&launcher, &small_parent, 2)?;
    let (mut small, mut large, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..bench.plan.rounds {
        floors.push(time_mounts(&dir.path().join(format!("mounts{round}")), count)?.p50());
        small.push(time_forks(&launcher, &small_parent, count)?.p50());
        large.push(time_forks(&launcher, &large_parent, count)?.p50());
        if let (Some(small), Some(large), Some(floor)) = (small.last(), large.last(), floors.last()) {
            print_progress(&format!(
                "  fork of 50 MB {small:.2} ms, of the large one {large:.2} ms, one mount {floor:.2} ms"
            ));
        }
    }
    for name in [small_parent, large_parent] {
        launcher.destroy_sandbox(&name)?;
    }
    let [small_ms, large_ms, floor] = [&small, &large, &floors].map(|all| median_of(all.iter().copied()));
    let gigabytes = bench.plan.forked_files as f64 * FILE_BYTES as f64 / 1e9;
    Ok(vec![Figure {
        name: format!("local sandbox: fork with {} files, {gigabytes:.1} GB", bench.plan.forked_files),
        measured: format!("p50 {large_ms:.2} ms ({:.2} × that of 50 MB)", large_ms / small_ms),
        floor: format!("one overlay mount {floor:.2} ms"),
        bar: format!("< {BAR_MS} ms or {BAR_MOUNTS} mounts, < {BAR_GROWTH} × 50 MB"),
        verdict: FigureVerdict::from_met(
            (large_ms < BAR_MS || large_ms < BAR_MOUNTS * floor) && large_ms < BAR_GROWTH * small_ms,
        ),
        numbers: json!({ "p50_ms": large, "small_p50_ms": small, "mount_p50_ms": floors }),
    }])
}
