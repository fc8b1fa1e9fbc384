//! Monitors the disk use of sandboxes: scans active ones about every second. Without a quota, it kills the writers of a
//! sandbox that is over its limit; with one, writes fail by themselves. Reports each crossing to the host once.

use crate::lock_state;
use crate::worker_client::{DiskLimitEffect, LinkHost, SandboxNotice};
use atoll_core::id::SandboxId;
use atoll_jail::{CpuTimes, DiskUsage, Enforcement, Error, Launcher};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Scan interval where CPU time is not metered, so that idle sandboxes cannot be recognized.
const UNMETERED_SCAN_INTERVAL: Duration = Duration::from_secs(5);
/// Caps scanning at a 5 % duty cycle: the rest after a scan is this many times its duration.
const REST_FACTOR: u32 = 20;
/// Longest rest for a sandbox above half of its limit, where only scans enforce the limit.
const MAX_REST_NEAR_LIMIT: Duration = Duration::from_secs(10);
/// CPU time between scans that an idle worker uses; more means work on files.
const IDLE_WORKER_CPU_MICROS: u64 = 200_000;
const MAX_CONCURRENT_SCANS: usize = 4;
/// Growth between scans that a sandbox over its limit may have before all of it is killed.
const MIN_GROWTH_BYTES: u64 = 1 << 20;
/// Free space below which a sandbox counts as full.
const NEARLY_FULL_BYTES: u64 = 4 << 20;

/// The last measured disk use of each live sandbox.
type UsageCache = Arc<Mutex<HashMap<String, u64>>>;

/// Monitors one provider's sandboxes; sleeps while there are none.
#[derive(Default)]
pub(super) struct DiskWatch {
    wake: Arc<Notify>,
    counted: UsageCache,
    running: Mutex<Option<AbortHandle>>,
}

impl DiskWatch {
    /// Starts or wakes the monitor.
    pub fn start_or_wake(&self, launcher: &Arc<Mutex<Arc<Launcher>>>, host: &Arc<dyn LinkHost>) {
        let mut running = lock_state(&self.running);
        if running.as_ref().is_none_or(AbortHandle::is_finished) {
            let watching =
                watch_disks(Arc::clone(launcher), Arc::clone(host), Arc::clone(&self.wake), Arc::clone(&self.counted));
            *running = Some(tokio::spawn(watching).abort_handle());
        }
        self.wake.notify_one();
    }

    /// Returns the last measured disk use of a sandbox.
    pub fn last_usage(&self, name: &str) -> Option<u64> {
        lock_state(&self.counted).get(name).copied()
    }

    pub fn stop(&self) {
        if let Some(running) = lock_state(&self.running).take() {
            running.abort();
        }
    }
}

impl Drop for DiskWatch {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The scan state of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ScanState {
    /// CPU times at the last scan.
    clock: Option<CpuTimes>,
    not_before: Instant,
    is_scanning: bool,
    /// Its disk use at the last scan, if over the limit.
    bytes_over_limit: Option<u64>,
    failed: bool,
}

impl ScanState {
    fn new(now: Instant) -> Self {
        Self { clock: None, not_before: now, is_scanning: false, bytes_over_limit: None, failed: false }
    }

    fn is_due(&self, clock: &CpuTimes, now: Instant) -> bool {
        !self.is_scanning && now >= self.not_before && self.clock.as_ref().is_none_or(|last| has_run(last, clock))
    }

    fn begin_scan(&mut self, clock: CpuTimes) {
        self.clock = Some(clock);
        self.is_scanning = true;
    }

