//! Rules for choosing a sandbox's ids on the host. [`crate::id_maps`] writes them into the kernel.

use serde::{Deserialize, Serialize};

use crate::sandbox::{AGENT_UID, IdMapKind, IdRange};

/// Ids per range: 16 bits, as on an ordinary system.
pub(crate) const RANGE_SIZE: u32 = 65_536;
/// The last ids are reserved: "no id" and the 16-bit overflow id.
const LAST_RANGE_START: u32 = u32::MAX - RANGE_SIZE;

/// Maps ids inside a sandbox to ids of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IdMap {
    pub ids: IdMapKind,
    pub users: Vec<IdMapLine>,
    pub groups: Vec<IdMapLine>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IdMapLine {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

impl IdMap {
    /// Maps a range that only this sandbox has.
    pub fn own_range(range: IdRange) -> Self {
        let lines = vec![IdMapLine { inside: 0, outside: range.first, count: range.count }];
        Self { ids: IdMapKind::OwnRange, users: lines.clone(), groups: lines }
    }

    /// Maps a range that all sandboxes share.
    pub fn common_range(range: IdRange) -> Self {
        Self { ids: IdMapKind::CommonRange, ..Self::own_range(range) }
    }

    /// The mapping for an idmapped mount: files stored in the range `stored` appear in this map's range.
    pub fn mount_mapping(&self, stored: IdRange) -> Option<Self> {
        let own = self.exclusive_range()?;
        let lines = vec![IdMapLine { inside: stored.first, outside: own.first, count: own.count.min(stored.count) }];
        Some(Self { ids: IdMapKind::OwnRange, users: lines.clone(), groups: lines })
    }

    /// Maps an unprivileged user to root and their sub-ids to all other ids.
    pub fn sub_ids(user: u32, group: u32, users: IdRange, groups: IdRange) -> Self {
        let lines = |own, IdRange { first, count }| {
            vec![IdMapLine { inside: 0, outside: own, count: 1 }, IdMapLine { inside: 1, outside: first, count }]
        };
        Self { ids: IdMapKind::SubIds, users: lines(user, users), groups: lines(group, groups) }
    }

    /// Maps an unprivileged user to `agent` and nothing else.
    pub fn single_id(user: u32, group: u32) -> Self {
        let lines = |own| vec![IdMapLine { inside: AGENT_UID, outside: own, count: 1 }];
        Self { ids: IdMapKind::SingleId, users: lines(user), groups: lines(group) }
    }

    pub fn has_root(&self) -> bool {
        self.host_uid(0).is_some()
    }

    pub fn host_uid(&self, inside: u32) -> Option<u32> {
        to_host_id(&self.users, inside)
    }

    pub fn host_gid(&self, inside: u32) -> Option<u32> {
        to_host_id(&self.groups, inside)
    }

    /// The range that no other sandbox may have.
    pub fn exclusive_range(&self) -> Option<IdRange> {
        match (self.ids, self.users.as_slice()) {
            (IdMapKind::OwnRange, [line]) => Some(IdRange { first: line.outside, count: line.count }),
            _ => None,
        }
    }
}

fn to_host_id(lines: &[IdMapLine], inside: u32) -> Option<u32> {
    let line = lines.iter().find(|line| (line.inside..line.inside + line.count).contains(&inside))?;
    Some(line.outside + (inside - line.inside))
}

/// Chooses the first range from `base` on that overlaps none of `used` and that this process may map.
pub(crate) fn choose_range(base: u32, used: &[IdRange], mappable: &[IdRange]) -> Option<IdRange> {
    (0..)
        .map_while(|step: u32| {
            base.checked_add(step.checked_mul(RANGE_SIZE)?).filter(|first| *first <= LAST_RANGE_START)
        })
        .filter(|first| *first >= RANGE_SIZE)
        .map(|first| IdRange { first, count: RANGE_SIZE })
        .find(|range| {
            mappable.iter().any(|whole| range_contains(*whole, *range))
                && !used.iter().any(|other| ranges_overlap(*other, *range))
        })
}

fn ranges_overlap(one: IdRange, other: IdRange) -> bool {
    let end = |range: IdRange| u64::from(range.first) + u64::from(range.count);
    u64::from(one.first) < end(other) && u64::from(other.first) < end(one)
}

fn range_contains(whole: IdRange, part: IdRange) -> bool {
    let end = |range: IdRange| u64::from(range.first) + u64::from(range.count);
    whole.first <= part.first && end(part) <= end(whole)
}

/// Parses the ids in `/etc/passwd` or `/etc/group`: the third field.
pub(crate) fn parse_passwd_ids(text: &str) -> impl Iterator<Item = IdRange> {
    text.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok()).map(|first| IdRange { first, count: 1 })
}

/// Parses `/etc/subuid` or `/etc/subgid` into owners and their ranges.
pub(crate) fn parse_sub_ids(text: &str) -> impl Iterator<Item = (&str, IdRange)> {
    text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let (owner, first, count) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (count > 0).then_some((owner, IdRange { first, count }))
    })
}

