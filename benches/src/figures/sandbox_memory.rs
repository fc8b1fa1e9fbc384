//! What an idle local sandbox costs: the memory of its worker and hands, and how often they wake.

use super::local_work::Work;
use crate::bench::{Bench, Scratch};
use crate::report::{Figure, Verdict};
use anyhow::{Result, ensure};
use serde_json::json;
use std::path::Path;

const BAR_MIB: f64 = 8.0;
/// Of one worker in 90 seconds; a heartbeat is every 30.
const BAR_SWITCHES: f64 = 6.0;

/// One process of a sandbox, seen from outside.
pub(super) struct Process {
    pid: String,
}

impl Process {
    /// Every worker and hands on this machine whose program is `worker`.
    pub(super) fn all(worker: &Path) -> Vec<Self> {
        let own = std::fs::metadata(worker).ok();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let pids = pids.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        let is_ours = |pid: &String| {
            use std::os::unix::fs::MetadataExt;
            let exe = std::fs::metadata(format!("/proc/{pid}/exe")).ok();
            matches!((&exe, &own), (Some(exe), Some(own)) if exe.ino() == own.ino() && exe.dev() == own.dev())
        };
        pids.filter(is_ours).map(|pid| Self { pid }).collect()
    }

    pub(super) fn number(&self, file: &str, field: &str) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", self.pid)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
    }

    /// The worker is the first process of its sandbox.
    pub(super) fn is_worker(&self) -> bool {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let numbers = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.and_then(|numbers| numbers.split_whitespace().last()) == Some("1")
    }

    /// By its own wish, and because another was let before it.
    fn switches(&self) -> [f64; 2] {
        ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(|field| self.number("status", field))
    }
}

pub async fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let Scratch { server, dir } = bench.server(None)?;
    let work = Work::new(&server);
    let count = bench.plan.idle;
    let mut made = Vec::new();
    for _ in 0..count {
        made.push(work.make(json!({ "provider": "local", "end": "keep" })).await?);
    }
    for id in &made {
        work.until(id, &["running"]).await?;
        // The hands are started when there is something for them to do.
        work.run_true(id).await?;
    }
    tokio::time::sleep(bench.plan.settle).await;
    let worker = bench.worker_of(&dir.path().join("data"))?;
    let processes = Process::all(&worker);
    ensure!(processes.len() >= 2 * count, "{} processes of {count} sandboxes were found", processes.len());
    let memory: f64 = processes.iter().map(|process| process.number("smaps_rollup", "Pss:")).sum();
    let workers: Vec<Process> = processes.into_iter().filter(Process::is_worker).collect();
    ensure!(workers.len() == count, "{} workers of {count} sandboxes were found", workers.len());
    let before: Vec<[f64; 2]> = workers.iter().map(Process::switches).collect();
    let watched = bench.plan.watched;
    tokio::time::sleep(watched).await;
    let (mut woken, mut pushed) = (Vec::new(), 0.0);
    for (worker, before) in workers.iter().zip(before) {
        let after = worker.switches();
        woken.push(after[0] - before[0] + after[1] - before[1]);
        pushed += after[1] - before[1];
    }
    ensure!(woken.iter().all(|switches| *switches >= 0.0), "a worker has ended meanwhile");
    for id in &made {
        work.remove(id).await?;
    }
    let (count, seconds) = (count as f64, watched.as_secs_f64());
    let each = memory / 1024.0 / count;
    let (mean, most) = (woken.iter().sum::<f64>() / count, woken.iter().copied().fold(0.0, f64::max));
    Ok(vec![
        Figure {
            figure: format!("idle local sandbox (of {count}): memory"),
            measured: format!("{each:.2} MiB each"),
            floor: "—".into(),
            bar: format!("< {BAR_MIB} MiB each"),
            verdict: Verdict::of(each < BAR_MIB),
            numbers: json!({ "mib_each": each, "sandboxes": count }),
        },
        Figure {
            figure: format!("idle local sandbox (of {count}): wake-ups of its worker"),
            measured: format!("{mean:.1} in {seconds:.0} s, at most {most:.0}"),
            floor: "—".into(),
            bar: format!("≤ {BAR_SWITCHES} in 90 s"),
            verdict: Verdict::of(mean * 90.0 / seconds <= BAR_SWITCHES),
            numbers: json!({ "mean": mean, "most": most, "pushed": pushed / count, "seconds": seconds, "sandboxes": count }),
        },
    ])
}
