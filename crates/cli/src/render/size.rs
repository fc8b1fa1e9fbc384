//! Amounts of bytes for people.

const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];

pub fn bytes(count: u64) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    // Far inside what f64 holds well enough for three digits.
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

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn the_unit_fits_the_amount() {
        let said = [0, 1023, 1024, 1_500_000, 5 << 30, u64::MAX].map(bytes);
        assert_eq!(said, ["0 B", "1023 B", "1.0 KiB", "1.4 MiB", "5.0 GiB", "16777216.0 TiB"]);
    }
}
