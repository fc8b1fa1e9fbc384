//! What an idle local sandbox costs: the memory of its worker and hands, and how often they wake.

use super::local_work::Work;
use crate::bench::{Bench, Scratch};
use crate::report::{Figure, Verdict};
use anyhow::{Result, ensure};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

const BAR_MIB: f64 = 8.0;
/// Heartbeats are 30 s apart; what is counted is everything else.
const WATCHED: Duration = Duration::from_secs(10);

/// One process of a sandbox, seen from outside.
struct Process {
    pid: String,
}

impl Process {
    /// Every worker and hands on this machine whose program is `worker`.
    fn all(worker: &Path) -> Vec<Self> {
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

    fn number(&self, file: &str, field: &str) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", self.pid)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
    }

    fn switches(&self) -> f64 {
        self.number("status", "voluntary_ctxt_switches:") + self.number("status", "nonvoluntary_ctxt_switches:")
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
    let before: f64 = processes.iter().map(Process::switches).sum();
    let memory: f64 = processes.iter().map(|process| process.number("smaps_rollup", "Pss:")).sum();
    tokio::time::sleep(WATCHED).await;
    let switches: f64 = processes.iter().map(Process::switches).sum::<f64>() - before;
    for id in &made {
        work.remove(id).await?;
    }
    let count = count as f64;
    let each = memory / 1024.0 / count;
    Ok(vec![Figure {
        figure: format!("idle local sandbox (of {count})"),
        measured: format!("{each:.2} MiB, {:.1} switches in 10 s", switches / count),
        floor: "—".into(),
        bar: format!("< {BAR_MIB} MiB each"),
        verdict: Verdict::of(each < BAR_MIB),
        numbers: json!({ "mib_each": each, "switches_each_in_10_s": switches / count, "sandboxes": count }),
    }])
}
