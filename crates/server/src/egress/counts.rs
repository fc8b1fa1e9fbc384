//! What went where. The table is bounded: whoever talks to more hosts has the rest under one line.

use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hosts of one sandbox that have a line of their own.
const MOST: usize = 512;
const REST: (&str, u16) = ("(others)", 0);

#[derive(Debug, Default)]
pub struct Counts {
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub connections: AtomicU64,
    pub refused: AtomicU64,
}

impl Counts {
    pub fn add(&self, sent: usize, received: usize) {
        self.sent.fetch_add(sent as u64, Ordering::Relaxed);
        self.received.fetch_add(received as u64, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed).saturating_add(self.received.load(Ordering::Relaxed))
    }
}

/// One line of what went where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Traffic {
    /// `(others)` for all beyond the first 512.
    pub host: String,
    #[schema(maximum = 65535)]
    pub port: u16,
    /// Bytes that left the sandbox.
    pub sent: u64,
    /// Bytes that came in.
    pub received: u64,
    pub connections: u64,
    pub refused: u64,
}

#[derive(Debug, Default)]
pub struct Table {
    hosts: HashMap<(String, u16), Arc<Counts>>,
    rest: Arc<Counts>,
    pub total: Arc<Counts>,
}

impl Table {
    pub fn of(&mut self, host: &str, port: u16) -> Arc<Counts> {
        let key = (host.to_owned(), port);
        if self.hosts.len() >= MOST && !self.hosts.contains_key(&key) {
            return Arc::clone(&self.rest);
        }
        Arc::clone(self.hosts.entry(key).or_default())
    }

    /// Busiest first.
    pub fn traffic(&self) -> Vec<Traffic> {
        let line = |(host, port): (&str, u16), counts: &Counts| Traffic {
            host: host.to_owned(),
            port,
            sent: counts.sent.load(Ordering::Relaxed),
            received: counts.received.load(Ordering::Relaxed),
            connections: counts.connections.load(Ordering::Relaxed),
            refused: counts.refused.load(Ordering::Relaxed),
        };
        let mut lines: Vec<Traffic> =
            self.hosts.iter().map(|((host, port), counts)| line((host, *port), counts)).collect();
        let rest = line(REST, &self.rest);
        lines.extend(Some(rest).filter(|rest| rest.connections + rest.refused > 0));
        let order = |it: &Traffic| std::cmp::Reverse((it.sent.saturating_add(it.received), it.connections));
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
    fn the_table_is_bounded_and_loses_no_byte() {
        let mut table = Table::default();
        for index in 0..2 * MOST {
            let counts = table.of(&format!("{index}.example"), 443);
            counts.add(1, 2);
            counts.connections.fetch_add(1, Ordering::Relaxed);
        }
        let lines = table.traffic();
        assert_eq!(lines.len(), MOST + 1);
        assert_eq!(lines[0].host, REST.0, "together they are the busiest");
        assert_eq!(lines.iter().map(|line| line.received).sum::<u64>(), 4 * MOST as u64);
    }
}
