//! Checks the system clock against a minimum and against the disk's clock.

use super::disk_check::create_scratch_dir;
use super::{Check, Report};
use crate::failure::Result;
use crate::render::time;
use std::path::Path;
use std::time::{Duration, SystemTime};

const CHECK: &str = "clock";
/// 2025-01-01, before the first version of Atoll.
const EARLIEST_PLAUSIBLE_TIME: Duration = Duration::from_secs(1_735_689_600);
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(5);

pub fn check_clock(dir: &Path, report: &mut Report<'_>) -> Result {
    report.add(examine_clock(dir))
}

fn examine_clock(dir: &Path) -> Check {
    let now = SystemTime::now();
    let time_text = time::format_time(time::now());
    if now.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|since| since < EARLIEST_PLAUSIBLE_TIME) {
        return Check::fail(
            CHECK,
            format!("the clock says {time_text}"),
            "Set the clock, for example with systemd-timesyncd or chrony.",
        );
    }
    let written = create_scratch_dir(dir).and_then(|scratch| std::fs::metadata(scratch.path())?.modified());
    let apart = written.ok().map(|at| at.duration_since(now).or_else(|_| now.duration_since(at)).unwrap_or_default());
    match apart {
        Some(apart) if apart > MAX_CLOCK_SKEW => Check::warn(
            CHECK,
            format!("the clock says {time_text}; the disk's clock differs by {}", time::format_duration(apart)),
            "Synchronise the clocks of this machine and of the file server with NTP.",
        ),
        _ => Check::ok(CHECK, time_text),
    }
}

/// The difference between this clock and the `Date` header of a server's response.
pub fn clock_skew(date: &str) -> Option<Duration> {
    let (_, date) = date.split_once(", ")?;
    let mut parts = date.split(' ');
    let (day, month, year, clock) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let month = MONTHS.find(month)? / 3 + 1;
    let there: atoll_core::time::Timestamp = format!("{year}-{month:02}-{day}T{clock}Z").parse().ok()?;
    let here = time::now();
    Some(here.elapsed_since(there).max(there.elapsed_since(here)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_an_http_date() {
        assert!(clock_skew("Sun, 06 Nov 1994 08:49:37 GMT").unwrap() > Duration::from_secs(86_400 * 365));
        assert!(clock_skew("nonsense").is_none() && clock_skew("Sun, 06 Foo 1994 08:49:37 GMT").is_none());
    }
}
