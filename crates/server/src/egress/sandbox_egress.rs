//! The egress state of one sandbox: its policy, traffic counts and refusals.

use super::connection_pool::ConnectionShare;
use super::egress_refusal::EgressRefusal;
use super::refusal_throttle::{RefusalThrottle, RefusedHost};
use super::traffic::{TrafficCounts, TrafficTable};
use atoll_api::HostTraffic;
use atoll_core::id::SandboxId;
use atoll_core::network::{AllowEntry, NetworkRule, NetworkTarget};
use atoll_core::sandbox::Network;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};

/// Concurrent DNS lookups of one sandbox.
const MAX_SANDBOX_LOOKUPS: usize = 8;
/// Closes a connection without traffic after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

struct VersionedRule {
    /// Version of the sandbox's row; an older policy never replaces a newer one.
    version: i64,
    rule: Arc<NetworkRule>,
}

/// Settings of the server for the egress of every sandbox.
#[derive(Debug, Clone, Default)]
pub struct EgressLimits {
    /// 0 is no limit.
    pub max_bytes: u64,
    /// The hosts of the policy `packages`.
    pub packages: Arc<[AllowEntry]>,
}

pub struct SandboxEgress {
    pub sandbox: SandboxId,
    pub connections: Arc<ConnectionShare>,
    /// Bounds slow lookups, so that they do not delay other sandboxes.
    pub lookups: Semaphore,
    rule: watch::Sender<VersionedRule>,
    table: Mutex<TrafficTable>,
    throttle: Mutex<RefusalThrottle>,
    limits: EgressLimits,
}

impl SandboxEgress {
    /// Starts with a policy that refuses everything.
    pub fn new(sandbox: SandboxId, limits: EgressLimits) -> Self {
        Self {
            sandbox,
            connections: Arc::default(),
            lookups: Semaphore::new(MAX_SANDBOX_LOOKUPS),
            rule: watch::Sender::new(VersionedRule { version: i64::MIN, rule: Arc::new(NetworkRule::None) }),
            table: Mutex::default(),
            throttle: Mutex::default(),
            limits,
        }
    }

    /// Applies a policy at once, also to open connections.
    pub fn set_policy(&self, version: i64, network: Option<&Network>) {
        let rule = network.map_or(Ok(NetworkRule::None), |network| NetworkRule::new(network, &self.limits.packages));
        let rule = rule.unwrap_or_else(|error| {
            tracing::warn!(sandbox = %self.sandbox, %error, "invalid stored network policy; refusing all connections");
            NetworkRule::None
        });
        self.rule.send_if_modified(|ruled| {
            let newer = version > ruled.version;
            if newer {
                *ruled = VersionedRule { version, rule: Arc::new(rule) };
            }
            newer
        });
    }

    pub fn check_policy(&self, target: &NetworkTarget) -> Result<(), EgressRefusal> {
        let max_bytes = self.limits.max_bytes;
        if max_bytes != 0 && self.total_counts().total_bytes() >= max_bytes {
            return Err(EgressRefusal::ByteLimit { most: max_bytes });
        }
        let rule = Arc::clone(&self.rule.borrow().rule);
        if rule.permits(target) { Ok(()) } else { Err(EgressRefusal::Policy(rule.policy())) }
    }

    fn lock_table(&self) -> MutexGuard<'_, TrafficTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn host_counts(&self, target: &NetworkTarget) -> Arc<TrafficCounts> {
        self.lock_table().host_counts(&target.host.to_string(), target.port)
    }

    /// Counts a refusal. Returns the number since the last report, or `None` while it is throttled.
    pub fn count_refusal(&self, host: &str, port: u16, refusal: &EgressRefusal) -> Option<u64> {
        let mut table = self.lock_table();
        table.host_counts(host, port).refused.fetch_add(1, Ordering::Relaxed);
        table.total.refused.fetch_add(1, Ordering::Relaxed);
        drop(table);
        self.lock_throttle().count_occurrence((host.to_owned(), port, refusal.code()), Instant::now())
    }

    fn lock_throttle(&self) -> MutexGuard<'_, RefusalThrottle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The refused hosts, most frequent first.
    pub fn list_refused(&self) -> Vec<RefusedHost> {
        self.lock_throttle().list_refused()
    }

    /// Counts refusals from zero again.
    pub fn reset_refusals(&self) {
        *self.lock_throttle() = RefusalThrottle::default();
    }

    pub fn total_counts(&self) -> Arc<TrafficCounts> {
        Arc::clone(&self.lock_table().total)
    }

    /// Busiest first.
    pub fn list_hosts(&self) -> Vec<HostTraffic> {
        self.lock_table().list_hosts()
    }
}

