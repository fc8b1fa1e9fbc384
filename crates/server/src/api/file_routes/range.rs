//! HTTP ranges, entity tags and dates.

use crate::app::files::RequestedRange;
use atoll_core::time::Timestamp;

/// Parses one range of bytes. HTTP requires that a server ignores other forms.
pub(super) fn parse_range(header: Option<&str>) -> Option<RequestedRange> {
    let (first, last) = header?.trim().strip_prefix("bytes=")?.trim().split_once('-')?;
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
    match (first, last) {
        ("", last) => number(last).map(RequestedRange::Last),
        (first, "") => Some(RequestedRange::From { offset: number(first)?, length: None }),
        (first, last) => {
            let (offset, last) = (number(first)?, number(last)?);
            let length = last.checked_sub(offset)?.saturating_add(1);
            Some(RequestedRange::From { offset, length: Some(length) })
        }
    }
}

/// Fits a range into the file: its offset and length, or `None` if it is outside.
pub(super) fn fit_range(offset: u64, length: Option<u64>, size: u64) -> Option<(u64, u64)> {
    let rest = size.checked_sub(offset).filter(|rest| *rest > 0)?;
    Some((offset, length.map_or(rest, |length| length.min(rest)))).filter(|(_, length)| *length > 0)
}

/// True if an `If-None-Match` header contains the tag.
pub(super) fn etag_matches(header: &str, tag: &str) -> bool {
    header.split(',').map(str::trim).any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

/// Formats a date as `Sat, 31 Jan 2026 12:00:00 GMT`.
pub(super) fn format_http_date(nanoseconds: i64) -> Option<String> {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let written = Timestamp::from_micros(nanoseconds.div_euclid(1000)).to_string();
    let (date, time) = written.split_once('T')?;
    let mut date = date.split('-');
    let (year, month, day) = (date.next()?, date.next()?.parse::<usize>().ok()?, date.next()?);
    let since = usize::try_from(nanoseconds.div_euclid(86_400_000_000_000).rem_euclid(7)).ok()?;
    Some(format!("{}, {day} {} {year} {} GMT", DAYS.get(since)?, MONTHS.get(month.checked_sub(1)?)?, time.get(..8)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_ranges() {
        let from = |offset, length| Some(RequestedRange::From { offset, length });
        for (header, expected) in [
            ("bytes=0-3", from(0, Some(4))),
            ("bytes=5-", from(5, None)),
            ("bytes=-7", Some(RequestedRange::Last(7))),
            ("bytes=3-3", from(3, Some(1))),
            ("bytes=4-3", None),
            ("bytes=-", None),
            ("bytes=0-1,3-4", None),
            ("lines=0-1", None),
            ("bytes=+1-2", None),
            ("bytes=99999999999999999999-", None),
        ] {
            assert_eq!(parse_range(Some(header)), expected, "{header}");
        }
        assert_eq!(parse_range(None), None);
        assert_eq!(parse_range(Some("bytes=0-18446744073709551615")), from(0, Some(u64::MAX)));
    }

    #[test]
    fn fits_ranges_into_the_file() {
        assert_eq!(fit_range(0, Some(4), 10), Some((0, 4)));
        assert_eq!(fit_range(8, Some(4), 10), Some((8, 2)));
        assert_eq!(fit_range(10, None, 10), None);
        assert_eq!(fit_range(0, None, 0), None);
    }

    #[test]
    fn formats_http_dates() {
        assert_eq!(format_http_date(784_111_777_000_000_000).unwrap(), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(format_http_date(0).unwrap(), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(format_http_date(-1_000_000_000).unwrap(), "Wed, 31 Dec 1969 23:59:59 GMT");
    }

    #[test]
    fn matches_one_of_several_tags() {
        assert!(
            etag_matches("\"a\", W/\"b\"", "\"b\"") && etag_matches("*", "\"x\"") && !etag_matches("\"ab\"", "\"a\"")
        );
    }

    proptest! {
        #[test]
        fn arbitrary_headers_never_panic(header in ".{0,40}", size in any::<u64>()) {
            if let Some(RequestedRange::From { offset, length }) = parse_range(Some(&header))
                && let Some((start, length)) = fit_range(offset, length, size)
            {
                prop_assert!(length > 0 && start.checked_add(length).is_some_and(|end| end <= size));
            }
        }
    }
}
