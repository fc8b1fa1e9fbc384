//! Which processors a sandbox's commands may run on: as many as it may use at most, so that the others are free of it.
//!
//! A limit on processor time alone lets a sandbox keep all processors busy at once until its time is used up, and
//! whoever wakes up meanwhile waits on any of them. And programs inside that ask how many processors there are hear what
//! they may use.

use std::collections::BTreeMap;

use rustix::thread::CpuSet;

/// Less than this, in processors, is not worth a move.
const WORTH: f64 = 0.2;

/// Those that this process may use.
pub(crate) fn own() -> Vec<u32> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    let most = u32::try_from(CpuSet::MAX_CPU).unwrap_or(0);
    (0..most).filter(|number| set.is_set(*number as usize)).collect()
}

/// Those that the fewest others have; nothing if there are not more than the sandbox may use.
pub(crate) fn choose<'a>(all: &[u32], taken: impl Iterator<Item = &'a [u32]>, milli: u32) -> Option<Vec<u32>> {
    let wanted = milli.div_ceil(1000).max(1) as usize;
    if wanted >= all.len() {
        return None;
    }
    let mut counts: BTreeMap<u32, usize> = all.iter().map(|number| (*number, 0)).collect();
    for number in taken.flatten() {
        counts.entry(*number).and_modify(|count| *count += 1);
    }
    let mut order: Vec<(usize, u32)> = counts.into_iter().map(|(number, count)| (count, number)).collect();
    order.sort_unstable();
    let mut chosen: Vec<u32> = order.into_iter().take(wanted).map(|(_, number)| number).collect();
    chosen.sort_unstable();
    Some(chosen)
}

/// A sandbox that has been at work.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Busy<'a> {
    pub name: &'a str,
    pub on: &'a [u32],
    /// How many processors it kept busy.
    pub used: f64,
}

/// Who should go elsewhere, and where to: one that shares the busiest processor while another has little to do.
pub(crate) fn relief<'a>(all: &[u32], busy: &[Busy<'a>]) -> Option<(&'a str, Vec<u32>)> {
    let load = |number: u32| -> f64 { busy.iter().filter(|busy| busy.on.contains(&number)).map(Busy::on_each).sum() };
    let loads: Vec<(f64, u32)> = all.iter().map(|number| (load(*number), *number)).collect();
    let (most, hot) = *loads.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let (least, cold) = *loads.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let worst = |busy: &Busy<'_>| (most - busy.on_each()).max(least + busy.on_each());
    let (after, moved) = busy
        .iter()
        .filter(|busy| busy.on.contains(&hot) && !busy.on.contains(&cold))
        .map(|busy| (worst(busy), busy))
        .min_by(|a, b| a.0.total_cmp(&b.0))?;
    if most - after < WORTH {
        return None;
    }
    let mut on: Vec<u32> = moved.on.iter().map(|number| if *number == hot { cold } else { *number }).collect();
    on.sort_unstable();
    Some((moved.name, on))
}

impl Busy<'_> {
    fn on_each(&self) -> f64 {
        self.used / self.on.len().max(1) as f64
    }
}

