//! Which of the host's ids a sandbox gets. Rules only; [`crate::maps`] writes them into the kernel.

use serde::{Deserialize, Serialize};

use crate::place::{AGENT, Ids, Range};

/// How many ids a range has: those of an ordinary system, up to `nobody`.
pub(crate) const RANGE: u32 = 65_536;
/// The last ids are taken by "no id" and by what 16 bits can't hold.
const END: u32 = u32::MAX - RANGE;

/// How the ids inside become ids of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Map {
    pub ids: Ids,
    pub users: Vec<Line>,
    pub groups: Vec<Line>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

impl Map {
    /// A range of its own.
    pub fn own(range: Range) -> Self {
        let lines = vec![Line { inside: 0, outside: range.first, count: range.count }];
        Self { ids: Ids::Own, users: lines.clone(), groups: lines }
    }

    /// The same range for all.
    pub fn common(range: Range) -> Self {
        Self { ids: Ids::Common, ..Self::own(range) }
    }

    /// The range as a whole, as the map of a mount: what is stored under `stored` is seen under this one's ids.
    pub fn mapping_of(&self, stored: Range) -> Option<Self> {
        let own = self.range()?;
        let lines = vec![Line { inside: stored.first, outside: own.first, count: own.count.min(stored.count) }];
        Some(Self { ids: Ids::Own, users: lines.clone(), groups: lines })
    }

    /// An ordinary user as root inside, their sub-ids as everybody else.
    pub fn shared(user: u32, group: u32, users: Range, groups: Range) -> Self {
        let lines = |own, Range { first, count }| {
            vec![Line { inside: 0, outside: own, count: 1 }, Line { inside: 1, outside: first, count }]
        };
        Self { ids: Ids::Shared, users: lines(user, users), groups: lines(group, groups) }
    }

    /// An ordinary user as `agent`, and nobody else.
    pub fn single(user: u32, group: u32) -> Self {
        let lines = |own| vec![Line { inside: AGENT, outside: own, count: 1 }];
        Self { ids: Ids::Single, users: lines(user), groups: lines(group) }
    }

    pub fn has_root(&self) -> bool {
        self.user(0).is_some()
    }

    pub fn user(&self, inside: u32) -> Option<u32> {
        outside(&self.users, inside)
    }

    pub fn group(&self, inside: u32) -> Option<u32> {
        outside(&self.groups, inside)
    }

    /// The range that nobody else may have.
    pub fn range(&self) -> Option<Range> {
        match (self.ids, self.users.as_slice()) {
            (Ids::Own, [line]) => Some(Range { first: line.outside, count: line.count }),
            _ => None,
        }
    }
}

fn outside(lines: &[Line], inside: u32) -> Option<u32> {
    let line = lines.iter().find(|line| (line.inside..line.inside + line.count).contains(&inside))?;
    Some(line.outside + (inside - line.inside))
}

/// The first range from `base` on that overlaps with none of `taken` and lies in what this process may map.
pub(crate) fn choose(base: u32, taken: &[Range], mappable: &[Range]) -> Option<Range> {
    (0..)
        .map_while(|step: u32| base.checked_add(step.checked_mul(RANGE)?).filter(|first| *first <= END))
        .filter(|first| *first >= RANGE)
        .map(|first| Range { first, count: RANGE })
        .find(|range| {
            mappable.iter().any(|whole| contains(*whole, *range)) && !taken.iter().any(|other| overlap(*other, *range))
        })
}

fn overlap(one: Range, other: Range) -> bool {
    let end = |range: Range| u64::from(range.first) + u64::from(range.count);
    u64::from(one.first) < end(other) && u64::from(other.first) < end(one)
}

fn contains(whole: Range, part: Range) -> bool {
    let end = |range: Range| u64::from(range.first) + u64::from(range.count);
    whole.first <= part.first && end(part) <= end(whole)
}

/// The ids in `/etc/passwd` or `/etc/group`, whose third field they are.
pub(crate) fn named(text: &str) -> impl Iterator<Item = Range> {
    text.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok()).map(|first| Range { first, count: 1 })
}

/// The lines of `/etc/subuid` or `/etc/subgid`: to whom, which ids.
pub(crate) fn delegated(text: &str) -> impl Iterator<Item = (&str, Range)> {
    text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let (owner, first, count) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (count > 0).then_some((owner, Range { first, count }))
    })
}

