//! Description of the machine, and the load of other programs on it.

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
    /// File system of the directory with the databases.
    pub file_system: String,
    /// File system of PostgreSQL's directory.
    pub postgres_file_system: String,
    pub fsync_p50_ms: f64,
    pub fsync_p99_ms: f64,
    /// Load average at the start of the run.
    pub load_average: f64,
    /// Average number of cores busy with other programs and the kernel during the run.
    pub other_cores: f64,
    pub debug_build: bool,
}

/// Above this, other programs affect the figures; below, it is the kernel writing our data.
const MAX_OTHER_CORES: f64 = 0.2;
/// `USER_HZ`: the same on every current Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Counts the CPU time of all other programs.
#[derive(Debug)]
pub struct OtherLoad {
    began: Instant,
    start_ticks: i64,
}

impl OtherLoad {
    pub fn start_watching() -> Self {
        Self { began: Instant::now(), start_ticks: Self::read_ticks() }
    }

    /// Call it after our child processes have ended: the kernel adds their time to ours only then.
    pub fn busy_cores(&self) -> f64 {
        (Self::read_ticks() - self.start_ticks) as f64 / TICKS_PER_SECOND / self.began.elapsed().as_secs_f64()
    }

    /// CPU ticks of the whole machine minus those of this process and its ended children.
    fn read_ticks() -> i64 {
        let sum = |text: &str, skip: usize, take: usize| -> i64 {
            text.split_whitespace().skip(skip).take(take).filter_map(|word| word.parse::<i64>().ok()).sum()
        };
        // user, nice, system; skip idle and iowait; then interrupts.
        let (machine, own) = (read_file("/proc/stat"), read_file("/proc/self/stat"));
        let first = machine.lines().next().unwrap_or_default();
        let own = own.rsplit_once(") ").map_or("", |(_, rest)| rest);
        sum(first, 1, 3) + sum(first, 6, 2) - sum(own, 11, 4)
    }
}

fn read_file(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The value of a `name : value` line.
fn find_field(text: &str, name: &str) -> String {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':'));
    value.map_or_else(String::new, |(_, value)| value.trim().to_owned())
}

/// The type and the device of the mount that holds the path.
fn describe_file_system(path: &Path) -> String {
    let mounts = read_file("/proc/self/mountinfo");
    let candidates = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?;
        path.starts_with(point).then_some((point.len(), after))
    });
    let mount = candidates.max_by_key(|(length, _)| *length).map(|(_, after)| after.split(' ').take(2));
    mount.map_or_else(|| "unknown".into(), |words| words.collect::<Vec<_>>().join(" on "))
}

impl Machine {
    pub fn inspect_host(dir: &Path, appends: usize) -> Result<Self> {
        let mut fsync = append::measure_appends(dir, appends)?;
        let memory = find_field(&read_file("/proc/meminfo"), "MemTotal");
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            processor: find_field(&read_file("/proc/cpuinfo"), "model name"),
            kernel: read_file("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_mb: memory.trim_end_matches(" kB").parse::<u64>().unwrap_or_default() / 1024,
            file_system: describe_file_system(dir),
            postgres_file_system: describe_file_system(&std::env::temp_dir()),
            fsync_p50_ms: fsync.p50(),
            fsync_p99_ms: fsync.p99(),
            load_average: read_file("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0.0),
            other_cores: 0.0,
            debug_build: cfg!(debug_assertions),
        })
    }

    /// Reasons why the figures may be unreliable.
    pub fn reliability_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.debug_build {
            warnings.push("this is a debug build".to_owned());
        }
        if self.other_cores > MAX_OTHER_CORES {
            let others = self.other_cores;
            warnings.push(format!("other programs used {others:.2} cores; this slows single-threaded floors most"));
        }
        for (what, system) in [("the databases", &self.file_system), ("PostgreSQL", &self.postgres_file_system)] {
            if system.starts_with("tmpfs") {
                warnings.push(format!("{what} ran in memory, not on a disk"));
            }
        }
        warnings
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
