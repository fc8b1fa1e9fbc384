//! What the machine has left, for the heartbeat. Whatever can't be read is left out.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

#[derive(Debug, Clone, Copy, Default)]
pub struct Resources {
    /// The load of the last minute per processor: 1.0 is all of them busy.
    pub cpu: Option<f64>,
    /// Bytes in use on the machine.
    pub memory: Option<f64>,
    /// Bytes in use on the file system that holds the spool.
    pub disk: Option<f64>,
}

impl Resources {
    pub fn read(spool: &Path) -> Self {
        Self { cpu: cpu(), memory: memory(), disk: disk(spool) }
    }
}

/// With one call: the kernel makes a file of /proc anew for each, and hundreds of workers on a machine do this.
fn at_once(path: &str) -> Option<String> {
    let mut page = [0; 4096];
    let length = File::open(path).ok()?.read(&mut page).ok()?;
    String::from_utf8(page.get(..length)?.to_vec()).ok()
}

fn cpu() -> Option<f64> {
    // Finding out takes more than all the rest.
    static PROCESSORS: OnceLock<Option<u32>> = OnceLock::new();
    let count = || u32::try_from(std::thread::available_parallelism().ok()?.get()).ok();
    let processors = (*PROCESSORS.get_or_init(count))?;
    let load: f64 = at_once("/proc/loadavg")?.split_whitespace().next()?.parse().ok()?;
    Some(load / f64::from(processors))
}

fn memory() -> Option<f64> {
    let text = at_once("/proc/meminfo")?;
    let kilobytes = |name: &str| -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
    };
    Some((kilobytes("MemTotal:")? - kilobytes("MemAvailable:")?) * 1024.0)
}

#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn disk(spool: &Path) -> Option<f64> {
    let stat = rustix::fs::statvfs(spool).ok()?;
    Some((stat.f_blocks.saturating_sub(stat.f_bfree) as f64) * stat.f_frsize as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_read() {
        let resources = Resources::read(Path::new("/"));
        assert!(resources.cpu.is_some_and(|cpu| cpu >= 0.0));
        assert!(resources.memory.is_some_and(|memory| memory > 0.0));
        assert!(resources.disk.is_some_and(|disk| disk >= 0.0));
    }
}