/// As the kernel wants it.
pub(crate) fn list(processors: &[u32]) -> String {
    processors.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// As the kernel tells it: numbers and ranges.
pub(crate) fn of_list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chosen(all: &[u32], taken: &[&[u32]], milli: u32) -> Option<Vec<u32>> {
        choose(all, taken.iter().copied(), milli)
    }

    #[test]
    fn a_sandbox_gets_as_many_as_it_may_use() {
        let four = [0, 1, 2, 3];
        assert_eq!(chosen(&four, &[], 1000), Some(vec![0]));
        assert_eq!(chosen(&four, &[], 1001), Some(vec![0, 1]));
        assert_eq!(chosen(&four, &[], 10), Some(vec![0]));
        assert_eq!(chosen(&four, &[&[0], &[0, 2]], 2000), Some(vec![1, 3]));
        assert_eq!(chosen(&four, &[&[0], &[1], &[2], &[3], &[0, 2, 9]], 2000), Some(vec![1, 3]));
        assert_eq!(chosen(&four, &[], 4000), None);
        assert_eq!(chosen(&[5], &[], 100), None);
        assert_eq!(chosen(&[], &[], 100), None);
        assert_eq!((list(&[1, 3]).as_str(), of_list("1,3\n")), ("1,3", vec![1, 3]));
        assert_eq!((of_list("0-2,7"), of_list("")), (vec![0, 1, 2, 7], vec![]));
        assert!(!own().is_empty());
    }

    #[test]
    fn whoever_shares_a_busy_processor_goes_to_an_idle_one() {
        let busy = |name, on, used| Busy { name, on, used };
        let two = [0, 1];
        assert_eq!(relief(&two, &[busy("a", &[0], 1.0), busy("b", &[0], 1.0)]), Some(("a", vec![1])));
        assert_eq!(relief(&two, &[busy("a", &[0], 1.0), busy("b", &[1], 1.0)]), None);
        let three_on_one = [busy("a", &[0], 0.3), busy("b", &[0], 0.5), busy("c", &[0], 0.3)];
        assert_eq!(relief(&two, &three_on_one), Some(("b", vec![1])), "that is the most even");
        assert_eq!(relief(&two, &[busy("a", &[0], 0.1), busy("b", &[0], 0.1)]), None, "it is not worth it");
        assert_eq!(relief(&two, &[busy("a", &[0], 1.0)]), None, "it would be as busy there");
        assert_eq!(relief(&two, &[]), None);
        let three = [0, 1, 2];
        let wide = [busy("a", &[0, 1], 2.0), busy("b", &[0], 1.0)];
        assert_eq!(relief(&three, &wide), Some(("a", vec![1, 2])));
    }

    proptest! {
        #[test]
        fn a_move_is_never_for_the_worse_and_they_come_to_an_end(
            count in 2_u32..9,
            wishes in prop::collection::vec((1_u32..4000, 0.0..1.0_f64), 0..12),
        ) {
            let all: Vec<u32> = (0..count).collect();
            let mut places: Vec<(String, Vec<u32>, f64)> = Vec::new();
            for (number, (milli, part)) in wishes.iter().enumerate() {
                let taken = places.iter().map(|(_, on, _)| on.as_slice());
                // All at the beginning of the list, to have something to move.
                let Some(on) = choose(&all, taken.take(0), *milli) else { continue };
                let used = part * f64::from(*milli) / 1000.0;
                places.push((number.to_string(), on, used));
            }
            let worst = |places: &[(String, Vec<u32>, f64)]| {
                let of = |number: &u32| -> f64 {
                    let on_it = places.iter().filter(|(_, on, _)| on.contains(number));
                    on_it.map(|(_, on, used)| used / on.len() as f64).sum()
                };
                let mut loads: Vec<f64> = all.iter().map(of).collect();
                loads.sort_by(f64::total_cmp);
                (loads.last().copied().unwrap_or(0.0), loads.iter().map(|load| load * load).sum::<f64>())
            };
            let mut moves = 0;
            loop {
                let busy: Vec<Busy<'_>> =
                    places.iter().map(|(name, on, used)| Busy { name, on, used: *used }).collect();
                let Some((name, on)) = relief(&all, &busy) else { break };
                let name = name.to_owned();
                let before = worst(&places);
                let place = places.iter_mut().find(|(known, _, _)| *known == name).unwrap();
                prop_assert_eq!(on.len(), place.1.len());
                prop_assert!(on.iter().all(|number| all.contains(number)));
                place.1 = on;
                let after = worst(&places);
                prop_assert!(after.0 <= before.0 + 1e-9 && after.1 < before.1);
                moves += 1;
                prop_assert!(moves < 200);
            }
        }
    }
}
