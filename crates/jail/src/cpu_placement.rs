//! Rules for placing sandboxes on CPUs: each gets as many as its limit, so that the others stay free.
//!
//! A CPU quota alone lets a sandbox occupy all CPUs until its quota is used up, which delays everything else. Programs
//! inside also see the right number of CPUs.

use std::collections::BTreeMap;

use rustix::thread::CpuSet;

/// A smaller gain, in CPUs, is not worth a move.
const MIN_GAIN_CPUS: f64 = 0.2;

/// Lists the CPUs that this process may use.
pub(crate) fn available_cpus() -> Vec<u32> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    let most = u32::try_from(CpuSet::MAX_CPU).unwrap_or(0);
    (0..most).filter(|number| set.is_set(*number as usize)).collect()
}

/// Chooses the CPUs with the fewest sandboxes; `None` if the limit covers all CPUs.
pub(crate) fn choose_cpus<'a>(all: &[u32], used: impl Iterator<Item = &'a [u32]>, milli: u32) -> Option<Vec<u32>> {
    let count = milli.div_ceil(1000).max(1) as usize;
    if count >= all.len() {
        return None;
    }
    let mut counts: BTreeMap<u32, usize> = all.iter().map(|number| (*number, 0)).collect();
    for number in used.flatten() {
        counts.entry(*number).and_modify(|count| *count += 1);
    }
    let mut order: Vec<(usize, u32)> = counts.into_iter().map(|(number, count)| (count, number)).collect();
    order.sort_unstable();
    let mut chosen: Vec<u32> = order.into_iter().take(count).map(|(_, number)| number).collect();
    chosen.sort_unstable();
    Some(chosen)
}

/// CPU load of a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CpuLoad<'a> {
    pub name: &'a str,
    pub cpus: &'a [u32],
    /// Average number of busy CPUs.
    pub cpus_used: f64,
}

/// Picks a sandbox to move from the busiest CPU to the least busy one, with its new CPUs.
pub(crate) fn plan_move<'a>(all: &[u32], busy: &[CpuLoad<'a>]) -> Option<(&'a str, Vec<u32>)> {
    let load = |number: u32| -> f64 {
        busy.iter().filter(|busy| busy.cpus.contains(&number)).map(CpuLoad::load_per_cpu).sum()
    };
    let loads: Vec<(f64, u32)> = all.iter().map(|number| (load(*number), *number)).collect();
    let (most, hot) = *loads.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let (least, cold) = *loads.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let worst = |busy: &CpuLoad<'_>| (most - busy.load_per_cpu()).max(least + busy.load_per_cpu());
    let (after, moved) = busy
        .iter()
        .filter(|busy| busy.cpus.contains(&hot) && !busy.cpus.contains(&cold))
        .map(|busy| (worst(busy), busy))
        .min_by(|a, b| a.0.total_cmp(&b.0))?;
    if most - after < MIN_GAIN_CPUS {
        return None;
    }
    let mut on: Vec<u32> = moved.cpus.iter().map(|number| if *number == hot { cold } else { *number }).collect();
    on.sort_unstable();
    Some((moved.name, on))
}

impl CpuLoad<'_> {
    fn load_per_cpu(&self) -> f64 {
        self.cpus_used / self.cpus.len().max(1) as f64
    }
}