/// The first sub-ids of a user, given by name or by number, that reach past `agent`.
pub(crate) fn delegated_to(text: &str, name: Option<&str>, id: u32) -> Option<Range> {
    let number = id.to_string();
    delegated(text)
        .filter(|(owner, range)| (Some(*owner) == name || *owner == number) && range.count > AGENT)
        .map(|(_, range)| Range { first: range.first, count: range.count.min(RANGE - 1) })
        .next()
}

/// The ids that a process may map further, by its own `/proc/self/uid_map`: the middle column is of the parent
/// namespace, the first is what counts here.
pub(crate) fn mappable(text: &str) -> Vec<Range> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let first = fields.next()?.parse().ok()?;
            let count = fields.nth(1)?.parse().ok()?;
            Some(Range { first, count })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVERYTHING: &[Range] = &[Range { first: 0, count: u32::MAX }];

    #[test]
    fn skips_the_ids_of_others() {
        let base = 600_000_000;
        let range = |step| Range { first: base + step * RANGE, count: RANGE };
        assert_eq!(choose(base, &[], EVERYTHING), Some(range(0)));
        assert_eq!(choose(base, &[range(0), range(2)], EVERYTHING), Some(range(1)));
        let passwd = format!("root:x:0:0::/:/bin/sh\nodd:x:{}:1::/:/bin/sh\nbroken\n", base + 7);
        let taken: Vec<_> = named(&passwd).collect();
        assert_eq!(taken.len(), 2);
        assert_eq!(choose(base, &taken, EVERYTHING), Some(range(1)));
        let subuid = format!("someone:{}:70000\n", base - 1);
        let taken: Vec<_> = delegated(&subuid).map(|(_, range)| range).collect();
        assert_eq!(choose(base, &taken, EVERYTHING), Some(range(2)));
    }

    #[test]
    fn never_takes_the_hosts_own_ids_and_stays_in_what_it_may_map() {
        assert_eq!(choose(0, &[], EVERYTHING), Some(Range { first: RANGE, count: RANGE }));
        assert_eq!(choose(100_000, &[], &[Range { first: 0, count: 65_536 }]), None);
        assert_eq!(choose(u32::MAX - 10, &[], EVERYTHING), None);
        assert_eq!(mappable("         0     100000      65536\n"), [Range { first: 0, count: 65_536 }]);
    }

    #[test]
    fn finds_a_users_sub_ids_by_name_or_number() {
        let text = "a:100000:65536\nb:200000:100\nb:300000:70000\n1002:400000:65536\n";
        assert_eq!(delegated_to(text, Some("a"), 1), Some(Range { first: 100_000, count: RANGE - 1 }));
        assert_eq!(delegated_to(text, Some("b"), 1), Some(Range { first: 300_000, count: RANGE - 1 }));
        assert_eq!(delegated_to(text, None, 1002), Some(Range { first: 400_000, count: RANGE - 1 }));
        assert_eq!(delegated_to(text, Some("c"), 1), None);
    }

    #[test]
    fn maps_ids_to_the_host() {
        let map = Map::own(Range { first: 600_000_000, count: RANGE });
        assert_eq!(map.user(AGENT), Some(600_001_000));
        assert_eq!(map.user(RANGE), None);
        let range = Range { first: 100_000, count: RANGE - 1 };
        let map = Map::shared(1001, 1001, range, range);
        assert_eq!((map.user(0), map.user(AGENT)), (Some(1001), Some(100_999)));
        assert!(map.has_root() && map.range().is_none());
        let map = Map::single(1001, 1002);
        assert_eq!((map.user(0), map.user(AGENT), map.group(AGENT)), (None, Some(1001), Some(1002)));
    }

    proptest! {
        #[test]
        fn a_chosen_range_overlaps_with_nothing(base in 0..u32::MAX, taken in prop::collection::vec((0..u32::MAX, 1..200_000_u32), 0..40)) {
            let taken: Vec<_> = taken.into_iter().map(|(first, count)| Range { first, count }).collect();
            if let Some(range) = choose(base, &taken, EVERYTHING) {
                prop_assert!(range.first >= RANGE && range.first >= base);
                prop_assert!(taken.iter().all(|other| !overlap(*other, range)));
                prop_assert!(range.first.checked_add(range.count).is_some());
            }
        }
    }
}
