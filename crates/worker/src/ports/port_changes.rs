//! Which ports opened and closed from scan to scan.

use super::listening::ListeningPorts;
use std::collections::BTreeSet;

/// Open ports that the worker reports at the same time.
const MAX_OPEN_PORTS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct PortChanges {
    /// Found by the last scan for the first time.
    new: BTreeSet<u16>,
    open: BTreeSet<u16>,
    ignored: BTreeSet<u16>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PortChange {
    /// With the inodes of the listening sockets.
    pub(super) opened: Vec<(u16, Vec<u64>)>,
    pub(super) closed: Vec<u16>,
}

impl PortChanges {
    pub(super) fn apply_scan(&mut self, found: &ListeningPorts) -> PortChange {
        self.ignored.retain(|port| found.contains_key(port));
        let closed: Vec<u16> = self.open.iter().copied().filter(|port| !found.contains_key(port)).collect();
        self.open.retain(|port| found.contains_key(port));
        let mut opened = Vec::new();
        let mut new = BTreeSet::new();
        for (port, inodes) in found {
            if self.open.contains(port) || self.ignored.contains(port) {
                continue;
            }
            if self.new.contains(port) && self.open.len() < MAX_OPEN_PORTS {
                self.open.insert(*port);
                opened.push((*port, inodes.clone()));
            } else {
                new.insert(*port);
            }
        }
        self.new = new;
        PortChange { opened, closed }
    }

    /// Does not report this port, nor that it closes.
    pub(super) fn ignore_port(&mut self, port: u16) {
        self.open.remove(&port);
        self.ignored.insert(port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(ports: impl IntoIterator<Item = u16>) -> ListeningPorts {
        ports.into_iter().map(|port| (port, vec![u64::from(port)])).collect()
    }

    #[test]
    fn reports_a_port_after_two_scans_and_its_end_at_once() {
        let mut changes = PortChanges::default();
        assert_eq!(changes.apply_scan(&scan([80, 81])), PortChange::default());
        assert_eq!(changes.apply_scan(&scan([80])), PortChange { opened: vec![(80, vec![80])], closed: vec![] });
        assert_eq!(changes.apply_scan(&scan([80, 81])), PortChange::default(), "81 was closed in between");
        assert_eq!(changes.apply_scan(&scan([81])), PortChange { opened: vec![(81, vec![81])], closed: vec![80] });
    }

    #[test]
    fn an_ignored_port_is_not_reported_until_it_opens_again() {
        let mut changes = PortChanges::default();
        changes.apply_scan(&scan([80]));
        changes.apply_scan(&scan([80]));
        changes.ignore_port(80);
        assert_eq!(changes.apply_scan(&scan([80])), PortChange::default());
        assert_eq!(changes.apply_scan(&scan([])), PortChange::default());
        changes.apply_scan(&scan([80]));
        assert_eq!(changes.apply_scan(&scan([80])).opened.len(), 1);
    }

    #[test]
    fn the_number_of_open_ports_is_bounded() {
        let mut changes = PortChanges::default();
        changes.apply_scan(&scan(1..1000));
        assert_eq!(changes.apply_scan(&scan(1..1000)).opened.len(), MAX_OPEN_PORTS);
        assert_eq!(changes.apply_scan(&scan(500..1000)).closed.len(), MAX_OPEN_PORTS);
    }
}