/// Finds a user's first sub-id range, by name or uid, that includes the id of `agent`.
pub(crate) fn sub_ids_of(text: &str, name: Option<&str>, id: u32) -> Option<IdRange> {
    let number = id.to_string();
    parse_sub_ids(text)
        .filter(|(owner, range)| (Some(*owner) == name || *owner == number) && range.count > AGENT_UID)
        .map(|(_, range)| IdRange { first: range.first, count: range.count.min(RANGE_SIZE - 1) })
        .next()
}

/// Parses `/proc/self/uid_map` for the ids that this process may map further: the first column counts, the second is
/// about the parent namespace.
pub(crate) fn parse_mappable_ids(text: &str) -> Vec<IdRange> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let first = fields.next()?.parse().ok()?;
            let count = fields.nth(1)?.parse().ok()?;
            Some(IdRange { first, count })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVERYTHING: &[IdRange] = &[IdRange { first: 0, count: u32::MAX }];

    #[test]
    fn skips_ids_in_use() {
        let base = 600_000_000;
        let range = |step| IdRange { first: base + step * RANGE_SIZE, count: RANGE_SIZE };
        assert_eq!(choose_range(base, &[], EVERYTHING), Some(range(0)));
        assert_eq!(choose_range(base, &[range(0), range(2)], EVERYTHING), Some(range(1)));
        let passwd = format!("root:x:0:0::/:/bin/sh\nodd:x:{}:1::/:/bin/sh\nbroken\n", base + 7);
        let used: Vec<_> = parse_passwd_ids(&passwd).collect();
        assert_eq!(used.len(), 2);
        assert_eq!(choose_range(base, &used, EVERYTHING), Some(range(1)));
        let subuid = format!("someone:{}:70000\n", base - 1);
        let used: Vec<_> = parse_sub_ids(&subuid).map(|(_, range)| range).collect();
        assert_eq!(choose_range(base, &used, EVERYTHING), Some(range(2)));
    }

    #[test]
    fn chooses_no_host_ids_and_only_mappable_ones() {
        assert_eq!(choose_range(0, &[], EVERYTHING), Some(IdRange { first: RANGE_SIZE, count: RANGE_SIZE }));
        assert_eq!(choose_range(100_000, &[], &[IdRange { first: 0, count: 65_536 }]), None);
        assert_eq!(choose_range(u32::MAX - 10, &[], EVERYTHING), None);
        assert_eq!(parse_mappable_ids("         0     100000      65536\n"), [IdRange { first: 0, count: 65_536 }]);
    }

    #[test]
    fn finds_a_users_sub_ids_by_name_or_number() {
        let text = "a:100000:65536\nb:200000:100\nb:300000:70000\n1002:400000:65536\n";
        assert_eq!(sub_ids_of(text, Some("a"), 1), Some(IdRange { first: 100_000, count: RANGE_SIZE - 1 }));
        assert_eq!(sub_ids_of(text, Some("b"), 1), Some(IdRange { first: 300_000, count: RANGE_SIZE - 1 }));
        assert_eq!(sub_ids_of(text, None, 1002), Some(IdRange { first: 400_000, count: RANGE_SIZE - 1 }));
        assert_eq!(sub_ids_of(text, Some("c"), 1), None);
    }

    #[test]
    fn maps_ids_to_the_host() {
        let map = IdMap::own_range(IdRange { first: 600_000_000, count: RANGE_SIZE });
        assert_eq!(map.host_uid(AGENT_UID), Some(600_001_000));
        assert_eq!(map.host_uid(RANGE_SIZE), None);
        let range = IdRange { first: 100_000, count: RANGE_SIZE - 1 };
        let map = IdMap::sub_ids(1001, 1001, range, range);
        assert_eq!((map.host_uid(0), map.host_uid(AGENT_UID)), (Some(1001), Some(100_999)));
        assert!(map.has_root() && map.exclusive_range().is_none());
        let map = IdMap::single_id(1001, 1002);
        assert_eq!((map.host_uid(0), map.host_uid(AGENT_UID), map.host_gid(AGENT_UID)), (None, Some(1001), Some(1002)));
    }

    proptest! {
        #[test]
        fn a_chosen_range_overlaps_no_other(base in 0..u32::MAX, used in prop::collection::vec((0..u32::MAX, 1..200_000_u32), 0..40)) {
            let used: Vec<_> = used.into_iter().map(|(first, count)| IdRange { first, count }).collect();
            if let Some(range) = choose_range(base, &used, EVERYTHING) {
                prop_assert!(range.first >= RANGE_SIZE && range.first >= base);
                prop_assert!(used.iter().all(|other| !ranges_overlap(*other, range)));
                prop_assert!(range.first.checked_add(range.count).is_some());
            }
        }
    }
}
