//! Formats times and durations for people.

use atoll_core::time::{Clock, SystemClock, Timestamp};
use std::time::Duration;

pub fn now() -> Timestamp {
    SystemClock::start().now()
}

/// Formats to the millisecond: `2026-01-31T12:00:00.123Z`.
pub fn format_time(time: Timestamp) -> String {
    let full = time.to_string();
    let millis = full.strip_suffix('Z').and_then(|text| text.get(..text.len() - 3));
    millis.map_or_else(|| full.clone(), |text| format!("{text}Z"))
}

/// Formats the time since then: `5s`, `3m`, `2h`, `4d`.
pub fn format_age(then: Timestamp, now: Timestamp) -> String {
    format_rough(now.elapsed_since(then))
}

pub fn format_rough(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats the two largest units, or tenths of a second below ten seconds.
pub fn format_duration(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", span.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_times() {
        let s = |seconds| Duration::from_secs(seconds);
        assert_eq!([s(0), s(59), s(3599), s(7200), s(200_000)].map(format_rough), ["0s", "59s", "59m", "2h", "2d"]);
        assert_eq!(
            [s(1), s(12), s(61), s(3660), s(90_000)].map(format_duration),
            ["1.0s", "12s", "1m 1s", "1h 1m", "1d 1h"]
        );
        assert_eq!(format_time("2025-11-15T09:46:40.123456Z".parse().unwrap()), "2025-11-15T09:46:40.123Z");
    }
}
