//! Watches what sandboxes take on disk: those that are at work are counted about every second. Where no file system
//! bounds it, whoever writes in one that is over its limit is stopped; where one does, writing fails by itself. Their host
//! is told once either way.

use crate::inside::{Kept, LinkHost, Notice};
use crate::locked;
use atoll_core::id::SandboxId;
use atoll_jail::{Bound, Clock, DiskUse, Error, Launcher};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

const EVERY: Duration = Duration::from_secs(1);
/// Where processor time isn't counted, nobody can be seen to be idle.
const UNCOUNTED: Duration = Duration::from_secs(5);
/// A look may take a twentieth of the time: it isn't repeated before so many times what it took.
const REST: u32 = 20;
/// The longest rest of one that has taken more than half of its limit, and whose bound is kept by looking alone.
const NEAR: Duration = Duration::from_secs(10);
/// What the worker needs for itself, in microseconds: more is work on files.
const WORKERS_OWN: u64 = 200_000;
const AT_ONCE: usize = 4;
/// What may be added by the way to one that is over its limit before all of it is ended.
const SLACK: u64 = 1 << 20;
/// So little left is nothing to write into.
const NEARLY: u64 = 4 << 20;

/// What the files of each living sandbox took when they were last counted.
type Counted = Arc<Mutex<HashMap<String, u64>>>;

/// The watch of one provider; it sleeps while no sandbox lives.
#[derive(Default)]
pub(super) struct Watch {
    wake: Arc<Notify>,
    counted: Counted,
    running: Mutex<Option<AbortHandle>>,
}

impl Watch {
    /// There is a sandbox to watch.
    pub fn wake(&self, launcher: &Arc<Mutex<Arc<Launcher>>>, host: &Arc<dyn LinkHost>) {
        let mut running = locked(&self.running);
        if running.as_ref().is_none_or(AbortHandle::is_finished) {
            let watching =
                watch(Arc::clone(launcher), Arc::clone(host), Arc::clone(&self.wake), Arc::clone(&self.counted));
            *running = Some(tokio::spawn(watching).abort_handle());
        }
        self.wake.notify_one();
    }

    /// What a sandbox's files take, as far as is known: whoever works is counted about every second.
    pub fn last(&self, name: &str) -> Option<u64> {
        locked(&self.counted).get(name).copied()
    }

    pub fn stop(&self) {
        if let Some(running) = locked(&self.running).take() {
            running.abort();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What is known of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// When its files were last counted.
    clock: Option<Clock>,
    not_before: Instant,
    looking: bool,
    /// What it took at the last look, if that was too much.
    over: Option<u64>,
    /// The last look failed.
    failed: bool,
}

impl Seen {
    fn new(now: Instant) -> Self {
        Self { clock: None, not_before: now, looking: false, over: None, failed: false }
    }

    fn is_due(&self, clock: &Clock, now: Instant) -> bool {
        !self.looking && now >= self.not_before && self.clock.as_ref().is_none_or(|last| has_worked(last, clock))
    }

    fn begin(&mut self, clock: Clock) {
        self.clock = Some(clock);
        self.looking = true;
    }

    /// Takes note of a look, and says what the host should hear.
    fn end(&mut self, look: Result<Look, Error>, now: Instant) -> Option<Notice> {
        self.looking = false;
        let look = match look {
            Ok(look) => look,
            Err(error) => {
                // It is ending, or can't be counted: looked at again when there is something new.
                self.not_before = now + EVERY;
                if !self.failed && !is_passing(&error) {
                    let sandbox = self.clock.as_ref().map(|clock| clock.name.as_str());
                    tracing::warn!(sandbox, %error, "what a sandbox takes on disk can't be counted, so its limit is not kept");
                    self.failed = true;
                }
                return None;
            }
        };
        self.failed = false;
        let counted = self.clock.as_ref().is_some_and(|clock| clock.agent.is_some());
        let rest = look.rest().max(if counted { EVERY / 2 } else { UNCOUNTED });
        self.not_before = now + rest;
        let was_over = self.over.is_some();
        self.over = look.is_over().then_some(look.left);
        (look.is_over() && !was_over).then_some(Notice::DiskFull {
            used: look.used,
            limit: look.limit,
            kept: look.kept,
        })
    }
}

/// The sandbox or its launcher goes, or somebody else counts.
fn is_passing(error: &Error) -> bool {
    matches!(error, Error::Unknown { .. } | Error::Ending { .. } | Error::Busy { .. } | Error::Gone)
}

fn has_worked(last: &Clock, now: &Clock) -> bool {
    let worker = match (last.worker, now.worker) {
        (Some(last), Some(now)) => now.saturating_sub(last) > WORKERS_OWN,
        _ => false,
    };
    worker || now.agent.is_none() || now.agent != last.agent
}

/// One look at a sandbox's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    used: u64,
    /// What they took once those who wrote were stopped.
    left: u64,
    limit: u64,
    kept: Kept,
    /// There was no room for more.
    full: bool,
    took: Duration,
}

impl Look {
    const fn is_over(&self) -> bool {
        self.full
    }

