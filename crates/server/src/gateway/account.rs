//! What a sandbox has spent, what is held for requests under way, and whether there is enough for another one.

use super::hold::Room;
use super::refusal::Refusal;
use crate::egress::quiet::Quiet;
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::sandbox::Settings;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// One sandbox's, as long as anything of it is under way.
pub struct Account {
    pub sandbox: SandboxId,
    pub project: ProjectId,
    /// For what it sends.
    pub room: Room,
    balance: Mutex<Balance>,
    /// Those that figures are kept of by name.
    models: Mutex<BTreeSet<String>>,
    /// Refusals that were written to the log a moment ago.
    told: Mutex<Quiet>,
    /// Its agent is being held back since nothing is left.
    is_spent_out: AtomicBool,
}

/// A sandbox can make up names without end.
const MOST_MODELS: usize = 32;
const LONGEST_NAME: usize = 200;
const OTHERS: &str = "other models";

/// In millionths of a dollar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Balance {
    pub limit: Option<i64>,
    /// Until the task is done, where it has a limit of its own.
    pub task: Option<i64>,
    pub spent: i64,
    pub reserved: i64,
}

/// Whose limit it is that has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// `limits.cost_usd`: the agent waits until somebody raises it.
    Sandbox,
    /// `continuous.cost_usd`: the task is over.
    Task,
}

pub fn limit_of(settings: &Settings) -> Option<i64> {
    settings.limits.as_ref().and_then(|limits| limits.cost_usd).map(micros)
}

pub fn micros(dollars: f64) -> i64 {
    (dollars * 1e6) as i64
}

impl Balance {
    /// Holds the most that a request can cost, or says whose limit has not enough.
    pub const fn reserve(&mut self, most: i64) -> Result<(), (Bound, i64)> {
        let held = self.spent.saturating_add(self.reserved).saturating_add(most);
        match (self.task, self.limit) {
            // A task that is over is not helped by a higher limit of its sandbox.
            (Some(task), _) if held > task => Err((Bound::Task, task)),
            (_, Some(limit)) if held > limit => Err((Bound::Sandbox, limit)),
            (_, _) => {
                self.reserved = self.reserved.saturating_add(most);
                Ok(())
            }
        }
    }

    /// The request is over: what it cost takes the place of what was held.
    pub const fn settle(&mut self, held: i64, cost: i64) {
        self.reserved = self.reserved.saturating_sub(held);
        self.spent = self.spent.saturating_add(cost);
    }
}

impl Account {
    pub fn new(sandbox: SandboxId, project: ProjectId, balance: Balance) -> Self {
        let balance = Mutex::new(balance);
        Self {
            sandbox,
            project,
            room: Room::of_one(),
            balance,
            models: Mutex::default(),
            told: Mutex::default(),
            is_spent_out: AtomicBool::new(false),
        }
    }

    fn locked(&self) -> MutexGuard<'_, Balance> {
        self.balance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name that a model's figures are kept under.
    pub fn booked_as(&self, model: &str) -> String {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !models.contains(model);
        if is_new && (models.len() >= MOST_MODELS || model.len() > LONGEST_NAME || model.chars().any(char::is_control))
        {
            return OTHERS.to_owned();
        }
        if is_new {
            models.insert(model.to_owned());
        }
        model.to_owned()
    }

    /// How often it was so since it was last told; nothing if that was a moment ago. Whoever asks without end writes
    /// no log without end.
    pub fn is_news(&self, reason: &'static str) -> Option<u64> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.note((String::new(), 0, reason), Instant::now())
    }

    /// Whether it is news that nothing is left: said once until there is more.
    pub fn runs_out(&self) -> bool {
        !self.is_spent_out.swap(true, Ordering::Relaxed)
    }

    /// A request went out: there is something left.
    pub fn passes(&self) {
        self.is_spent_out.store(false, Ordering::Relaxed);
    }

    pub fn has_limit(&self) -> bool {
        let balance = self.locked();
        balance.limit.is_some() || balance.task.is_some()
    }

