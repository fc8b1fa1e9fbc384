//! Bounds the connections of the listener. No peer and no principal can take all of them.
//!
//! A connection counts for its peer until a request on it authenticates, then for that request's principal. When there
//! is no room, the oldest connection without a principal makes room: a client with a token needs only moments until it
//! is identified, while connections that send nothing grow old.

use crate::auth::PrincipalKey;
use crate::shares::{SharePermit, ShareUsedUp, Shares, fair_share};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Time until a new connection must have sent the head of its first request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Time until a connection must have sent a request with a valid token.
const UNIDENTIFIED_LIFETIME: Duration = Duration::from_secs(60);
/// Maximum connections of one worker.
const MAX_WORKER_CONNECTIONS: usize = 256;

/// A peer: an IPv4 address, or the network of an IPv6 address, since one host may have all addresses of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(IpAddr);

impl From<IpAddr> for PeerKey {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Self(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into()),
            address @ IpAddr::V4(_) => Self(address),
        }
    }
}

/// All open connections of the listener.
#[derive(Debug)]
pub struct Connections {
    max: usize,
    table: Mutex<Table>,
    principals: Arc<Shares<PrincipalKey>>,
}

#[derive(Debug, Default)]
struct Table {
    /// Open connections, with and without a principal.
    open: usize,
    next_id: u64,
    /// The connections without a principal, the oldest first, with the signal that closes them.
    unidentified: HashMap<PeerKey, BTreeMap<u64, Arc<Notify>>>,
}

impl Table {
    /// Closes the oldest connection of the peer.
    fn evict_oldest(&mut self, peer: PeerKey) -> bool {
        let Some(own) = self.unidentified.get_mut(&peer) else { return false };
        let Some((_, evicted)) = own.pop_first() else { return false };
        if own.is_empty() {
            self.unidentified.remove(&peer);
        }
        evicted.notify_one();
        true
    }

    /// The peer with the most connections without a principal.
    fn largest_peer(&self) -> Option<PeerKey> {
        self.unidentified.iter().max_by_key(|(_, own)| own.len()).map(|(peer, _)| *peer)
    }

    fn forget(&mut self, peer: PeerKey, id: u64) {
        if let Some(own) = self.unidentified.get_mut(&peer) {
            own.remove(&id);
            if own.is_empty() {
                self.unidentified.remove(&peer);
            }
        }
    }
}

impl Connections {
    pub fn new(max: usize) -> Self {
        Self { max, table: Mutex::default(), principals: Arc::new(Shares::new(max)) }
    }

    fn lock_table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection. `None` if every connection belongs to a principal.
    pub fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let peer = PeerKey::from(peer);
        let mut table = self.lock_table();
        let own = table.unidentified.get(&peer).map_or(0, BTreeMap::len);
        let crowded = if own >= fair_share(self.max) {
            Some(peer)
        } else if table.open >= self.max {
            Some(table.largest_peer()?)
        } else {
            None
        };
        if let Some(crowded) = crowded {
            metrics::counter!(crate::metrics::EVICTED_CONNECTIONS).increment(1);
            if !table.evict_oldest(crowded) {
                return None;
            }
        }
        let (id, evicted) = (table.next_id, Arc::new(Notify::new()));
        table.next_id += 1;
        table.open += 1;
        table.unidentified.entry(peer).or_default().insert(id, Arc::clone(&evicted));
        drop(table);
        Some(ConnectionSlot(Arc::new(SlotState {
            connections: Arc::clone(self),
            peer,
            id,
            evicted,
            has_request: AtomicBool::new(false),
            principal: Mutex::default(),
        })))
    }
}

/// The place of one connection. The place is free when the last copy is dropped.
#[derive(Debug, Clone)]
pub struct ConnectionSlot(Arc<SlotState>);

#[derive(Debug)]
struct SlotState {
    connections: Arc<Connections>,
    peer: PeerKey,
    id: u64,
    evicted: Arc<Notify>,
    has_request: AtomicBool,
    principal: Mutex<Option<(PrincipalKey, SharePermit<PrincipalKey>)>>,
}

impl Drop for SlotState {
    fn drop(&mut self) {
        let mut table = self.connections.lock_table();
        table.open = table.open.saturating_sub(1);
        table.forget(self.peer, self.id);
    }
}

impl ConnectionSlot {
    /// Records that the head of a request has arrived.
    pub fn record_request(&self) {
        self.0.has_request.store(true, Ordering::Relaxed);
    }