/// Formats a cpuset list.
pub(crate) fn format_cpu_list(cpus: &[u32]) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Parses a cpuset list: numbers and ranges.
pub(crate) fn parse_cpu_list(text: &str) -> Vec<u32> {
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

    fn chosen(all: &[u32], used: &[&[u32]], milli: u32) -> Option<Vec<u32>> {
        choose_cpus(all, used.iter().copied(), milli)
    }

    #[test]
    fn a_sandbox_gets_as_many_cpus_as_its_limit() {
        let four = [0, 1, 2, 3];
        assert_eq!(chosen(&four, &[], 1000), Some(vec![0]));
        assert_eq!(chosen(&four, &[], 1001), Some(vec![0, 1]));
        assert_eq!(chosen(&four, &[], 10), Some(vec![0]));
        assert_eq!(chosen(&four, &[&[0], &[0, 2]], 2000), Some(vec![1, 3]));
        assert_eq!(chosen(&four, &[&[0], &[1], &[2], &[3], &[0, 2, 9]], 2000), Some(vec![1, 3]));
        assert_eq!(chosen(&four, &[], 4000), None);
        assert_eq!(chosen(&[5], &[], 100), None);
        assert_eq!(chosen(&[], &[], 100), None);
        assert_eq!((format_cpu_list(&[1, 3]).as_str(), parse_cpu_list("1,3\n")), ("1,3", vec![1, 3]));
        assert_eq!((parse_cpu_list("0-2,7"), parse_cpu_list("")), (vec![0, 1, 2, 7], vec![]));
        assert!(!available_cpus().is_empty());
    }

    #[test]
    fn a_sandbox_moves_from_a_busy_cpu_to_an_idle_one() {
        let busy = |name, on, used| CpuLoad { name, cpus: on, cpus_used: used };
        let two = [0, 1];
        assert_eq!(plan_move(&two, &[busy("a", &[0], 1.0), busy("b", &[0], 1.0)]), Some(("a", vec![1])));
        assert_eq!(plan_move(&two, &[busy("a", &[0], 1.0), busy("b", &[1], 1.0)]), None);
        let three_on_one = [busy("a", &[0], 0.3), busy("b", &[0], 0.5), busy("c", &[0], 0.3)];
        assert_eq!(plan_move(&two, &three_on_one), Some(("b", vec![1])), "that is the most even");
        assert_eq!(plan_move(&two, &[busy("a", &[0], 0.1), busy("b", &[0], 0.1)]), None, "it is not worth it");
        assert_eq!(plan_move(&two, &[busy("a", &[0], 1.0)]), None, "it would be as busy there");
        assert_eq!(plan_move(&two, &[]), None);
        let three = [0, 1, 2];
        let wide = [busy("a", &[0, 1], 2.0), busy("b", &[0], 1.0)];
        assert_eq!(plan_move(&three, &wide), Some(("a", vec![1, 2])));
    }

    proptest! {
        #[test]
        fn every_move_improves_the_balance_and_moves_terminate(
            count in 2_u32..9,
            wishes in prop::collection::vec((1_u32..4000, 0.0..1.0_f64), 0..12),
        ) {
            let all: Vec<u32> = (0..count).collect();
            let mut sandboxes: Vec<(String, Vec<u32>, f64)> = Vec::new();
            for (number, (milli, part)) in wishes.iter().enumerate() {
                let used = sandboxes.iter().map(|(_, on, _)| on.as_slice());
                // Put all on the first CPUs, so that there is something to move.
                let Some(on) = choose_cpus(&all, used.take(0), *milli) else { continue };
                let used = part * f64::from(*milli) / 1000.0;
                sandboxes.push((number.to_string(), on, used));
            }
            let worst = |sandboxes: &[(String, Vec<u32>, f64)]| {
                let of = |number: &u32| -> f64 {
                    let on_it = sandboxes.iter().filter(|(_, on, _)| on.contains(number));
                    on_it.map(|(_, on, used)| used / on.len() as f64).sum()
                };
                let mut loads: Vec<f64> = all.iter().map(of).collect();
                loads.sort_by(f64::total_cmp);
                (loads.last().copied().unwrap_or(0.0), loads.iter().map(|load| load * load).sum::<f64>())
            };
            let mut moves = 0;
            loop {
                let busy: Vec<CpuLoad<'_>> =
                    sandboxes.iter().map(|(name, cpus, used)| CpuLoad { name, cpus, cpus_used: *used }).collect();
                let Some((name, on)) = plan_move(&all, &busy) else { break };
                let name = name.to_owned();
                let before = worst(&sandboxes);
                let sandbox = sandboxes.iter_mut().find(|(known, _, _)| *known == name).unwrap();
                prop_assert_eq!(on.len(), sandbox.1.len());
                prop_assert!(on.iter().all(|number| all.contains(number)));
                sandbox.1 = on;
                let after = worst(&sandboxes);
                prop_assert!(after.0 <= before.0 + 1e-9 && after.1 < before.1);
                moves += 1;
                prop_assert!(moves < 200);
            }
        }
    }
}
