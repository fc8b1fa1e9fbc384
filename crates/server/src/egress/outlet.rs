//! One sandbox's way out: what it may reach now, what went through, what was refused.

use super::counts::{Counts, Table, Traffic};
use super::quiet::Quiet;
use super::refusal::Refusal;
use atoll_core::id::SandboxId;
use atoll_core::network::{Rule, Target};
use atoll_core::sandbox::Network;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};

/// Connections of one sandbox at once; more wait in the socket's own queue.
const CONNECTIONS: usize = 256;
/// Lookups of one sandbox at once.
const LOOKUPS: usize = 8;
/// A connection on which nothing moves for this long is closed.
const IDLE: Duration = Duration::from_secs(15 * 60);

struct Ruled {
    /// Of the sandbox's row: an older reading never replaces a newer one.
    version: i64,
    rule: Arc<Rule>,
}

pub struct Outlet {
    pub sandbox: SandboxId,
    pub connections: Arc<Semaphore>,
    /// So that names which nobody answers for take no other sandbox's turn.
    pub lookups: Semaphore,
    rule: watch::Sender<Ruled>,
    table: Mutex<Table>,
    quiet: Mutex<Quiet>,
    /// 0 is no limit.
    most: u64,
}

impl Outlet {
    /// Until something is known, nothing leaves.
    pub fn new(sandbox: SandboxId, most: u64) -> Self {
        Self {
            sandbox,
            connections: Arc::new(Semaphore::new(CONNECTIONS)),
            lookups: Semaphore::new(LOOKUPS),
            rule: watch::Sender::new(Ruled { version: i64::MIN, rule: Arc::new(Rule::None) }),
            table: Mutex::default(),
            quiet: Mutex::default(),
            most,
        }
    }

    /// Takes effect at once, also for connections that are open.
    pub fn set(&self, version: i64, network: Option<&Network>) {
        let rule = network.map_or(Ok(Rule::None), Rule::new).unwrap_or_else(|error| {
            tracing::warn!(sandbox = %self.sandbox, %error, "a stored network policy can't be read; nothing leaves");
            Rule::None
        });
        self.rule.send_if_modified(|ruled| {
            let newer = version > ruled.version;
            if newer {
                *ruled = Ruled { version, rule: Arc::new(rule) };
            }
            newer
        });
    }

    pub fn check(&self, target: &Target) -> Result<(), Refusal> {
        if self.most != 0 && self.total().bytes() >= self.most {
            return Err(Refusal::Cap { most: self.most });
        }
        let rule = Arc::clone(&self.rule.borrow().rule);
        if rule.permits(target) { Ok(()) } else { Err(Refusal::Policy(rule.policy())) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self, target: &Target) -> Arc<Counts> {
        self.table().of(&target.host.to_string(), target.port)
    }

    /// Counts it. Says how often the same happened since it was last told, if it is to be told now.
    pub fn refused(&self, host: &str, port: u16, refusal: &Refusal) -> Option<u64> {
        let mut table = self.table();
        table.of(host, port).refused.fetch_add(1, Ordering::Relaxed);
        table.total.refused.fetch_add(1, Ordering::Relaxed);
        drop(table);
        let mut quiet = self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        quiet.note((host.to_owned(), port, refusal.code()), Instant::now())
    }

    pub fn total(&self) -> Arc<Counts> {
        Arc::clone(&self.table().total)
    }

    /// Busiest first.
    pub fn traffic(&self) -> Vec<Traffic> {
        self.table().traffic()
    }
}

/// One connection that leaves.
pub struct Way {
    pub target: Target,
    outlet: Arc<Outlet>,
    counts: Arc<Counts>,
    total: Arc<Counts>,
    began: Instant,
    /// Milliseconds after the beginning.
    moved: AtomicU64,
}

impl Way {
    pub fn new(outlet: &Arc<Outlet>, target: Target) -> Self {
        let (counts, total) = (outlet.counts(&target), outlet.total());
        counts.connections.fetch_add(1, Ordering::Relaxed);
        total.connections.fetch_add(1, Ordering::Relaxed);
        Self { target, outlet: Arc::clone(outlet), counts, total, began: Instant::now(), moved: AtomicU64::new(0) }
    }

    fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Notes what went through. False when that was the last that may.
    #[must_use]
    pub fn count(&self, sent: usize, received: usize) -> bool {
        let age = u64::try_from(self.age().as_millis()).unwrap_or(u64::MAX);
        self.moved.store(age, Ordering::Relaxed);
        self.counts.add(sent, received);
        self.total.add(sent, received);
        self.outlet.most == 0 || self.total.bytes() < self.outlet.most
    }

    /// Comes back when the connection must end: nothing moves, or it may not be any more.
    pub async fn cut(&self) -> Option<Refusal> {
        let mut rule = self.outlet.rule.subscribe();
        loop {
            if let Err(refusal) = self.outlet.check(&self.target) {
                return Some(refusal);
            }
            let quiet = self.age().saturating_sub(Duration::from_millis(self.moved.load(Ordering::Relaxed)));
            let left = IDLE.checked_sub(quiet).filter(|left| !left.is_zero())?;
            tokio::select! {
                changed = rule.changed() => if changed.is_err() { return None },
                () = tokio::time::sleep(left) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::sandbox::NetworkPolicy;

    fn allow(host: &str) -> Network {
        Network { policy: NetworkPolicy::Allow, allow: vec![host.to_owned()] }
    }

    fn target(text: &str) -> Target {
        Target::parse(text, None).unwrap()
    }

    #[test]
    fn an_older_reading_does_not_replace_a_newer_one() {
        let outlet = Outlet::new(SandboxId::new(), 0);
        assert_eq!(outlet.check(&target("a.example:443")), Err(Refusal::Policy(NetworkPolicy::None)));
        outlet.set(7, Some(&allow("a.example")));
        outlet.set(6, Some(&allow("b.example")));
        assert_eq!(outlet.check(&target("a.example:443")), Ok(()));
        assert_eq!(outlet.check(&target("b.example:443")), Err(Refusal::Policy(NetworkPolicy::Allow)));
        // What can't be read lets nothing out.
        outlet.set(8, Some(&allow("https://a.example")));
        assert!(outlet.check(&target("a.example:443")).is_err());
    }

    #[tokio::test]
    async fn a_connection_ends_when_it_may_not_be_any_more() {
        let outlet = Arc::new(Outlet::new(SandboxId::new(), 0));
        outlet.set(1, Some(&allow("a.example")));
        let way = Way::new(&outlet, target("a.example:443"));
        let still = tokio::time::timeout(Duration::from_millis(20), way.cut()).await;
        assert!(still.is_err(), "it goes on");
        outlet.set(2, Some(&allow("a.example")));
        assert!(tokio::time::timeout(Duration::from_millis(20), way.cut()).await.is_err(), "nothing changed for it");
        let (cut, ()) = tokio::join!(way.cut(), async { outlet.set(3, None) });
        assert_eq!(cut, Some(Refusal::Policy(NetworkPolicy::None)));
    }

    #[test]
    fn bytes_are_counted_up_to_the_most_that_may() {
        let outlet = Arc::new(Outlet::new(SandboxId::new(), 100));
        outlet.set(1, Some(&allow("a.example")));
        let way = Way::new(&outlet, target("a.example:443"));
        assert!(way.count(40, 0) && way.count(0, 59));
        assert!(!way.count(1, 0));
        assert_eq!(outlet.check(&target("a.example:443")), Err(Refusal::Cap { most: 100 }));
        let traffic = outlet.traffic();
        assert_eq!((traffic[0].host.as_str(), traffic[0].sent, traffic[0].received), ("a.example", 41, 59));
    }
}
