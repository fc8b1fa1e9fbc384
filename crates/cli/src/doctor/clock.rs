//! The clock: plausible, and the same for the disk.

use super::disk::Scratch;
use super::{Check, Report};
use crate::failure::Result;
use crate::render::time;
use std::path::Path;
use std::time::{Duration, SystemTime};

const CHECK: &str = "clock";
/// No Atoll is older than this: 2025-01-01.
const EARLIEST: Duration = Duration::from_secs(1_735_689_600);
const APART: Duration = Duration::from_secs(5);

pub fn check(dir: &Path, report: &mut Report<'_>) -> Result {
    report.tell(examine(dir))
}

fn examine(dir: &Path) -> Check {
    let now = SystemTime::now();
    let shown = time::exact(&time::now().to_string());
    if now.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|since| since < EARLIEST) {
        return Check::fail(
            CHECK,
            format!("it says {shown}"),
            "Set the clock, for example with systemd-timesyncd or chrony.",
        );
    }
    let written = Scratch::new(dir).and_then(|scratch| std::fs::metadata(scratch.path())?.modified());
    let apart = written.ok().map(|at| at.duration_since(now).or_else(|_| now.duration_since(at)).unwrap_or_default());
    match apart {
        Some(apart) if apart > APART => Check::warn(
            CHECK,
            format!("it says {shown}, and the disk's differs by {}", time::span(apart)),
            "The data directory is on another machine: set both clocks by NTP.",
        ),
        _ => Check::ok(CHECK, shown),
    }
}

/// A server elsewhere says in every answer what time it has.
pub fn apart(date: &str) -> Option<Duration> {
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
    fn a_date_of_http_is_read() {
        assert!(apart("Sun, 06 Nov 1994 08:49:37 GMT").unwrap() > Duration::from_secs(86_400 * 365));
        assert!(apart("nonsense").is_none() && apart("Sun, 06 Foo 1994 08:49:37 GMT").is_none());
    }
}