    /// Records a scan and returns the notice to report, if any.
    fn end_scan(&mut self, look: Result<ScanResult, Error>, now: Instant) -> Option<SandboxNotice> {
        self.is_scanning = false;
        let look = match look {
            Ok(look) => look,
            Err(error) => {
                // The sandbox is ending or cannot be scanned: retry when it has run again.
                self.not_before = now + SCAN_INTERVAL;
                if !self.failed && !is_transient(&error) {
                    let sandbox = self.clock.as_ref().map(|clock| clock.name.as_str());
                    tracing::warn!(sandbox, %error, "cannot measure a sandbox's disk use, so its limit is not enforced");
                    self.failed = true;
                }
                return None;
            }
        };
        self.failed = false;
        let counted = self.clock.as_ref().is_some_and(|clock| clock.agent.is_some());
        let rest = look.rest_duration().max(if counted { SCAN_INTERVAL / 2 } else { UNMETERED_SCAN_INTERVAL });
        self.not_before = now + rest;
        let was_over = self.bytes_over_limit.is_some();
        self.bytes_over_limit = look.is_over().then_some(look.left);
        (look.is_over() && !was_over).then_some(SandboxNotice::DiskFull {
            used: look.used,
            limit: look.limit,
            effect: look.effect,
        })
    }
}

/// True if the sandbox or launcher is ending, or another scan is running.
fn is_transient(error: &Error) -> bool {
    matches!(error, Error::UnknownSandbox { .. } | Error::Ending { .. } | Error::Busy { .. } | Error::LauncherGone)
}

fn has_run(last: &CpuTimes, now: &CpuTimes) -> bool {
    let worker = match (last.worker, now.worker) {
        (Some(last), Some(now)) => now.saturating_sub(last) > IDLE_WORKER_CPU_MICROS,
        _ => false,
    };
    worker || now.agent.is_none() || now.agent != last.agent
}

/// The result of one scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScanResult {
    used: u64,
    /// Disk use after the writers were killed.
    left: u64,
    limit: u64,
    effect: DiskLimitEffect,
    full: bool,
    took: Duration,
}

impl ScanResult {
    const fn is_over(&self) -> bool {
        self.full
    }

    fn rest_duration(&self) -> Duration {
        let is_near = matches!(self.effect, DiskLimitEffect::WritersKilled(_)) && self.left > self.limit / 2;
        (self.took * REST_FACTOR).min(if is_near { MAX_REST_NEAR_LIMIT } else { Duration::MAX })
    }
}

/// Returns the effect if a sandbox with a kernel quota is full. Use never quite reaches the limit: the kernel reserves
/// space before a write and returns it if the write fails.
fn kernel_limit_effect(found: &DiskUsage, limit: u64) -> Option<DiskLimitEffect> {
    let nearly = (NEARLY_FULL_BYTES + limit / 1000).min(limit / 8);
    if found.bytes.saturating_add(nearly) >= limit {
        return Some(DiskLimitEffect::WritesRefused);
    }
    found.free_pool_bytes.is_some_and(|room| room < NEARLY_FULL_BYTES).then_some(DiskLimitEffect::PoolFull)
}

/// True if a sandbox grows faster than its writers are killed; then all of it must go.
fn must_kill_all(before: Option<u64>, used: u64, limit: u64) -> bool {
    before.is_some_and(|before| used > before.saturating_add(MIN_GROWTH_BYTES.max(limit / 100)))
}

fn scan_sandbox(launcher: &Launcher, name: &str, before: Option<u64>) -> Result<ScanResult, Error> {
    let info = launcher.find_sandbox(name)?.ok_or_else(|| Error::UnknownSandbox { name: name.to_owned() })?;
    let start = Instant::now();
    let found = launcher.measure_disk(name)?;
    let (used, took) = (found.bytes, start.elapsed());
    let limit = info.limits.disk_bytes;
    if info.enforced.disk == Enforcement::Enforced {
        let effect = kernel_limit_effect(&found, limit);
        let full = effect.is_some();
        return Ok(ScanResult {
            used,
            left: used,
            limit,
            effect: effect.unwrap_or(DiskLimitEffect::WritesRefused),
            full,
            took,
        });
    }
    let full = used > limit;
    let stopped = if full { launcher.kill_writers(name, must_kill_all(before, used, limit))? } else { 0 };
    let left = if stopped > 0 { launcher.measure_disk(name)?.bytes } else { used };
    Ok(ScanResult { used, left, limit, effect: DiskLimitEffect::WritersKilled(stopped), full, took })
}

