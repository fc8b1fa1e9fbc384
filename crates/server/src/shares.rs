//! A bounded resource that several holders share: none of them can take all of it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The share of one holder.
pub const fn fair_share(total: usize) -> usize {
    let quarter = total / 4;
    if quarter == 0 { 1 } else { quarter }
}

/// A holder has its whole share, or all shares are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareUsedUp;

/// Counts the units that each holder has.
#[derive(Debug)]
pub struct Shares<K> {
    total: usize,
    held: Mutex<HashMap<K, usize>>,
}

/// One unit. Dropping it returns it.
#[derive(Debug)]
pub struct SharePermit<K: Eq + Hash> {
    shares: Arc<Shares<K>>,
    holder: K,
}

impl<K: Eq + Hash + Copy> Shares<K> {
    pub fn new(total: usize) -> Self {
        Self { total, held: Mutex::default() }
    }

    /// Takes one unit, if the holder has less than its fair share.
    pub fn acquire(self: &Arc<Self>, holder: K) -> Result<SharePermit<K>, ShareUsedUp> {
        self.acquire_up_to(holder, usize::MAX)
    }

    /// Takes one unit, if the holder has less than its fair share and less than `most`.
    pub fn acquire_up_to(self: &Arc<Self>, holder: K, most: usize) -> Result<SharePermit<K>, ShareUsedUp> {
        let mut held = lock_held(&self.held);
        let own = held.get(&holder).copied().unwrap_or(0);
        if own >= fair_share(self.total).min(most) || held.values().sum::<usize>() >= self.total {
            return Err(ShareUsedUp);
        }
        held.insert(holder, own + 1);
        Ok(SharePermit { shares: Arc::clone(self), holder })
    }
}

impl<K: Eq + Hash> Drop for SharePermit<K> {
    fn drop(&mut self) {
        let mut held = lock_held(&self.shares.held);
        if let Some(own) = held.get_mut(&self.holder) {
            *own -= 1;
            if *own == 0 {
                held.remove(&self.holder);
            }
        }
    }
}

fn lock_held<K>(held: &Mutex<HashMap<K, usize>>) -> MutexGuard<'_, HashMap<K, usize>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_gets_its_share_and_leaves_the_rest() {
        let shares = Arc::new(Shares::new(8));
        let first: Vec<_> = (0..2).map(|_| shares.acquire('a').unwrap()).collect();
        assert_eq!(shares.acquire('a').unwrap_err(), ShareUsedUp);
        let _others: Vec<_> =
            ['b', 'c', 'd'].into_iter().flat_map(|who| [shares.acquire(who), shares.acquire(who)]).collect();
        assert_eq!(shares.acquire('e').unwrap_err(), ShareUsedUp, "all units are taken");
        drop(first);
        shares.acquire('e').unwrap();
        assert_eq!(lock_held(&shares.held).len(), 3, "a holder without units is forgotten");
    }

    #[test]
    fn a_lower_bound_of_one_kind_of_holder_counts() {
        let shares = Arc::new(Shares::new(100));
        let _one = shares.acquire_up_to('a', 1).unwrap();
        assert_eq!(shares.acquire_up_to('a', 1).unwrap_err(), ShareUsedUp);
        assert_eq!((fair_share(1), fair_share(3), fair_share(1000)), (1, 1, 250));
    }
}
