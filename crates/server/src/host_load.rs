//! Gauges of the machine that the server runs on: load, memory and disk.

use crate::metrics::{HOST_DISK, HOST_DISK_AVAILABLE, HOST_LOAD, HOST_MEMORY, HOST_MEMORY_AVAILABLE, HOST_PROCESSORS};
use std::path::Path;

/// Sets the gauges. A figure that cannot be read keeps its last value.
pub fn update_gauges(data_dir: &Path) {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let memory = read("/proc/meminfo");
    let bytes = |field| parse_kilobytes(&memory, field).map(|kilobytes| kilobytes * 1024.0);
    let processors = std::thread::available_parallelism().ok().and_then(|count| u32::try_from(count.get()).ok());
    let disk = rustix::fs::statvfs(data_dir).ok();
    #[allow(clippy::cast_precision_loss, reason = "a size for people")]
    let disk_bytes =
        |blocks: fn(&rustix::fs::StatVfs) -> u64| disk.as_ref().map(|stat| (blocks(stat) * stat.f_frsize) as f64);
    for (name, value) in [
        (HOST_LOAD, parse_load(&read("/proc/loadavg"))),
        (HOST_PROCESSORS, processors.map(f64::from)),
        (HOST_MEMORY, bytes("MemTotal:")),
        (HOST_MEMORY_AVAILABLE, bytes("MemAvailable:")),
        (HOST_DISK, disk_bytes(|stat| stat.f_blocks)),
        (HOST_DISK_AVAILABLE, disk_bytes(|stat| stat.f_bavail)),
    ] {
        if let Some(value) = value {
            metrics::gauge!(name).set(value);
        }
    }
}

/// Processes that ran or waited for a processor, on average over the last minute.
fn parse_load(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().next()?.parse().ok()
}

fn parse_kilobytes(meminfo: &str, field: &str) -> Option<f64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_files_of_the_kernel() {
        assert_eq!(parse_load("0.52 0.61 0.70 2/345 6789\n"), Some(0.52));
        let memory = "MemTotal:       25165824 kB\nMemFree: 1 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(parse_kilobytes(memory, "MemAvailable:"), Some(20_000_000.0));
        assert_eq!((parse_load(""), parse_kilobytes("", "MemTotal:")), (None, None));
    }
}
