//! What HTTP says of a part of a file, and of its version.

use atoll_core::provider::files::FileEntry;
use atoll_core::time::Timestamp;

/// The part that a `Range` header asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    From {
        offset: u64,
        length: Option<u64>,
    },
    /// So many bytes from the end.
    Last(u64),
}

/// One range of bytes. Anything else is as if nothing was said, as HTTP has it.
pub(super) fn wanted(header: Option<&str>) -> Option<Wanted> {
    let (first, last) = header?.trim().strip_prefix("bytes=")?.trim().split_once('-')?;
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
    match (first, last) {
        ("", last) => number(last).map(Wanted::Last),
        (first, "") => Some(Wanted::From { offset: number(first)?, length: None }),
        (first, last) => {
            let (offset, last) = (number(first)?, number(last)?);
            let length = last.checked_sub(offset)?.saturating_add(1);
            Some(Wanted::From { offset, length: Some(length) })
        }
    }
}

/// Where the part begins, and how long it is; nothing if no byte of it is there.
pub(super) fn part(offset: u64, length: Option<u64>, size: u64) -> Option<(u64, u64)> {
    let rest = size.checked_sub(offset).filter(|rest| *rest > 0)?;
    Some((offset, length.map_or(rest, |length| length.min(rest)))).filter(|(_, length)| *length > 0)
}

/// Another one whenever the content is another one, as far as its file system tells.
pub(super) fn etag(entry: &FileEntry) -> String {
    format!("\"{:x}-{:x}-{:x}\"", entry.inode, entry.size, entry.modified)
}

/// Whether one of the tags of an `If-None-Match` header is this one.
pub(super) fn is_among(header: &str, tag: &str) -> bool {
    header.split(',').map(str::trim).any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

/// `Sat, 31 Jan 2026 12:00:00 GMT`.
pub(super) fn http_date(nanoseconds: i64) -> Option<String> {
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
    fn ranges_are_read_as_http_has_them() {
        let from = |offset, length| Some(Wanted::From { offset, length });
        for (header, expected) in [
            ("bytes=0-3", from(0, Some(4))),
            ("bytes=5-", from(5, None)),
            ("bytes=-7", Some(Wanted::Last(7))),
            ("bytes=3-3", from(3, Some(1))),
            ("bytes=4-3", None),
            ("bytes=-", None),
            ("bytes=0-1,3-4", None),
            ("lines=0-1", None),
            ("bytes=+1-2", None),
            ("bytes=99999999999999999999-", None),
        ] {
            assert_eq!(wanted(Some(header)), expected, "{header}");
        }
        assert_eq!(wanted(None), None);
        assert_eq!(wanted(Some("bytes=0-18446744073709551615")), from(0, Some(u64::MAX)));
    }

    #[test]
    fn a_part_is_within_the_file() {
        assert_eq!(part(0, Some(4), 10), Some((0, 4)));
        assert_eq!(part(8, Some(4), 10), Some((8, 2)));
        assert_eq!(part(10, None, 10), None);
        assert_eq!(part(0, None, 0), None);
    }

    #[test]
    fn dates_are_written_as_http_has_them() {
        assert_eq!(http_date(784_111_777_000_000_000).unwrap(), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(0).unwrap(), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(-1_000_000_000).unwrap(), "Wed, 31 Dec 1969 23:59:59 GMT");
    }

    #[test]
    fn a_tag_is_found_among_others() {
        assert!(is_among("\"a\", W/\"b\"", "\"b\"") && is_among("*", "\"x\"") && !is_among("\"ab\"", "\"a\""));
    }

    proptest! {
        #[test]
        fn no_header_makes_it_fall(header in ".{0,40}", size in any::<u64>()) {
            if let Some(Wanted::From { offset, length }) = wanted(Some(&header))
                && let Some((start, length)) = part(offset, length, size)
            {
                prop_assert!(length > 0 && start.checked_add(length).is_some_and(|end| end <= size));
            }
        }
    }
}