/// Meters one connection and decides when to cut it.
pub struct ConnectionMeter {
    pub target: NetworkTarget,
    egress: Arc<SandboxEgress>,
    counts: Arc<TrafficCounts>,
    total: Arc<TrafficCounts>,
    started: Instant,
    /// Milliseconds since `started`.
    last_transfer_ms: AtomicU64,
}

impl ConnectionMeter {
    pub fn new(sandbox_egress: &Arc<SandboxEgress>, target: NetworkTarget) -> Self {
        let (counts, total) = (sandbox_egress.host_counts(&target), sandbox_egress.total_counts());
        counts.connections.fetch_add(1, Ordering::Relaxed);
        total.connections.fetch_add(1, Ordering::Relaxed);
        Self {
            target,
            egress: Arc::clone(sandbox_egress),
            counts,
            total,
            started: Instant::now(),
            last_transfer_ms: AtomicU64::new(0),
        }
    }

    fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Counts transferred bytes. Returns false at the sandbox's byte limit.
    #[must_use]
    pub fn count_bytes(&self, sent: usize, received: usize) -> bool {
        let age = u64::try_from(self.age().as_millis()).unwrap_or(u64::MAX);
        self.last_transfer_ms.store(age, Ordering::Relaxed);
        self.counts.add(sent, received);
        self.total.add(sent, received);
        let max_bytes = self.egress.limits.max_bytes;
        max_bytes == 0 || self.total.total_bytes() < max_bytes
    }

    /// Waits until the connection must close: with a refusal, or `None` when it is idle.
    pub async fn wait_until_cut(&self) -> Option<EgressRefusal> {
        let mut rule = self.egress.rule.subscribe();
        loop {
            if let Err(refusal) = self.egress.check_policy(&self.target) {
                return Some(refusal);
            }
            let quiet = self.age().saturating_sub(Duration::from_millis(self.last_transfer_ms.load(Ordering::Relaxed)));
            let left = IDLE_TIMEOUT.checked_sub(quiet).filter(|left| !left.is_zero())?;
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

    fn target(text: &str) -> NetworkTarget {
        NetworkTarget::parse(text, None).unwrap()
    }

    #[test]
    fn an_older_policy_does_not_replace_a_newer_one() {
        let sandbox_egress = SandboxEgress::new(SandboxId::new(), EgressLimits::default());
        assert_eq!(
            sandbox_egress.check_policy(&target("a.example:443")),
            Err(EgressRefusal::Policy(NetworkPolicy::None))
        );
        sandbox_egress.set_policy(7, Some(&allow("a.example")));
        sandbox_egress.set_policy(6, Some(&allow("b.example")));
        assert_eq!(sandbox_egress.check_policy(&target("a.example:443")), Ok(()));
        assert_eq!(
            sandbox_egress.check_policy(&target("b.example:443")),
            Err(EgressRefusal::Policy(NetworkPolicy::Allow))
        );
        // An invalid policy refuses everything.
        sandbox_egress.set_policy(8, Some(&allow("https://a.example")));
        assert!(sandbox_egress.check_policy(&target("a.example:443")).is_err());
    }

    #[tokio::test]
    async fn a_policy_change_cuts_open_connections() {
        let sandbox_egress = Arc::new(SandboxEgress::new(SandboxId::new(), EgressLimits::default()));
        sandbox_egress.set_policy(1, Some(&allow("a.example")));
        let meter = ConnectionMeter::new(&sandbox_egress, target("a.example:443"));
        let still = tokio::time::timeout(Duration::from_millis(20), meter.wait_until_cut()).await;
        assert!(still.is_err(), "the connection stays open");
        sandbox_egress.set_policy(2, Some(&allow("a.example")));
        assert!(
            tokio::time::timeout(Duration::from_millis(20), meter.wait_until_cut()).await.is_err(),
            "the policy still allows the host"
        );
        let (cut, ()) = tokio::join!(meter.wait_until_cut(), async { sandbox_egress.set_policy(3, None) });
        assert_eq!(cut, Some(EgressRefusal::Policy(NetworkPolicy::None)));
    }

    #[test]
    fn counts_bytes_up_to_the_limit() {
        let sandbox_egress =
            Arc::new(SandboxEgress::new(SandboxId::new(), EgressLimits { max_bytes: 100, ..EgressLimits::default() }));
        sandbox_egress.set_policy(1, Some(&allow("a.example")));
        let meter = ConnectionMeter::new(&sandbox_egress, target("a.example:443"));
        assert!(meter.count_bytes(40, 0) && meter.count_bytes(0, 59));
        assert!(!meter.count_bytes(1, 0));
        assert_eq!(sandbox_egress.check_policy(&target("a.example:443")), Err(EgressRefusal::ByteLimit { most: 100 }));
        let traffic = sandbox_egress.list_hosts();
        assert_eq!((traffic[0].host.as_str(), traffic[0].sent, traffic[0].received), ("a.example", 41, 59));
    }
}
