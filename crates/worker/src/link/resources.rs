//! Resource usage for heartbeats. Values that cannot be read are `None`.

use atoll_dispatcher::link::Resources;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

/// Reads the usage of the machine and of the file system that holds the spool.
pub(super) fn read_resources(spool: &Path) -> Resources {
    Resources { cpu: cpu_load(), memory: used_memory(), disk: used_disk(spool) }
}

/// Reads a /proc file with one system call: the kernel renders the file for each, and a host may run hundreds of workers.
fn read_proc_file(path: &str) -> Option<String> {
    let mut page = [0; 4096];
    let length = File::open(path).ok()?.read(&mut page).ok()?;
    String::from_utf8(page.get(..length)?.to_vec()).ok()
}

fn cpu_load() -> Option<f64> {
    // Counting processors costs more than everything else here.
    static PROCESSORS: OnceLock<Option<u32>> = OnceLock::new();
    let count = || u32::try_from(std::thread::available_parallelism().ok()?.get()).ok();
    let processors = (*PROCESSORS.get_or_init(count))?;
    let load: f64 = read_proc_file("/proc/loadavg")?.split_whitespace().next()?.parse().ok()?;
    Some(load / f64::from(processors))
}

fn used_memory() -> Option<f64> {
    let text = read_proc_file("/proc/meminfo")?;
    let kilobytes = |name: &str| -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
    };
    Some((kilobytes("MemTotal:")? - kilobytes("MemAvailable:")?) * 1024.0)
}

#[allow(clippy::cast_precision_loss, reason = "approximate by nature")]
fn used_disk(spool: &Path) -> Option<f64> {
    let stat = rustix::fs::statvfs(spool).ok()?;
    Some((stat.f_blocks.saturating_sub(stat.f_bfree) as f64) * stat.f_frsize as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_machine() {
        let resources = read_resources(Path::new("/"));
        assert!(resources.cpu.is_some_and(|cpu| cpu >= 0.0));
        assert!(resources.memory.is_some_and(|memory| memory > 0.0));
        assert!(resources.disk.is_some_and(|disk| disk >= 0.0));
    }
}
