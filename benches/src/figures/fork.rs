//! A fork of an idle local sandbox whose worker lives: a small one and one with many files, which must
//! not differ. Floor: one overlay mount on the same file system.

use crate::bench::{Bench, note};
use crate::report::{Figure, Verdict};
use crate::stats::{Latencies, median};
use anyhow::{Context, Result, ensure};
use atoll_core::id::SandboxId;
use atoll_jail::{Exit, Launcher, LauncherOptions, Limits, Spec};
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
/// The large one against the small one.
const BAR_GROWTH: f64 = 1.5;
/// Of each file, so that 100,000 of them are 5 GB.
const FILE_BYTES: u64 = 50_000;
const SMALL_FILES: usize = 1000;

fn spec(name: &str) -> Spec {
    Spec {
        name: name.to_owned(),
        labels: Default::default(),
        limits: Limits::default(),
        hostname: "bench".to_owned(),
        image: None,
        snapshot: None,
        protected: Vec::new(),
        programs: Vec::new(),
    }
}

/// Files that take their place on the disk without a byte being written to them.
fn fill(workspace: &Path, files: usize) -> Result<()> {
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
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES).context("no room for the large tree")?;
        own(&path)?;
    }
    Ok(())
}

/// Forks it again and again, each time with a change since the last, which has to be sealed.
fn forks(launcher: &Launcher, parent: &str, count: usize) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    let null = || -> Result<File> { Ok(File::options().read(true).write(true).open("/dev/null")?) };
    for number in 0..count {
        let argv = ["/usr/bin/touch".to_owned(), format!("/workspace/change{number}")];
        let mut running = launcher.run(parent, &argv, null()?.into(), null()?.into(), null()?.into())?;
        ensure!(running.wait(Duration::from_secs(60))? == Exit::Exited(0), "the parent can't be changed");
        let child = spec(&format!("{parent}_{number}"));
        let began = Instant::now();
        launcher.fork(parent, &child)?;
        latencies.push(began.elapsed());
        launcher.destroy(&child.name)?;
    }
    ensure!(launcher.find(parent)?.is_some_and(|place| place.alive), "the parent's worker has ended");
    Ok(latencies)
}

/// One overlay mount and no more.
fn mounts(dir: &Path, count: usize) -> Result<Latencies> {
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

pub fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let dir = bench.scratch()?;
    let data = dir.path().join("data");
    std::fs::create_dir(&data)?;
    let options =
        LauncherOptions { exe: bench.program.clone(), ..LauncherOptions::new(data, bench.worker()?, "forks") };
    let launcher = Launcher::start(options)?;
    let count = bench.plan.forks;
    let [of_few, of_many] = [(); 2].map(|()| SandboxId::new().to_string());
    for (name, files) in [(&of_few, SMALL_FILES.min(bench.plan.files)), (&of_many, bench.plan.files)] {
        let place = launcher.prepare(&spec(name))?;
        fill(&place.workspace, files)?;
        launcher.start_worker(name)?;
    }
    forks(&launcher, &of_few, 2)?;
    let (mut small, mut large, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..bench.plan.rounds {
        floors.push(mounts(&dir.path().join(format!("mounts{round}")), count)?.p50());
        small.push(forks(&launcher, &of_few, count)?.p50());
        large.push(forks(&launcher, &of_many, count)?.p50());
        if let (Some(small), Some(large), Some(floor)) = (small.last(), large.last(), floors.last()) {
            note(&format!("  fork of 50 MB {small:.2} ms, of the large one {large:.2} ms, one mount {floor:.2} ms"));
        }
    }
    for name in [of_few, of_many] {
        launcher.destroy(&name)?;
    }
    let [small_ms, large_ms, floor] = [&small, &large, &floors].map(|all| median(all.iter().copied()));
    let gigabytes = bench.plan.files as f64 * FILE_BYTES as f64 / 1e9;
    Ok(vec![Figure {
        figure: format!("local sandbox: fork with {} files, {gigabytes:.1} GB", bench.plan.files),
        measured: format!("p50 {large_ms:.2} ms ({:.2} × that of 50 MB)", large_ms / small_ms),
        floor: format!("one overlay mount {floor:.2} ms"),
        bar: format!("< {BAR_MS} ms or {BAR_MOUNTS} mounts, < {BAR_GROWTH} × 50 MB"),
        verdict: Verdict::of((large_ms < BAR_MS || large_ms < BAR_MOUNTS * floor) && large_ms < BAR_GROWTH * small_ms),
        numbers: json!({ "p50_ms": large, "small_p50_ms": small, "mount_p50_ms": floors }),
    }])
}
