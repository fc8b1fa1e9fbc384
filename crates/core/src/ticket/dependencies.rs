//! Dependencies between tickets: they form no cycle, and work on dependants follows their order.

use std::collections::{BTreeMap, BTreeSet};

/// The tickets that each ticket depends on.
pub type DependencyMap<T> = BTreeMap<T, BTreeSet<T>>;

/// Finds the cycle that a ticket would close with these dependencies: the path from the ticket back to itself.
///
/// `existing` has no cycle. The ticket's own entry in it is replaced by `new`.
pub fn find_cycle<T: Ord + Clone>(existing: &DependencyMap<T>, ticket: &T, new: &BTreeSet<T>) -> Option<Vec<T>> {
    let mut visited = BTreeSet::new();
    for first in new {
        let mut path = vec![ticket.clone()];
        if reaches(existing, first, ticket, &mut visited, &mut path) {
            return Some(path);
        }
    }
    None
}

/// Extends `path` from `from` to `target`. Iterative, because a chain of tickets can be long.
fn reaches<T: Ord + Clone>(
    existing: &DependencyMap<T>,
    from: &T,
    target: &T,
    visited: &mut BTreeSet<T>,
    path: &mut Vec<T>,
) -> bool {
    enum Visit<'a, T> {
        Enter(&'a T),
        Leave,
    }
    let mut stack = vec![Visit::Enter(from)];
    while let Some(visit) = stack.pop() {
        let ticket = match visit {
            Visit::Leave => {
                path.pop();
                continue;
            }
            Visit::Enter(ticket) => ticket,
        };
        if ticket == target {
            path.push(ticket.clone());
            return true;
        }
        if !visited.insert(ticket.clone()) {
            continue;
        }
        path.push(ticket.clone());
        stack.push(Visit::Leave);
        stack.extend(existing.get(ticket).into_iter().flatten().map(Visit::Enter));
    }
    false
}

/// Lists everything that depends on a ticket, directly or not. A ticket comes after all of its own dependencies that are
/// in the list.
pub fn list_dependants<T: Ord + Clone>(existing: &DependencyMap<T>, ticket: &T) -> Vec<T> {
    let mut affected = BTreeSet::from([ticket.clone()]);
    loop {
        let depends = |needs: &BTreeSet<T>| needs.iter().any(|need| affected.contains(need));
        let more: Vec<T> = existing
            .iter()
            .filter(|(dependant, needs)| !affected.contains(*dependant) && depends(needs))
            .map(|(dependant, _)| dependant.clone())
            .collect();
        if more.is_empty() {
            break;
        }
        affected.extend(more);
    }
    affected.remove(ticket);
    let mut ordered = Vec::new();
    while !affected.is_empty() {
        let is_ready = |dependant: &&T| {
            existing.get(*dependant).is_none_or(|needs| needs.iter().all(|need| !affected.contains(need)))
        };
        let ready: Vec<T> = affected.iter().filter(is_ready).cloned().collect();
        if ready.is_empty() {
            // A cycle, which the store never has. The rest has no order.
            ordered.extend(affected);
            break;
        }
        affected.retain(|next| !ready.contains(next));
        ordered.extend(ready);
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(edges: &[(u8, u8)]) -> DependencyMap<u8> {
        let mut map = DependencyMap::new();
        for (ticket, need) in edges {
            map.entry(*ticket).or_insert_with(BTreeSet::new).insert(*need);
        }
        map
    }

    #[test]
    fn names_the_cycle() {
        let existing = map(&[(2, 1), (3, 2), (4, 3), (5, 1)]);
        assert_eq!(find_cycle(&existing, &1, &BTreeSet::from([1])), Some(vec![1, 1]));
        assert_eq!(find_cycle(&existing, &1, &BTreeSet::from([5, 4])), Some(vec![1, 4, 3, 2, 1]));
        assert_eq!(find_cycle(&existing, &4, &BTreeSet::from([1, 2, 3, 5])), None);
        // The old dependencies of the ticket do not count.
        assert_eq!(find_cycle(&existing, &2, &BTreeSet::from([5])), None);
    }

    #[test]
    fn a_long_chain_needs_no_stack() {
        let existing: DependencyMap<u32> = (1..50_000).map(|n| (n, BTreeSet::from([n - 1]))).collect();
        let cycle = find_cycle(&existing, &0, &BTreeSet::from([49_999])).unwrap();
        assert_eq!((cycle.len(), cycle[0], cycle[50_000]), (50_001, 0, 0));
    }

    #[test]
    fn dependants_follow_their_dependencies() {
        let existing = map(&[(2, 1), (3, 2), (4, 2), (4, 3), (9, 8), (5, 4), (5, 9)]);
        assert_eq!(list_dependants(&existing, &1), [2, 3, 4, 5]);
        assert_eq!(list_dependants(&existing, &5), [] as [u8; 0]);
    }

    proptest! {
        /// A graph that grows only by accepted edges has a topological order, and every refusal names a real cycle.
        #[test]
        fn accepted_dependencies_never_form_a_cycle(edges in prop::collection::vec((0u8..12, 0u8..12), 0..60)) {
            let mut accepted = DependencyMap::new();
            for (ticket, need) in edges {
                let mut new: BTreeSet<u8> = accepted.get(&ticket).cloned().unwrap_or_default();
                new.insert(need);
                match find_cycle(&accepted, &ticket, &new) {
                    None => drop(accepted.insert(ticket, new)),
                    Some(path) => {
                        prop_assert_eq!((path[0], path[path.len() - 1]), (ticket, ticket));
                        prop_assert!(new.contains(&path[1]));
                        for pair in path[1..].windows(2) {
                            prop_assert!(accepted[&pair[0]].contains(&pair[1]), "{:?}", path);
                        }
                    }
                }
            }
            let mut rest: BTreeSet<u8> = accepted.keys().copied().collect();
            while !rest.is_empty() {
                let free: Vec<u8> = rest.iter().copied().filter(|t| accepted[t].is_disjoint(&rest)).collect();
                prop_assert!(!free.is_empty(), "a cycle among {:?}", rest);
                rest.retain(|ticket| !free.contains(ticket));
            }
            for root in 0u8..12 {
                let order = list_dependants(&accepted, &root);
                for (at, dependant) in order.iter().enumerate() {
                    prop_assert!(order[at..].iter().all(|later| !accepted[dependant].contains(later)));
                }
            }
        }
    }
}
