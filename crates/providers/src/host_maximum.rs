//! The resources that this machine has: the maximum of one sandbox on it.

use atoll_core::provider::Capabilities;
use std::path::Path;

const GIB: f64 = (1_u64 << 30) as f64;

/// Resources of the machine. A figure that cannot be read sets no maximum.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct HostMaximum {
    memory_gb: Option<f64>,
    cpu: Option<f64>,
    disk_gb: Option<f64>,
}

impl HostMaximum {
    /// Reads memory and processors.
    pub(crate) fn read() -> Self {
        let processors = std::thread::available_parallelism().ok().and_then(|count| u32::try_from(count.get()).ok());
        let memory = std::fs::read_to_string("/proc/meminfo").ok();
        Self { memory_gb: memory.as_deref().and_then(parse_memory), cpu: processors.map(f64::from), disk_gb: None }
    }

    /// Adds the size of the file system that holds the sandboxes' files, or of their pool.
    pub(crate) fn with_disk(self, dir: &Path, pool_gb: Option<f64>) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "a size for people")]
        let size = |stat: rustix::fs::StatVfs| stat.f_blocks as f64 * stat.f_frsize as f64 / GIB;
        let disk_gb = pool_gb.or_else(|| rustix::fs::statvfs(dir).ok().map(size)).map(round_down);
        Self { disk_gb, ..self }
    }

    pub(crate) fn apply_to(self, capabilities: Capabilities) -> Capabilities {
        let Self { memory_gb, cpu, disk_gb } = self;
        Capabilities { max_memory_gb: memory_gb, max_cpu: cpu, max_disk_gb: disk_gb, ..capabilities }
    }
}

/// Two decimals are enough for people.
fn round_down(gigabytes: f64) -> f64 {
    (gigabytes * 100.0).floor() / 100.0
}

fn parse_memory(meminfo: &str) -> Option<f64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(round_down(kilobytes * 1024.0 / GIB))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_machine() {
        assert_eq!(parse_memory("MemTotal:       25165824 kB\nMemFree: 1 kB"), Some(24.0));
        assert_eq!(parse_memory("MemFree: 1 kB"), None);
        let read = HostMaximum::read().with_disk(Path::new("/"), None).apply_to(Capabilities::NONE);
        assert!(read.max_memory_gb.unwrap() > 0.0 && read.max_cpu.unwrap() >= 1.0 && read.max_disk_gb.unwrap() > 0.0);
        let pooled = HostMaximum::read().with_disk(Path::new("/"), Some(5.0));
        assert_eq!(pooled.disk_gb, Some(5.0));
    }
}
