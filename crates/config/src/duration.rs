//! Times as people write them: `500ms`, `30s`, `10m`, `24h`, `7d`.

use std::time::Duration;

const UNITS: &[(&str, u64)] = &[("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A hundred years: more is a slip, and sums with it would leave the calendar.
const MOST_MILLIS: u64 = 100 * 365 * 86_400_000;

pub(crate) fn parse(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let total = number.parse::<u64>().ok()?.checked_mul(*millis)?;
    (total <= MOST_MILLIS).then(|| Duration::from_millis(total))
}

/// In the largest unit that leaves no rest; days only from two on, since `24h` reads better than `1d`.
pub(crate) fn show(duration: Duration) -> String {
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
    fn what_is_written_comes_back() {
        for text in ["0s", "500ms", "30s", "90s", "10m", "1h", "24h", "25h", "7d"] {
            assert_eq!(show(parse(text).unwrap()), text);
        }
        assert_eq!(show(parse("120s").unwrap()), "2m");
        for bad in ["", "30", "s", "-1s", "+1s", "1.5h", "30 s", "1w", "99999999999999999999s", "36501d", "1h30m"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
