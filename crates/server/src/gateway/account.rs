//! What a sandbox has spent, what is held for requests under way, and whether there is enough for another one.

use super::hold::Room;
use super::purse::{self, Lack, Purse};
use super::refusal::Refusal;
use crate::egress::quiet::Quiet;
use atoll_core::budget::Held;
use atoll_core::id::SandboxId;
use atoll_core::limit::Limit;
use atoll_core::sandbox::Settings;
use atoll_core::time::Timestamp;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// One sandbox's, as long as anything of it is under way.
pub struct Account {
    pub sandbox: SandboxId,
    /// Its project's, which it shares with others.
    pub purse: Arc<Purse>,
    /// For what it sends.
    pub room: Room,
    balance: Mutex<Balance>,
    /// Those that figures are kept of by name.
    models: Mutex<BTreeSet<String>>,
    /// Refusals that were written to the log a moment ago.
    told: Mutex<Quiet>,
    /// What its agent is being held back by.
    stop: Mutex<Option<Stop>>,
}

/// Why nothing is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Its own limit is reached.
    Own,
    /// Its task's is, which was so much.
    Task(i64),
    /// Its project's budget is, as it was then.
    Project(Held),
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
    /// Whose limit has not enough for a request that can cost so much, and which it is.
    pub const fn lack(&self, most: i64) -> Option<(Bound, i64)> {
        let held = self.spent.saturating_add(self.reserved).saturating_add(most);
        match (self.task, self.limit) {
            // A task that is over is not helped by a higher limit of its sandbox.
            (Some(task), _) if held > task => Some((Bound::Task, task)),
            (_, Some(limit)) if held > limit => Some((Bound::Sandbox, limit)),
            (_, _) => None,
        }
    }

    pub const fn hold(&mut self, most: i64) {
        self.reserved = self.reserved.saturating_add(most);
    }

    /// The request is over: what it cost takes the place of what was held.
    pub const fn settle(&mut self, held: i64, cost: i64) {
        self.reserved = self.reserved.saturating_sub(held);
        self.spent = self.spent.saturating_add(cost);
    }
}

