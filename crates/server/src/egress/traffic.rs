//! Traffic counts per host. The table is bounded; further hosts share one line.

use atoll_api::HostTraffic;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hosts of one sandbox with their own line.
const MAX_HOSTS: usize = 512;
const OTHER_HOSTS: (&str, u16) = ("(others)", 0);

#[derive(Debug, Default)]
pub struct TrafficCounts {
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub connections: AtomicU64,
    pub refused: AtomicU64,
}

impl TrafficCounts {
    pub fn add(&self, sent: usize, received: usize) {
        self.sent.fetch_add(sent as u64, Ordering::Relaxed);
        self.received.fetch_add(received as u64, Ordering::Relaxed);
    }

    pub fn total_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed).saturating_add(self.received.load(Ordering::Relaxed))
    }
}

#[derive(Debug, Default)]
pub struct TrafficTable {
    hosts: HashMap<(String, u16), Arc<TrafficCounts>>,
    rest: Arc<TrafficCounts>,
    pub total: Arc<TrafficCounts>,
}

impl TrafficTable {
    pub fn host_counts(&mut self, host: &str, port: u16) -> Arc<TrafficCounts> {
        let key = (host.to_owned(), port);
        if self.hosts.len() >= MAX_HOSTS && !self.hosts.contains_key(&key) {
            return Arc::clone(&self.rest);
        }
        Arc::clone(self.hosts.entry(key).or_default())
    }

    /// Busiest first.
    pub fn list_hosts(&self) -> Vec<HostTraffic> {
        let line = |(host, port): (&str, u16), counts: &TrafficCounts| HostTraffic {
            host: host.to_owned(),
            port,
            sent: counts.sent.load(Ordering::Relaxed),
            received: counts.received.load(Ordering::Relaxed),
            connections: counts.connections.load(Ordering::Relaxed),
            refused: counts.refused.load(Ordering::Relaxed),
        };
        let mut lines: Vec<HostTraffic> =
            self.hosts.iter().map(|((host, port), counts)| line((host, *port), counts)).collect();
        let rest = line(OTHER_HOSTS, &self.rest);
        lines.extend(Some(rest).filter(|rest| rest.connections + rest.refused > 0));
        let order = |it: &HostTraffic| std::cmp::Reverse((it.sent.saturating_add(it.received), it.connections));
        lines.sort_by(|one, two| {
            order(one).cmp(&order(two)).then_with(|| (&one.host, one.port).cmp(&(&two.host, two.port)))
        });
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_bounded_and_counts_every_byte() {
        let mut table = TrafficTable::default();
        for index in 0..2 * MAX_HOSTS {
            let counts = table.host_counts(&format!("{index}.example"), 443);
            counts.add(1, 2);
            counts.connections.fetch_add(1, Ordering::Relaxed);
        }
        let lines = table.list_hosts();
        assert_eq!(lines.len(), MAX_HOSTS + 1);
        assert_eq!(lines[0].host, OTHER_HOSTS.0, "together they are the busiest");
        assert_eq!(lines.iter().map(|line| line.received).sum::<u64>(), 4 * MAX_HOSTS as u64);
    }
}