    /// It may have been changed since.
    pub fn set_limit(&self, limit: Option<i64>) {
        let before = std::mem::replace(&mut self.locked().limit, limit);
        if before != limit {
            self.is_spent_out.store(false, Ordering::Relaxed);
        }
    }

    /// A task began, or is done.
    pub fn set_task(&self, task: Option<i64>) {
        let before = std::mem::replace(&mut self.locked().task, task);
        if before != task {
            self.is_spent_out.store(false, Ordering::Relaxed);
        }
    }

    pub fn reserve(&self, most: i64) -> Result<(), Refusal> {
        let mut balance = self.locked();
        let Err((bound, limit)) = balance.reserve(most) else { return Ok(()) };
        let Balance { spent, reserved, .. } = *balance;
        Err(Refusal::Budget { sandbox: self.sandbox, bound, limit, spent, reserved, most })
    }

    pub fn settle(&self, held: i64, cost: i64) {
        self.locked().settle(held, cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_held_counts_until_it_is_settled() {
        let mut balance = Balance { limit: Some(100), spent: 10, ..Balance::default() };
        assert!(balance.reserve(60).is_ok());
        assert!(balance.reserve(31).is_err(), "two at once can't have more than there is");
        assert!(balance.reserve(30).is_ok());
        balance.settle(60, 5);
        assert_eq!(balance, Balance { limit: Some(100), spent: 15, reserved: 30, task: None });
        assert!(balance.reserve(55).is_ok() && balance.reserve(1).is_err());
        let mut free = Balance::default();
        assert!(free.reserve(i64::MAX).is_ok() && free.reserve(i64::MAX).is_ok());
    }

    #[test]
    fn a_task_s_own_limit_holds_beside_the_sandbox_s() {
        let mut balance = Balance { limit: Some(100), task: Some(50), spent: 10, reserved: 0 };
        assert_eq!(balance.reserve(41), Err((Bound::Task, 50)));
        assert_eq!(balance.reserve(95), Err((Bound::Task, 50)), "a higher limit of the sandbox would not help");
        assert!(balance.reserve(40).is_ok());
        balance.task = None;
        assert_eq!(balance.reserve(51), Err((Bound::Sandbox, 100)));
    }

    #[test]
    fn refusals_in_turn_are_told_once_each() {
        let account = Account::new(SandboxId::new(), ProjectId::new(), Balance::default());
        let told = (0..100).filter_map(|at| account.is_news(if at % 2 == 0 { "key" } else { "budget" })).count();
        assert_eq!(told, 2);
    }

    #[test]
    fn names_without_end_are_kept_together() {
        let account = Account::new(SandboxId::new(), ProjectId::new(), Balance::default());
        for number in 0..MOST_MODELS {
            assert_eq!(account.booked_as(&number.to_string()), number.to_string());
        }
        assert_eq!(account.booked_as("one more"), OTHERS);
        assert_eq!(account.booked_as("0"), "0");
    }

    proptest! {
        /// However requests overlap: if none costs more than was held for it, the limit holds.
        #[test]
        fn a_limit_is_never_overrun(limit in 0..1000_i64, task in prop::option::of(0..1000_i64), steps in prop::collection::vec((0..300_i64, 0..=100_i64, any::<bool>()), 0..60)) {
            let mut balance = Balance { limit: Some(limit), task, spent: 0, reserved: 0 };
            let limit = task.map_or(limit, |task| task.min(limit));
            let mut open = Vec::new();
            for (most, percent, ends) in steps {
                if balance.reserve(most).is_ok() {
                    open.push((most, most * percent / 100));
                }
                if ends && !open.is_empty() {
                    let (held, cost) = open.remove(0);
                    balance.settle(held, cost);
                }
                prop_assert!(balance.spent + balance.reserved <= limit);
            }
            for (held, cost) in open {
                balance.settle(held, cost);
            }
            prop_assert!(balance.reserved == 0 && balance.spent <= limit);
        }
    }
}