    /// Counts the connection for a principal. Fails if the principal has its share of connections.
    pub fn identify(&self, principal: PrincipalKey, is_worker: bool) -> Result<(), ShareUsedUp> {
        let mut current = self.lock_principal();
        if current.as_ref().is_some_and(|(known, _)| *known == principal) {
            return Ok(());
        }
        let most = if is_worker { MAX_WORKER_CONNECTIONS } else { usize::MAX };
        let permit = self.0.connections.principals.acquire_up_to(principal, most)?;
        if current.replace((principal, permit)).is_none() {
            self.0.connections.lock_table().forget(self.0.peer, self.0.id);
        }
        Ok(())
    }

    fn lock_principal(&self) -> MutexGuard<'_, Option<(PrincipalKey, SharePermit<PrincipalKey>)>> {
        self.0.principal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the connection must close: it makes room for another one, or it is too old without a principal.
    pub async fn wait_until_closable(&self) {
        let aged = async {
            sleep(FIRST_REQUEST_TIMEOUT).await;
            if !self.0.has_request.load(Ordering::Relaxed) {
                return;
            }
            sleep(UNIDENTIFIED_LIFETIME.saturating_sub(FIRST_REQUEST_TIMEOUT)).await;
            if self.lock_principal().is_some() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.0.evicted.notified() => {}
            () = aged => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::UserId;
    use futures_util::FutureExt;

    const ATTACKER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn closes(slot: &ConnectionSlot) -> bool {
        slot.wait_until_closable().now_or_never().is_some()
    }

    #[tokio::test]
    async fn a_flood_of_one_peer_evicts_its_own_oldest_connections() {
        let connections = Arc::new(Connections::new(8));
        let client = connections.admit(CLIENT).unwrap();
        let flood: Vec<_> = (0..20).map(|_| connections.admit(ATTACKER).unwrap()).collect();
        assert!(!closes(&client));
        let open: Vec<usize> = (0..20).filter(|n| !closes(&flood[*n])).collect();
        assert_eq!(open, [18, 19], "a quarter, the newest ones");
    }

    #[tokio::test]
    async fn the_largest_peer_makes_room_and_principals_stay() {
        let connections = Arc::new(Connections::new(4));
        let user = PrincipalKey::User(UserId::new());
        let known = connections.admit(CLIENT).unwrap();
        known.identify(user, false).unwrap();
        let others: Vec<_> = (1..=3).map(|n| connections.admit(IpAddr::from([10, 0, 0, n])).unwrap()).collect();
        let more = connections.admit(CLIENT).unwrap();
        assert_eq!(others.iter().filter(|slot| closes(slot)).count(), 1);
        assert!(!closes(&known) && !closes(&more));
        assert_eq!(more.identify(user, false), Err(ShareUsedUp), "a quarter of four is one");
        drop((others, more, known));
        assert_eq!(connections.lock_table().open, 0);
        assert!(connections.lock_table().unidentified.is_empty());
    }

    #[test]
    fn connections_of_principals_are_never_evicted() {
        let connections = Arc::new(Connections::new(2));
        let held: Vec<_> = (0..2).map(|_| connections.admit(CLIENT).unwrap()).collect();
        for slot in &held {
            slot.identify(PrincipalKey::User(UserId::new()), false).unwrap();
        }
        assert!(connections.admit(ATTACKER).is_none());
    }

    #[test]
    fn a_host_with_many_ipv6_addresses_is_one_peer() {
        let key = |text: &str| PeerKey::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff::9"));
        assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
    }

    #[tokio::test(start_paused = true)]
    async fn silent_and_unauthenticated_connections_end() {
        let connections = Arc::new(Connections::new(100));
        let began = tokio::time::Instant::now();
        connections.admit(CLIENT).unwrap().wait_until_closable().await;
        assert_eq!(began.elapsed(), FIRST_REQUEST_TIMEOUT);
        let slot = connections.admit(CLIENT).unwrap();
        slot.record_request();
        let began = tokio::time::Instant::now();
        slot.wait_until_closable().await;
        assert_eq!(began.elapsed(), UNIDENTIFIED_LIFETIME);
        let slot = connections.admit(CLIENT).unwrap();
        slot.record_request();
        slot.identify(PrincipalKey::User(UserId::new()), false).unwrap();
        let patience = UNIDENTIFIED_LIFETIME * 10;
        assert!(tokio::time::timeout(patience, slot.wait_until_closable()).await.is_err());
    }
}
