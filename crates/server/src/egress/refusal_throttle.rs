//! Throttles the reports of repeated refusals to one per minute, with a count.

use std::collections::HashMap;
use std::time::{Duration, Instant};

const THROTTLE_INTERVAL: Duration = Duration::from_secs(60);
/// Distinct refusals per sandbox and minute.
const MAX_TRACKED_KEYS: usize = 60;

type ThrottleKey = (String, u16, &'static str);

struct Reported {
    at: Instant,
    suppressed: u64,
    total: u64,
}

/// A host that was refused, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedHost {
    pub host: String,
    pub port: u16,
    /// The code of the refusal.
    pub reason: &'static str,
    pub count: u64,
}

impl RefusedHost {
    /// The host, with its port unless it is the usual one.
    pub fn place(&self) -> String {
        match self.port {
            0 | 80 | 443 => self.host.clone(),
            port => format!("{}:{port}", self.host),
        }
    }
}

#[derive(Default)]
pub struct RefusalThrottle(HashMap<ThrottleKey, Reported>);

impl RefusalThrottle {
    /// Counts an occurrence. Returns the number since the last report, or `None` while it is throttled.
    pub fn count_occurrence(&mut self, key: ThrottleKey, now: Instant) -> Option<u64> {
        let is_expired = |reported: &Reported| now.saturating_duration_since(reported.at) >= THROTTLE_INTERVAL;
        if let Some(reported) = self.0.get_mut(&key) {
            reported.suppressed += 1;
            reported.total += 1;
            if !is_expired(reported) {
                return None;
            }
            let since = reported.suppressed;
            *reported = Reported { at: now, suppressed: 0, ..*reported };
            return Some(since);
        }
        if self.0.len() >= MAX_TRACKED_KEYS {
            self.0.retain(|_, reported| !is_expired(reported));
        }
        if self.0.len() >= MAX_TRACKED_KEYS {
            return None;
        }
        self.0.insert(key, Reported { at: now, suppressed: 0, total: 1 });
        Some(1)
    }

    /// The tracked refusals, most frequent first.
    pub fn list_refused(&self) -> Vec<RefusedHost> {
        let entries = self.0.iter().map(|((host, port, reason), reported)| RefusedHost {
            host: host.clone(),
            port: *port,
            reason,
            count: reported.total,
        });
        let mut hosts: Vec<RefusedHost> = entries.collect();
        hosts.sort_by(|one, two| two.count.cmp(&one.count).then_with(|| one.host.cmp(&two.host)));
        hosts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(host: &str) -> ThrottleKey {
        (host.to_owned(), 443, "policy")
    }

    #[test]
    fn reports_the_first_and_counts_the_rest() {
        let (mut quiet, start) = (RefusalThrottle::default(), Instant::now());
        assert_eq!(quiet.count_occurrence(key("a"), start), Some(1));
        for second in 1..60 {
            assert_eq!(quiet.count_occurrence(key("a"), start + Duration::from_secs(second)), None);
        }
        assert_eq!(quiet.count_occurrence(key("b"), start), Some(1));
        assert_eq!(quiet.count_occurrence(key("a"), start + THROTTLE_INTERVAL), Some(60));
        assert_eq!(quiet.count_occurrence(key("a"), start + THROTTLE_INTERVAL), None);
        let refused = quiet.list_refused();
        assert_eq!((refused[0].place().as_str(), refused[0].count, refused[1].count), ("a", 62, 1));
    }

    #[test]
    fn a_flood_of_hosts_is_bounded() {
        let (mut quiet, start) = (RefusalThrottle::default(), Instant::now());
        let report_count =
            (0..10_000).filter(|index| quiet.count_occurrence(key(&index.to_string()), start).is_some()).count();
        assert_eq!(report_count, MAX_TRACKED_KEYS);
        assert_eq!(quiet.count_occurrence(key("later"), start + THROTTLE_INTERVAL), Some(1));
        assert!(quiet.0.len() <= MAX_TRACKED_KEYS);
    }
}