impl Account {
    pub fn new(sandbox: SandboxId, purse: Arc<Purse>, balance: Balance) -> Self {
        let balance = Mutex::new(balance);
        Self {
            sandbox,
            purse,
            room: Room::of_one(),
            balance,
            models: Mutex::default(),
            told: Mutex::default(),
            stop: Mutex::default(),
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
    pub fn is_news(&self, reason: &'static str, stop: Option<Stop>) -> Option<u64> {
        let whose = match stop {
            Some(Stop::Project(_)) => Limit::ProjectBudget.as_str(),
            Some(Stop::Own | Stop::Task(_)) | None => "",
        };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.note((whose.to_owned(), 0, reason), Instant::now())
    }

    /// Whether it is news that nothing is left: said once until there is more.
    pub fn runs_out(&self, stop: Stop) -> bool {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner).replace(stop) != Some(stop)
    }

    /// A request went out: there is something left. Or nobody could be told that there is not.
    pub fn passes(&self) {
        *self.stop.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// What makes it matter how much a request may cost.
    pub fn kept_by(&self) -> Option<Limit> {
        let Balance { limit, task, .. } = *self.locked();
        let own = limit.or(task).map(|_| Limit::CostUsd);
        own.or_else(|| self.purse.budget().map(|_| Limit::ProjectBudget))
    }

    /// It may have been changed since.
    pub fn set_limit(&self, limit: Option<i64>) {
        let before = std::mem::replace(&mut self.locked().limit, limit);
        if before != limit {
            self.passes();
        }
    }

    /// A task began, or is done.
    pub fn set_task(&self, task: Option<i64>) {
        let before = std::mem::replace(&mut self.locked().task, task);
        if before != task {
            self.passes();
        }
    }

    /// With the sandbox and with its project, or with neither.
    pub fn reserve(&self, most: i64, now: Timestamp) -> Result<(), Refusal> {
        let mut balance = self.locked();
        let mut till = self.purse.locked();
        match purse::reserve(&mut balance, &mut till, most, now) {
            Ok(()) => Ok(()),
            Err(Lack::Own(bound, limit)) => {
                let Balance { spent, reserved, .. } = *balance;
                Err(Refusal::Budget { sandbox: self.sandbox, bound, limit, spent, reserved, most })
            }
            Err(Lack::Project) => Err(self.purse.shortage(&mut till, most, now)),
        }
    }

    pub fn settle(&self, held: i64, cost: i64, now: Timestamp) {
        self.locked().settle(held, cost);
        self.purse.locked().settle(held, cost, now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::purse::Till;
    use super::*;
    use atoll_core::budget::Per;
    use atoll_core::id::ProjectId;

    fn account() -> Account {
        let now = Timestamp::from_micros(0);
        let purse = Purse::new(ProjectId::new(), "parser".to_owned(), Till::new(None, now, |_| 0));
        Account::new(SandboxId::new(), Arc::new(purse), Balance::default())
    }

    fn reserve(balance: &mut Balance, most: i64) -> bool {
        let has_room = balance.lack(most).is_none();
        if has_room {
            balance.hold(most);
        }
        has_room
    }

    #[test]
    fn what_is_held_counts_until_it_is_settled() {
        let mut balance = Balance { limit: Some(100), spent: 10, ..Balance::default() };
        assert!(reserve(&mut balance, 60));
        assert!(!reserve(&mut balance, 31), "two at once can't have more than there is");
        assert!(reserve(&mut balance, 30));
        balance.settle(60, 5);
        assert_eq!(balance, Balance { limit: Some(100), spent: 15, reserved: 30, task: None });
        assert!(reserve(&mut balance, 55) && !reserve(&mut balance, 1));
        let mut free = Balance::default();
        assert!(reserve(&mut free, i64::MAX) && reserve(&mut free, i64::MAX));
    }

    #[test]
    fn a_task_s_own_limit_holds_beside_the_sandbox_s() {
        let mut balance = Balance { limit: Some(100), task: Some(50), spent: 10, reserved: 0 };
        assert_eq!(balance.lack(41), Some((Bound::Task, 50)));
        assert_eq!(balance.lack(95), Some((Bound::Task, 50)), "a higher limit of the sandbox would not help");
        assert!(reserve(&mut balance, 40));
        balance.task = None;
        assert_eq!(balance.lack(51), Some((Bound::Sandbox, 100)));
    }

    #[test]
    fn refusals_in_turn_are_told_once_each() {
        let account = account();
        let told = (0..100).filter_map(|at| account.is_news(if at % 2 == 0 { "key" } else { "budget" }, None)).count();
        assert_eq!(told, 2);
        let stop = Stop::Project(Held { micros: 5, per: Per::Day, first: Some(1) });
        assert_eq!(account.is_news("budget", Some(stop)), Some(1), "the project's is another one");
    }

    #[test]
    fn an_agent_is_held_back_once_until_there_is_more() {
        let account = account();
        let day = |first| Stop::Project(Held { micros: 5, per: Per::Day, first: Some(first) });
        assert!(account.runs_out(day(1)) && !account.runs_out(day(1)));
        assert!(account.runs_out(day(2)), "a new day is spent out, too");
        account.passes();
        assert!(account.runs_out(day(2)) && account.runs_out(Stop::Own) && !account.runs_out(Stop::Own));
        account.set_limit(Some(7));
        assert!(account.runs_out(Stop::Own));
    }

    #[test]
    fn names_without_end_are_kept_together() {
        let account = account();
        for number in 0..MOST_MODELS {
            assert_eq!(account.booked_as(&number.to_string()), number.to_string());
        }
        assert_eq!(account.booked_as("one more"), OTHERS);
        assert_eq!(account.booked_as("0"), "0");
    }
}
