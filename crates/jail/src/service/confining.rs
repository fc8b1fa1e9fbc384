//! Which processors the sandboxes of this launcher have: chosen when one starts, and again when two that work hard have
//! come to share one. The rules are in [`crate::processors`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Service;
use super::processes::{Kind, Tracked};
use crate::cgroup::{Bounds, Confined};
use crate::place::{Clock, Limits};
use crate::processors::{self, Busy};

/// Less says nothing of what comes.
const SHORTEST: Duration = Duration::from_millis(500);
/// What was longer ago says nothing of now.
const LONGEST: Duration = Duration::from_secs(10);

/// What the agents of confined sandboxes had used at some time, in microseconds.
pub(super) struct Look {
    at: Instant,
    used: BTreeMap<String, u64>,
}

impl Service {
    /// The bounds of what a sandbox runs: all of it on the same processors.
    pub(super) fn agent_bounds(&self, name: &str, limits: &Limits) -> Bounds {
        let living = self.worker(name).and_then(Tracked::confined).map(|confined| confined.to.clone());
        let others = self.tracked.iter().filter_map(Tracked::confined).map(|confined| confined.to.as_slice());
        let processors = living.or_else(|| processors::choose(&self.processors, others, limits.cpu_milli));
        Bounds { processors, ..Bounds::agent(limits) }
    }

    /// Lets one sandbox go on elsewhere, if it and others have been in each other's way since the last look. The clocks
    /// are of all workers, in their order.
    pub(super) fn spread(&mut self, clocks: &[Clock]) {
        let workers = self.tracked.iter().filter(|tracked| tracked.kind == Kind::Worker);
        let confined: Vec<(&Clock, &Confined)> =
            workers.zip(clocks).filter_map(|(worker, clock)| Some((clock, worker.confined()?))).collect();
        let used = confined.iter().filter_map(|(clock, _)| Some((clock.name.clone(), clock.agent?))).collect();
        let now = Look { at: Instant::now(), used };
        let Some(last) = &self.looked else {
            self.looked = Some(now);
            return;
        };
        let passed = now.at.duration_since(last.at);
        if passed < SHORTEST {
            return;
        }
        let processors = |name: &str| {
            let microseconds = now.used.get(name)?.checked_sub(*last.used.get(name)?)?;
            Some(Duration::from_micros(microseconds).as_secs_f64() / passed.as_secs_f64())
        };
        let busy: Vec<Busy<'_>> = confined
            .iter()
            .filter_map(|(clock, confined)| {
                Some(Busy { name: &clock.name, on: &confined.to, used: processors(&clock.name)? })
            })
            .collect();
        let relief = processors::relief(&self.processors, &busy).filter(|_| passed < LONGEST);
        let relief = relief.map(|(name, on)| (name.to_owned(), on));
        self.looked = Some(now);
        if let Some((name, on)) = relief {
            self.confine_to(&name, on);
        }
    }

    /// Where it can't be, all stays as it is; the next look tries again.
    fn confine_to(&mut self, name: &str, on: Vec<u32>) {
        let is_it = |tracked: &&mut Tracked| tracked.sandbox == name && tracked.kind == Kind::Worker;
        let worker = self.tracked.iter_mut().find(is_it);
        if let Some(confined) = worker.and_then(|worker| worker.leaves.get_mut(1)?.confined.as_mut()) {
            let _ = confined.move_to(on);
        }
    }
}

impl Tracked {
    /// Of a worker's sandbox: where its agent may run, if not everywhere.
    fn confined(&self) -> Option<&Confined> {
        self.leaves.get(1).filter(|_| self.kind == Kind::Worker)?.confined.as_ref()
    }
}
