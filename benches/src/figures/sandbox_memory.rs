//! Cost of an idle local sandbox: memory of its worker and spawner, and wake-ups of the worker.

use super::local_sandboxes::LocalSandboxes;
use crate::bench::{Bench, ScratchServer};
use crate::report::{Figure, FigureVerdict};
use anyhow::{Result, ensure};
use serde_json::json;
use std::path::Path;

const BAR_MIB: f64 = 8.0;
/// Context switches of one worker in 90 seconds; it sends a heartbeat every 30.
const BAR_SWITCHES: f64 = 6.0;

/// A process of a sandbox, by its pid on the host.
pub(super) struct SandboxProcess {
    pid: String,
}

impl SandboxProcess {
    /// Finds every worker and spawner on this machine whose program is `worker`.
    pub(super) fn find_all(worker: &Path) -> Vec<Self> {
        let expected = std::fs::metadata(worker).ok();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let pids = pids.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        let is_ours = |pid: &String| {
            use std::os::unix::fs::MetadataExt;
            let exe = std::fs::metadata(format!("/proc/{pid}/exe")).ok();
            matches!((&exe, &expected), (Some(exe), Some(expected)) if exe.ino() == expected.ino() && exe.dev() == expected.dev())
        };
        pids.filter(is_ours).map(|pid| Self { pid }).collect()
    }

    pub(super) fn read_number(&self, file: &str, field: &str) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", self.pid)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
    }

    /// The worker is pid 1 of its sandbox.
    pub(super) fn is_worker(&self) -> bool {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let numbers = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.and_then(|numbers| numbers.split_whitespace().last()) == Some("1")
    }

    /// Voluntary and involuntary context switches.
    fn count_switches(&self) -> [f64; 2] {
        ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(|field| self.read_number("status", field))
    }
}

pub async fn measure_sandbox_memory(bench: &Bench) -> Result<Vec<Figure>> {
    let ScratchServer { server, dir } = bench.start_server(None)?;
    let work = LocalSandboxes::new(&server);
    let count = bench.plan.idle_sandboxes;
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(work.create_sandbox(json!({ "provider": "local", "end": "keep" })).await?);
    }
    for id in &ids {
        work.wait_for_state(id, &["running"]).await?;
        // The worker starts its spawner with the first command.
        work.run_true(id).await?;
    }
    tokio::time::sleep(bench.plan.settle_duration).await;
    let worker = bench.installed_worker(&dir.path().join("data"))?;
    let processes = SandboxProcess::find_all(&worker);
    ensure!(processes.len() >= 2 * count, "{} processes of {count} sandboxes were found", processes.len());
    let memory: f64 = processes.iter().map(|process| process.read_number("smaps_rollup", "Pss:")).sum();
    let workers: Vec<SandboxProcess> = processes.into_iter().filter(SandboxProcess::is_worker).collect();
    ensure!(workers.len() == count, "{} workers of {count} sandboxes were found", workers.len());
    let before: Vec<[f64; 2]> = workers.iter().map(SandboxProcess::count_switches).collect();
    let watched = bench.plan.idle_watch_duration;
    tokio::time::sleep(watched).await;
    let (mut switches, mut involuntary) = (Vec::new(), 0.0);
    for (worker, before) in workers.iter().zip(before) {
        let after = worker.count_switches();
        switches.push(after[0] - before[0] + after[1] - before[1]);
        involuntary += after[1] - before[1];
    }
    ensure!(switches.iter().all(|count| *count >= 0.0), "a worker ended during the measurement");
    for id in &ids {
        work.delete_sandbox(id).await?;
    }
    let (count, seconds) = (count as f64, watched.as_secs_f64());
    let each = memory / 1024.0 / count;
    let (mean, most) = (switches.iter().sum::<f64>() / count, switches.iter().copied().fold(0.0, f64::max));
    Ok(vec![
        Figure {
            name: format!("idle local sandbox (of {count}): memory"),
            measured: format!("{each:.2} MiB each"),
            floor: "—".into(),
            bar: format!("< {BAR_MIB} MiB each"),
            verdict: FigureVerdict::from_met(each < BAR_MIB),
            numbers: json!({ "mib_each": each, "sandboxes": count }),
        },
        Figure {
            name: format!("idle local sandbox (of {count}): wake-ups of its worker"),
            measured: format!("{mean:.1} in {seconds:.0} s, at most {most:.0}"),
            floor: "—".into(),
            bar: format!("≤ {BAR_SWITCHES} in 90 s"),
            verdict: FigureVerdict::from_met(mean * 90.0 / seconds <= BAR_SWITCHES),
            numbers: json!({ "mean": mean, "most": most, "involuntary_switches": involuntary / count, "seconds": seconds, "sandboxes": count }),
        },
    ])
}