    fn rest(&self) -> Duration {
        let is_near = matches!(self.kept, Kept::Stopped(_)) && self.left > self.limit / 2;
        (self.took * REST).min(if is_near { NEAR } else { Duration::MAX })
    }
}

/// Why a sandbox whose bound the kernel keeps can write no more, if so. It never takes all that it may: what a write
/// needs is set aside first, and given back when that is too much.
fn refused(found: &DiskUse, limit: u64) -> Option<Kept> {
    let nearly = (NEARLY + limit / 1000).min(limit / 8);
    if found.bytes.saturating_add(nearly) >= limit {
        return Some(Kept::Refused);
    }
    found.room.is_some_and(|room| room < NEARLY).then_some(Kept::SharedFull)
}

/// Who comes back to write faster than it is stopped has to go with all that it belongs to.
fn everybody(before: Option<u64>, used: u64, limit: u64) -> bool {
    before.is_some_and(|before| used > before.saturating_add(SLACK.max(limit / 100)))
}

fn look(launcher: &Launcher, name: &str, before: Option<u64>) -> Result<Look, Error> {
    let place = launcher.find(name)?.ok_or_else(|| Error::Unknown { name: name.to_owned() })?;
    let start = Instant::now();
    let found = launcher.disk(name)?;
    let (used, took) = (found.bytes, start.elapsed());
    let limit = place.limits.disk_bytes;
    if place.enforced.disk == Bound::Enforced {
        let kept = refused(&found, limit);
        let full = kept.is_some();
        return Ok(Look { used, left: used, limit, kept: kept.unwrap_or(Kept::Refused), full, took });
    }
    let full = used > limit;
    let stopped = if full { launcher.stop_writers(name, everybody(before, used, limit))? } else { 0 };
    let left = if stopped > 0 { launcher.disk(name)?.bytes } else { used };
    Ok(Look { used, left, limit, kept: Kept::Stopped(stopped), full, took })
}

async fn watch(launcher: Arc<Mutex<Arc<Launcher>>>, host: Arc<dyn LinkHost>, wake: Arc<Notify>, counted: Counted) {
    let mut known: HashMap<String, Seen> = HashMap::new();
    let mut looks: JoinSet<(String, Result<Look, Error>)> = JoinSet::new();
    loop {
        let clocks = asked(&launcher, |launcher| launcher.clocks()).await;
        if clocks.as_ref().is_ok_and(Vec::is_empty) {
            known.clear();
            locked(&counted).clear();
            wake.notified().await;
            continue;
        }
        // If the launcher can't answer now, it will later.
        let clocks = clocks.unwrap_or_default();
        known.retain(|name, _| clocks.iter().any(|clock| clock.name == *name));
        locked(&counted).retain(|name, _| known.contains_key(name));
        for clock in clocks {
            let now = Instant::now();
            let seen = known.entry(clock.name.clone()).or_insert_with(|| Seen::new(now));
            if looks.len() < AT_ONCE && seen.is_due(&clock, now) {
                let (launcher, name, before) = (Arc::clone(&launcher), clock.name.clone(), seen.over);
                seen.begin(clock);
                looks.spawn(async move {
                    let subject = name.clone();
                    (name, asked(&launcher, move |launcher| look(launcher, &subject, before)).await)
                });
            }
        }
        let until = Instant::now() + EVERY;
        while let Ok(Some(done)) = tokio::time::timeout_at(until, next(&mut looks)).await {
            let Ok((name, look)) = done else { continue };
            let Some(seen) = known.get_mut(&name) else { continue };
            if let Ok(look) = &look {
                locked(&counted).insert(name.clone(), look.left);
            }
            let notice = seen.end(look, Instant::now());
            if let (Some(notice), Ok(sandbox)) = (notice, name.parse::<SandboxId>()) {
                host.notice(sandbox, notice);
            }
        }
        tokio::time::sleep_until(until).await;
    }
}

/// The next look that is done; never, if there is none.
async fn next<T: 'static>(looks: &mut JoinSet<T>) -> Option<Result<T, tokio::task::JoinError>> {
    match looks.join_next().await {
        Some(done) => Some(done),
        None => std::future::pending().await,
    }
}