async fn watch_disks(
    launcher: Arc<Mutex<Arc<Launcher>>>,
    host: Arc<dyn LinkHost>,
    wake: Arc<Notify>,
    counted: UsageCache,
) {
    let mut known: HashMap<String, ScanState> = HashMap::new();
    let mut looks: JoinSet<(String, Result<ScanResult, Error>)> = JoinSet::new();
    loop {
        let clocks = call_launcher(&launcher, |launcher| launcher.read_cpu_times()).await;
        if clocks.as_ref().is_ok_and(Vec::is_empty) {
            known.clear();
            lock_state(&counted).clear();
            wake.notified().await;
            continue;
        }
        // If the launcher does not respond, the next round retries.
        let clocks = clocks.unwrap_or_default();
        known.retain(|name, _| clocks.iter().any(|clock| clock.name == *name));
        lock_state(&counted).retain(|name, _| known.contains_key(name));
        for clock in clocks {
            let now = Instant::now();
            let state = known.entry(clock.name.clone()).or_insert_with(|| ScanState::new(now));
            if looks.len() < MAX_CONCURRENT_SCANS && state.is_due(&clock, now) {
                let (launcher, name, before) = (Arc::clone(&launcher), clock.name.clone(), state.bytes_over_limit);
                state.begin_scan(clock);
                looks.spawn(async move {
                    let subject = name.clone();
                    (name, call_launcher(&launcher, move |launcher| scan_sandbox(launcher, &subject, before)).await)
                });
            }
        }
        let until = Instant::now() + SCAN_INTERVAL;
        while let Ok(Some(done)) = tokio::time::timeout_at(until, next_scan(&mut looks)).await {
            let Ok((name, look)) = done else { continue };
            let Some(state) = known.get_mut(&name) else { continue };
            if let Ok(look) = &look {
                lock_state(&counted).insert(name.clone(), look.left);
            }
            let notice = state.end_scan(look, Instant::now());
            if let (Some(notice), Ok(sandbox)) = (notice, name.parse::<SandboxId>()) {
                host.report_notice(sandbox, notice);
            }
        }
        tokio::time::sleep_until(until).await;
    }
}

/// Waits for the next finished scan; forever if none runs.
async fn next_scan<T: 'static>(looks: &mut JoinSet<T>) -> Option<Result<T, tokio::task::JoinError>> {
    match looks.join_next().await {
        Some(done) => Some(done),
        None => std::future::pending().await,
    }
}

