//! Durations with a unit: `500ms`, `30s`, `10m`, `24h`, `7d`.

use std::time::Duration;

const UNITS: &[(&str, u64)] = &[("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// 100 years. A longer time is a mistake, and dates computed with it would overflow.
const MAX_MILLIS: u64 = 100 * 365 * 86_400_000;

pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let total = number.parse::<u64>().ok()?.checked_mul(*millis)?;
    (total <= MAX_MILLIS).then(|| Duration::from_millis(total))
}

/// Formats in the largest unit without a remainder; days only from two on, since `24h` reads better than `1d`.
pub(crate) fn format_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_owned();
    }
    UNITS
        .iter()
        .rev()
        .find(|(name, size)| millis.is_multiple_of(*size) && (*name != "d" || millis >= 2 * size))
        .map(|(name, size)| format!("{}{name}", millis / size))
        .unwrap_or_else(|| format!("{millis}ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_what_it_parses() {
        for text in ["0s", "500ms", "30s", "90s", "10m", "1h", "24h", "25h", "7d"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
        assert_eq!(format_duration(parse_duration("120s").unwrap()), "2m");
        for bad in ["", "30", "s", "-1s", "+1s", "1.5h", "30 s", "1w", "99999999999999999999s", "36501d", "1h30m"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
