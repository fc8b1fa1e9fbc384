//! CPU placement of this launcher's sandboxes: at the start, and again when two busy ones share a CPU. The rules are in
//! [`crate::cpu_placement`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Service;
use super::processes::{ProcessKind, TrackedProcess};
use crate::cgroup::{CpuConfinement, LeafLimits};
use crate::cpu_placement::{self, CpuLoad};
use crate::sandbox::{CpuTimes, ResourceLimits};

/// A shorter interval says little about the load.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// A longer interval says little about the current load.
const MAX_SAMPLE_INTERVAL: Duration = Duration::from_secs(10);

/// CPU time that the agents of confined sandboxes had used at some time, in microseconds.
pub(super) struct LoadSample {
    at: Instant,
    used: BTreeMap<String, u64>,
}

impl Service {
    /// Limits for the processes of a sandbox's agent, all on the same CPUs.
    pub(super) fn agent_limits(&self, name: &str, limits: &ResourceLimits) -> LeafLimits {
        let current =
            self.find_worker(name).and_then(TrackedProcess::agent_confinement).map(|confined| confined.cpus.clone());
        let others =
            self.tracked.iter().filter_map(TrackedProcess::agent_confinement).map(|confined| confined.cpus.as_slice());
        let cpus = current.or_else(|| cpu_placement::choose_cpus(&self.cpus, others, limits.cpu_milli));
        LeafLimits { cpus, ..LeafLimits::for_agent(limits) }
    }

    /// Moves one sandbox to other CPUs if it shared busy CPUs since the last sample. `cpu_times` are those of all workers,
    /// in order.
    pub(super) fn rebalance_cpus(&mut self, cpu_times: &[CpuTimes]) {
        let workers = self.tracked.iter().filter(|tracked| tracked.kind == ProcessKind::Worker);
        let confined: Vec<(&CpuTimes, &CpuConfinement)> = workers
            .zip(cpu_times)
            .filter_map(|(worker, cpu_time)| Some((cpu_time, worker.agent_confinement()?)))
            .collect();
        let used = confined.iter().filter_map(|(cpu_time, _)| Some((cpu_time.name.clone(), cpu_time.agent?))).collect();
        let now = LoadSample { at: Instant::now(), used };
        let Some(last) = &self.last_load_sample else {
            self.last_load_sample = Some(now);
            return;
        };
        let passed = now.at.duration_since(last.at);
        if passed < MIN_SAMPLE_INTERVAL {
            return;
        }
        let cpus_used = |name: &str| {
            let microseconds = now.used.get(name)?.checked_sub(*last.used.get(name)?)?;
            Some(Duration::from_micros(microseconds).as_secs_f64() / passed.as_secs_f64())
        };
        let busy: Vec<CpuLoad<'_>> = confined
            .iter()
            .filter_map(|(cpu_time, confined)| {
                Some(CpuLoad { name: &cpu_time.name, cpus: &confined.cpus, cpus_used: cpus_used(&cpu_time.name)? })
            })
            .collect();
        let planned_move = cpu_placement::plan_move(&self.cpus, &busy).filter(|_| passed < MAX_SAMPLE_INTERVAL);
        let planned_move = planned_move.map(|(name, cpus)| (name.to_owned(), cpus));
        self.last_load_sample = Some(now);
        if let Some((name, cpus)) = planned_move {
            self.move_to_cpus(&name, cpus);
        }
    }

    /// If the move fails, the next sample tries again.
    fn move_to_cpus(&mut self, name: &str, cpus: Vec<u32>) {
        let is_worker = |tracked: &&mut TrackedProcess| tracked.sandbox == name && tracked.kind == ProcessKind::Worker;
        let worker = self.tracked.iter_mut().find(is_worker);
        if let Some(confined) = worker.and_then(|worker| worker.cgroups.get_mut(1)?.confined.as_mut()) {
            let _ = confined.move_to(cpus);
        }
    }
}

impl TrackedProcess {
    /// The cpuset of the agent of a worker's sandbox.
    fn agent_confinement(&self) -> Option<&CpuConfinement> {
        self.cgroups.get(1).filter(|_| self.kind == ProcessKind::Worker)?.confined.as_ref()
    }
}
