//! Resource usage of the sandbox for heartbeats. Values that cannot be read are `None`.
//!
//! The worker adds up its own processes: all of them if it is the sandbox's first process, otherwise its descendants.
//! The disk usage is absent: a file system shows only the use of all sandboxes. The server adds the launcher's figure.

use atoll_dispatcher::link::Resources;
use rustix::param::{clock_ticks_per_second, page_size};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The processor time at the last heartbeat.
static LAST_CPU: LastCpu = Mutex::new(None);

/// A time, and the clock ticks until then.
type LastCpu = Mutex<Option<(Instant, u64)>>;

/// The figures of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessUsage {
    parent: u32,
    /// Processor time of the process and of its ended children, in clock ticks.
    ticks: u64,
    /// Memory that no other process shares, in pages.
    private_pages: u64,
}

/// The usage of the sandbox's processes.
pub(super) fn read_resources() -> Resources {
    let own = std::process::id();
    let processes = list_processes();
    let (ticks, pages) = sum_usage(&processes, own);
    let cpu = measure_cpu(&LAST_CPU, Instant::now(), ticks);
    #[allow(clippy::cast_precision_loss, reason = "approximate by nature")]
    let memory = Some(pages.saturating_mul(page_size() as u64) as f64).filter(|_| processes.contains_key(&own));
    Resources { cpu, memory, disk: None }
}

/// Processors in use since the last call.
fn measure_cpu(last: &LastCpu, now: Instant, ticks: u64) -> Option<f64> {
    let (before, last) = last.lock().unwrap_or_else(PoisonError::into_inner).replace((now, ticks))?;
    let passed = now.duration_since(before).as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "approximate by nature")]
    let used = ticks.saturating_sub(last) as f64 / clock_ticks_per_second() as f64;
    (passed > 0.0).then(|| used / passed)
}

/// Ticks and private pages of the worker's processes. The first process is the ancestor of all that it sees.
fn sum_usage(processes: &HashMap<u32, ProcessUsage>, own: u32) -> (u64, u64) {
    let belongs = |pid: u32| {
        let mut current = pid;
        // The bound ends a loop of parents that changed during the scan.
        for _ in 0..processes.len() {
            if current == own || own == 1 {
                return true;
            }
            match processes.get(&current) {
                Some(process) => current = process.parent,
                None => return false,
            }
        }
        false
    };
    let counted = processes.iter().filter(|(pid, _)| belongs(**pid));
    counted.fold((0, 0), |(ticks, pages), (_, process)| (ticks + process.ticks, pages + process.private_pages))
}

fn list_processes() -> HashMap<u32, ProcessUsage> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return HashMap::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    // A process can end during the scan.
    pids.filter_map(|pid| Some((pid, read_process(pid)?))).collect()
}

fn read_process(pid: u32) -> Option<ProcessUsage> {
    let (parent, ticks) = parse_stat(&read_proc_file(&format!("/proc/{pid}/stat"))?)?;
    let private_pages = parse_statm(&read_proc_file(&format!("/proc/{pid}/statm"))?)?;
    Some(ProcessUsage { parent, ticks, private_pages })
}

/// Parses parent and processor time. The name before them can contain spaces and parentheses.
fn parse_stat(text: &str) -> Option<(u32, u64)> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let time = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some((fields.get(1)?.parse().ok()?, time))
}

/// Parses the resident pages without the shared ones.
fn parse_statm(text: &str) -> Option<u64> {
    let mut fields = text.split_whitespace().skip(1).map(|field| field.parse::<u64>().ok());
    let (resident, shared) = (fields.next()??, fields.next()??);
    Some(resident.saturating_sub(shared))
}

/// Reads a /proc file with one system call: the kernel renders the file for each, and a host may run hundreds of workers.
fn read_proc_file(path: &str) -> Option<String> {
    let mut page = [0; 4096];
    let length = File::open(path).ok()?.read(&mut page).ok()?;
    Some(String::from_utf8_lossy(page.get(..length)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn parses_hostile_names() {
        let stat = "42 (a) b) S 7 42 42 0 -1 4194304 100 0 0 0 1 2 30 400 20 0 1 0 9 1000 5 18446744073709551615";
        assert_eq!(parse_stat(stat), Some((7, 433)));
        assert_eq!((parse_stat("42 (sh"), parse_stat("42 (sh) S 7")), (None, None));
        assert_eq!((parse_statm("500 120 20 1 0 50 0\n"), parse_statm("1")), (Some(100), None));
    }

    #[test]
    fn counts_only_the_workers_own_processes() {
        let process = |parent, ticks| ProcessUsage { parent, ticks, private_pages: ticks * 2 };
        let processes = HashMap::from([
            (1, process(0, 1)),
            (50, process(1, 10)),
            (51, process(50, 100)),
            (52, process(51, 1_000)),
            (60, process(1, 10_000)),
            (70, process(71, 100_000)),
            (71, process(70, 100_000)),
        ]);
        assert_eq!(sum_usage(&processes, 50), (1_110, 2_220));
        assert_eq!(sum_usage(&processes, 1).0, 211_111, "the first process owns all");
    }

    #[test]
    fn memory_grows_with_a_process_and_not_with_the_machine() {
        let before = read_resources();
        let block = std::hint::black_box(vec![1_u8; 128 << 20]);
        let after = read_resources();
        assert!(after.memory.unwrap() - before.memory.unwrap() > 64e6, "{before:?} {after:?}");
        assert!(block.len() > 1 && after.disk.is_none());
    }

    #[test]
    fn cpu_is_the_time_since_the_last_heartbeat() {
        let (last, now) = (Mutex::new(None), Instant::now());
        assert_eq!(measure_cpu(&last, now, 1_000), None);
        let second = clock_ticks_per_second();
        let cpu = measure_cpu(&last, now + Duration::from_secs(10), 1_000 + 15 * second).unwrap();
        assert!((cpu - 1.5).abs() < 1e-9, "{cpu}");
    }
}
