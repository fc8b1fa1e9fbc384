//! The quota of a sandbox's log: the bytes of its events and blobs.
//!
//! Near the end of the quota, the server slows the worker down. Beyond it, the server stores no more events of the
//! worker: it records that once, counts the rest, and still applies what the events say.

use std::time::Duration;

/// Bytes of a stored event besides its data.
const EVENT_OVERHEAD_BYTES: u64 = 256;
/// Bytes of a stored blob besides its content.
const BLOB_OVERHEAD_BYTES: u64 = 4096;
/// The server slows down a worker that fills the last quarter of the quota faster than in this time.
const LAST_QUARTER_TIME: Duration = Duration::from_secs(600);
/// Longest delay of one request; the worker gives up a request after 30 s.
pub const MAX_DELAY: Duration = Duration::from_secs(20);

/// The bytes that an event with this data counts with.
pub const fn event_size(data: &str) -> u64 {
    data.len() as u64 + EVENT_OVERHEAD_BYTES
}

/// The bytes that a blob counts with.
pub const fn blob_size(content: u64) -> u64 {
    content.saturating_add(BLOB_OVERHEAD_BYTES)
}

/// The used bytes of a log and its quota. A quota of `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogUsage {
    pub used: u64,
    pub quota: Option<u64>,
}

impl LogUsage {
    /// True if this many further bytes fit.
    pub fn admits(self, bytes: u64) -> bool {
        self.quota.is_none_or(|quota| self.used.saturating_add(bytes) <= quota)
    }

    /// The delay of a request with this many bytes.
    pub fn delay(self, bytes: u64) -> Duration {
        let Some(quota) = self.quota else { return Duration::ZERO };
        let last_quarter = quota / 4;
        if self.used < quota - last_quarter || last_quarter == 0 {
            return Duration::ZERO;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        (LAST_QUARTER_TIME * bytes.min(1 << 28) / u32::try_from(last_quarter).unwrap_or(u32::MAX)).min(MAX_DELAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(used: u64) -> LogUsage {
        LogUsage { used, quota: Some(4_000) }
    }

    #[test]
    fn a_log_admits_up_to_its_quota() {
        assert!(usage(3_000).admits(1_000) && !usage(3_000).admits(1_001) && !usage(9_000).admits(1));
        assert!(LogUsage { used: u64::MAX, quota: None }.admits(u64::MAX));
    }

    #[test]
    fn requests_wait_in_the_last_quarter() {
        assert_eq!(usage(2_999).delay(1_000), Duration::ZERO);
        assert_eq!(usage(3_000).delay(10), Duration::from_secs(6));
        assert_eq!(usage(3_000).delay(1_000), MAX_DELAY);
        assert_eq!(usage(5_000).delay(u64::MAX), MAX_DELAY, "a full log also waits");
        assert_eq!(LogUsage { used: u64::MAX, quota: None }.delay(1), Duration::ZERO);
        assert_eq!(LogUsage { used: 5, quota: Some(2) }.delay(1), Duration::ZERO);
    }

    #[test]
    fn small_events_and_blobs_count_with_their_rows() {
        assert_eq!((event_size("{}"), blob_size(0)), (258, 4096));
    }
}