async fn call_launcher<T: Send + 'static>(
    launcher: &Arc<Mutex<Arc<Launcher>>>,
    question: impl FnOnce(&Launcher) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let launcher = Arc::clone(launcher);
    let answer = tokio::task::spawn_blocking(move || question(&*super::live_launcher(&launcher)?)).await;
    answer.unwrap_or(Err(Error::LauncherGone))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu_times(worker: u64, agent: u64) -> CpuTimes {
        CpuTimes { name: "a".into(), worker: Some(worker), agent: Some(agent) }
    }

    fn scan_result(used: u64, milliseconds: u64) -> Result<ScanResult, Error> {
        let (effect, full) = (DiskLimitEffect::WritersKilled(2), used > 100);
        Ok(ScanResult { used, left: used, limit: 100, effect, full, took: Duration::from_millis(milliseconds) })
    }

    #[test]
    fn scans_only_active_sandboxes_and_rests_between_scans() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut state = ScanState::new(start);
        assert!(state.is_due(&cpu_times(0, 0), start), "the first time");
        state.begin_scan(cpu_times(0, 0));
        assert!(!state.is_due(&cpu_times(0, 9), start), "a scan is running");
        assert_eq!(state.end_scan(scan_result(50, 100), start), None);
        assert!(!state.is_due(&cpu_times(0, 9), after(1999)), "a scan of 100 ms is followed by 2 s of rest");
        assert!(state.is_due(&cpu_times(0, 9), after(2000)));
        assert!(!state.is_due(&cpu_times(0, 0), after(900_000)), "idle sandboxes are not scanned");
        assert!(
            !state.is_due(&cpu_times(IDLE_WORKER_CPU_MICROS, 0), after(900_000)),
            "nor for their worker's own CPU time"
        );
        assert!(state.is_due(&cpu_times(IDLE_WORKER_CPU_MICROS + 1, 0), after(900_000)), "unless it works on files");
        state.end_scan(scan_result(50, 60_000), start);
        assert!(!state.is_due(&cpu_times(0, 9), after(1_199_000)), "a sandbox with many files");
        state.end_scan(scan_result(51, 60_000), start);
        assert!(state.is_due(&cpu_times(0, 9), after(10_000)), "unless it is near its limit");
        let uncounted = CpuTimes { agent: None, worker: None, ..cpu_times(0, 0) };
        state.begin_scan(uncounted.clone());
        state.end_scan(scan_result(50, 1), start);
        assert!(!state.is_due(&uncounted, after(4999)) && state.is_due(&uncounted, after(5000)));
    }

    #[test]
    fn reports_each_crossing_once() {
        let now = Instant::now();
        let mut state = ScanState::new(now);
        assert_eq!(state.end_scan(scan_result(100, 1), now), None, "the limit itself is allowed");
        let full = SandboxNotice::DiskFull { used: 101, limit: 100, effect: DiskLimitEffect::WritersKilled(2) };
        assert_eq!(state.end_scan(scan_result(101, 1), now), Some(full.clone()));
        assert_eq!(state.end_scan(scan_result(150, 1), now), None);
        assert_eq!(state.bytes_over_limit, Some(150));
        assert_eq!(state.end_scan(Err(Error::LauncherGone), now), None);
        assert_eq!((state.bytes_over_limit, state.failed), (Some(150), false));
        assert_eq!(state.end_scan(Err(Error::Timeout { request: "disk".into(), seconds: 300 }), now), None);
        assert!(state.failed);
        assert_eq!(state.end_scan(scan_result(90, 1), now), None);
        assert_eq!(state.end_scan(scan_result(101, 1), now), Some(full), "again");
    }

    #[test]
    fn reports_a_kernel_limit_when_nearly_reached() {
        let found = |bytes, room| DiskUsage { bytes, files: 0, free_pool_bytes: Some(room) };
        let limit = 64 << 20;
        assert_eq!(kernel_limit_effect(&found(59 << 20, limit), limit), None);
        assert_eq!(kernel_limit_effect(&found(61 << 20, limit), limit), Some(DiskLimitEffect::WritesRefused));
        assert_eq!(
            kernel_limit_effect(&found(1 << 19, limit), 1 << 20),
            None,
            "a small quota is not full from the start"
        );
        assert_eq!(kernel_limit_effect(&found(1 << 20, 1 << 20), limit), Some(DiskLimitEffect::PoolFull));
        assert_eq!(kernel_limit_effect(&DiskUsage { free_pool_bytes: None, ..found(1, 0) }, limit), None);
        let large = 100 << 30;
        assert_eq!(kernel_limit_effect(&found(99 << 30, large), large), None);
        assert_eq!(kernel_limit_effect(&found(large - (50 << 20), large), large), Some(DiskLimitEffect::WritesRefused));
    }

    #[test]
    fn a_sandbox_that_keeps_growing_is_killed_whole() {
        let limit = 1 << 30;
        assert!(!must_kill_all(None, 2 * limit, limit));
        assert!(!must_kill_all(Some(limit + 1), limit + 1 + MIN_GROWTH_BYTES, limit), "a log grows a little");
        assert!(must_kill_all(Some(limit + 1), limit + 2 + limit / 100, limit));
        assert!(must_kill_all(Some(100), 101 + MIN_GROWTH_BYTES, 50));
    }
}
