//! Sizes for people, in one set of units.

const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];

/// Formats a size with one decimal in binary units, such as `1.5 GiB`.
#[allow(clippy::cast_precision_loss, reason = "an f64 is precise enough for one decimal")]
pub fn format_bytes(count: u64) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    let mut amount = count as f64;
    let mut unit = "B";
    for next in UNITS {
        if amount < 1024.0 {
            break;
        }
        amount /= 1024.0;
        unit = next;
    }
    format!("{amount:.1} {unit}")
}

/// Converts a configured number of GiB to bytes; a negative one is 0.
pub fn gigabytes_to_bytes(gigabytes: f64) -> u64 {
    (gigabytes * f64::from(1 << 30)) as u64
}

#[cfg(test)]
mod tests {
    use super::format_bytes;

    #[test]
    fn chooses_a_fitting_unit() {
        let formatted = [0, 1023, 1024, 1_500_000, 5 << 30, u64::MAX].map(format_bytes);
        assert_eq!(formatted, ["0 B", "1023 B", "1.0 KiB", "1.4 MiB", "5.0 GiB", "16777216.0 TiB"]);
    }
}