async fn asked<T: Send + 'static>(
    launcher: &Arc<Mutex<Arc<Launcher>>>,
    question: impl FnOnce(&Launcher) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let launcher = Arc::clone(launcher);
    let answer = tokio::task::spawn_blocking(move || question(&*super::living(&launcher)?)).await;
    answer.unwrap_or(Err(Error::Gone))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(worker: u64, agent: u64) -> Clock {
        Clock { name: "a".into(), worker: Some(worker), agent: Some(agent) }
    }

    fn took(used: u64, milliseconds: u64) -> Result<Look, Error> {
        let (kept, full) = (Kept::Stopped(2), used > 100);
        Ok(Look { used, left: used, limit: 100, kept, full, took: Duration::from_millis(milliseconds) })
    }

    #[test]
    fn only_who_worked_is_looked_at_and_not_too_often() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut seen = Seen::new(start);
        assert!(seen.is_due(&clock(0, 0), start), "the first time");
        seen.begin(clock(0, 0));
        assert!(!seen.is_due(&clock(0, 9), start), "it is being looked at");
        assert_eq!(seen.end(took(50, 100), start), None);
        assert!(!seen.is_due(&clock(0, 9), after(1999)), "a look of 100 ms is followed by 2 s of rest");
        assert!(seen.is_due(&clock(0, 9), after(2000)));
        assert!(!seen.is_due(&clock(0, 0), after(900_000)), "idle ones cost nothing");
        assert!(!seen.is_due(&clock(WORKERS_OWN, 0), after(900_000)), "nor does their worker");
        assert!(seen.is_due(&clock(WORKERS_OWN + 1, 0), after(900_000)), "unless it works on files");
        seen.end(took(50, 60_000), start);
        assert!(!seen.is_due(&clock(0, 9), after(1_199_000)), "one with many files");
        seen.end(took(51, 60_000), start);
        assert!(seen.is_due(&clock(0, 9), after(10_000)), "unless it comes near its limit");
        let uncounted = Clock { agent: None, worker: None, ..clock(0, 0) };
        seen.begin(uncounted.clone());
        seen.end(took(50, 1), start);
        assert!(!seen.is_due(&uncounted, after(4999)) && seen.is_due(&uncounted, after(5000)));
    }

    #[test]
    fn each_crossing_is_told_once() {
        let now = Instant::now();
        let mut seen = Seen::new(now);
        assert_eq!(seen.end(took(100, 1), now), None, "the limit itself is allowed");
        let full = Notice::DiskFull { used: 101, limit: 100, kept: Kept::Stopped(2) };
        assert_eq!(seen.end(took(101, 1), now), Some(full.clone()));
        assert_eq!(seen.end(took(150, 1), now), None);
        assert_eq!(seen.over, Some(150));
        assert_eq!(seen.end(Err(Error::Gone), now), None);
        assert_eq!((seen.over, seen.failed), (Some(150), false));
        assert_eq!(seen.end(Err(Error::Timeout { request: "disk".into(), seconds: 300 }), now), None);
        assert!(seen.failed);
        assert_eq!(seen.end(took(90, 1), now), None);
        assert_eq!(seen.end(took(101, 1), now), Some(full), "again");
    }

    #[test]
    fn a_bound_that_the_kernel_keeps_is_told_when_it_is_nearly_reached() {
        let found = |bytes, room| DiskUse { bytes, files: 0, room: Some(room) };
        let limit = 64 << 20;
        assert_eq!(refused(&found(59 << 20, limit), limit), None);
        assert_eq!(refused(&found(61 << 20, limit), limit), Some(Kept::Refused));
        assert_eq!(refused(&found(1 << 19, limit), 1 << 20), None, "a small one isn't full from the start");
        assert_eq!(refused(&found(1 << 20, 1 << 20), limit), Some(Kept::SharedFull));
        assert_eq!(refused(&DiskUse { room: None, ..found(1, 0) }, limit), None);
        let large = 100 << 30;
        assert_eq!(refused(&found(99 << 30, large), large), None);
        assert_eq!(refused(&found(large - (50 << 20), large), large), Some(Kept::Refused));
    }

    #[test]
    fn who_goes_on_growing_is_ended_as_a_whole() {
        let limit = 1 << 30;
        assert!(!everybody(None, 2 * limit, limit));
        assert!(!everybody(Some(limit + 1), limit + 1 + SLACK, limit), "a log grows a little");
        assert!(everybody(Some(limit + 1), limit + 2 + limit / 100, limit));
        assert!(everybody(Some(100), 101 + SLACK, 50));
    }
}
