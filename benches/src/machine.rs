//! What the figures were measured on.

use crate::append;
use anyhow::Result;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::time::Instant;

#[derive(Debug, Serialize)]
pub struct Machine {
    pub cores: usize,
    pub processor: String,
    pub kernel: String,
    pub memory_mb: u64,
    /// Of the directory with the databases.
    pub file_system: String,
    /// Of the directory with PostgreSQL's.
    pub postgres_file_system: String,
    pub fsync_p50_ms: f64,
    pub fsync_p99_ms: f64,
    /// What else was going on when the run began.
    pub load_average: f64,
    /// Processors that were busy with something else, on average over the run; the kernel's own work is in it.
    pub others_cores: f64,
    pub debug_build: bool,
}

/// More than this is not only the kernel writing what we gave it.
const OTHERS_CORES: f64 = 0.2;
/// `USER_HZ`, which is the same on every Linux of today.
const TICKS_A_SECOND: f64 = 100.0;

/// Counts what the rest of the machine does meanwhile.
#[derive(Debug)]
pub struct Others {
    began: Instant,
    ticks: i64,
}

impl Others {
    pub fn watch() -> Self {
        Self { began: Instant::now(), ticks: Self::ticks() }
    }

    /// Right once all processes of ours have ended: before that, theirs is not known to be ours.
    pub fn cores(&self) -> f64 {
        (Self::ticks() - self.ticks) as f64 / TICKS_A_SECOND / self.began.elapsed().as_secs_f64()
    }

    /// All that the machine did, less what this process and its ended children did.
    fn ticks() -> i64 {
        let sum = |text: &str, skip: usize, take: usize| -> i64 {
            text.split_whitespace().skip(skip).take(take).filter_map(|word| word.parse::<i64>().ok()).sum()
        };
        // user, nice, system; then idle and waiting, which are no work; then interrupts.
        let (machine, own) = (read("/proc/stat"), read("/proc/self/stat"));
        let first = machine.lines().next().unwrap_or_default();
        let own = own.rsplit_once(") ").map_or("", |(_, rest)| rest);
        sum(first, 1, 3) + sum(first, 6, 2) - sum(own, 11, 4)
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The value of a `name : value` line.
fn field(text: &str, name: &str) -> String {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':'));
    value.map_or_else(String::new, |(_, value)| value.trim().to_owned())
}

/// The type and the device of the mount that holds the path.
fn file_system(path: &Path) -> String {
    let mounts = read("/proc/self/mountinfo");
    let holding = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?;
        path.starts_with(point).then_some((point.len(), after))
    });
    let found = holding.max_by_key(|(length, _)| *length).map(|(_, after)| after.split(' ').take(2));
    found.map_or_else(|| "unknown".into(), |words| words.collect::<Vec<_>>().join(" on "))
}

impl Machine {
    pub fn look(dir: &Path, appends: usize) -> Result<Self> {
        let mut fsync = append::measure(dir, appends)?;
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            processor: field(&read("/proc/cpuinfo"), "model name"),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_mb: memory.trim_end_matches(" kB").parse::<u64>().unwrap_or_default() / 1024,
            file_system: file_system(dir),
            postgres_file_system: file_system(&std::env::temp_dir()),
            fsync_p50_ms: fsync.p50(),
            fsync_p99_ms: fsync.p99(),
            load_average: read("/proc/loadavg").split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0),
            others_cores: 0.0,
            debug_build: cfg!(debug_assertions),
        })
    }

    /// Why the figures may mean little.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.debug_build {
            doubts.push("this is a debug build".to_owned());
        }
        if self.others_cores > OTHERS_CORES {
            let others = self.others_cores;
            doubts.push(format!("other programs kept {others:.2} cores busy; they hit a floor of one thread hardest"));
        }
        for (what, system) in [("the databases", &self.file_system), ("PostgreSQL", &self.postgres_file_system)] {
            if system.starts_with("tmpfs") {
                doubts.push(format!("{what} were in memory, not on a disk"));
            }
        }
        doubts
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} cores ({}), {} MB, Linux {}", self.cores, self.processor, self.memory_mb, self.kernel)?;
        write!(
            f,
            "{}; append and fsync of 1 KB: p50 {:.2} ms, p99 {:.2} ms; load {}",
            self.file_system, self.fsync_p50_ms, self.fsync_p99_ms, self.load_average
        )
    }
}
