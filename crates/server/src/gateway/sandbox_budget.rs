//! The model costs of a sandbox: spent, reserved for requests in flight, and limited.

use super::body_buffer::BufferSpace;
use super::gateway_refusal::GatewayRefusal;
use super::project_budget::{self, BudgetShortage, ProjectBudget};
use super::usage_report::{FinishedRequest, UsageReportTimes};
use crate::egress::refusal_throttle::RefusalThrottle;
use atoll_core::budget::BudgetPause;
use atoll_core::id::SandboxId;
use atoll_core::limit::Limit;
use atoll_core::sandbox::Settings;
use atoll_core::time::Timestamp;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The cached balance of one sandbox.
pub struct SandboxBudget {
    pub sandbox: SandboxId,
    /// The project's budget, which the project's sandboxes share.
    pub project: Arc<ProjectBudget>,
    /// Memory for the request bodies of this sandbox.
    pub buffer_space: BufferSpace,
    balance: Mutex<Balance>,
    /// Models that are metered by name.
    models: Mutex<BTreeSet<String>>,
    /// Models whose assumed price was reported.
    assumed: Mutex<BTreeSet<String>>,
    /// Responses that the gateway reads although their clients are gone.
    unclaimed: Arc<Semaphore>,
    /// Refusals that were logged recently.
    throttle: Mutex<RefusalThrottle>,
    /// The limit that pauses the agent.
    exhausted: Mutex<Option<Exhausted>>,
    usage_reports: Mutex<UsageReportTimes>,
}

/// A limit that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exhausted {
    /// `limits.cost_usd` of the sandbox.
    SandboxLimit,
    /// `continuous.cost_usd` of the task, with its amount.
    TaskLimit(i64),
    /// The project's budget at that time.
    ProjectBudget(BudgetPause),
}

/// Bounds the table, since a sandbox can send any model name.
const MAX_MODEL_NAMES: usize = 32;
const MAX_MODEL_NAME_BYTES: usize = 200;
/// Further responses without a client are cancelled and charged what was reserved.
const MAX_UNCLAIMED_RESPONSES: usize = 16;
const OTHER_MODELS: &str = "other models";

/// Amounts in millionths of a dollar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Balance {
    pub limit: Option<i64>,
    /// Cost limit of the continuous task.
    pub task: Option<i64>,
    pub spent: i64,
    pub reserved: i64,
}

/// The limit that a request would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostLimitKind {
    /// `limits.cost_usd`: the agent is paused until the limit is raised.
    Sandbox,
    /// `continuous.cost_usd`: the task ends.
    Task,
}

pub fn cost_limit(settings: &Settings) -> Option<i64> {
    settings.limits.as_ref().and_then(|limits| limits.cost_usd).map(to_micros)
}

pub fn to_micros(dollars: f64) -> i64 {
    (dollars * 1e6) as i64
}

impl Balance {
    /// The limit that a request of this cost would exceed.
    pub const fn find_shortage(&self, most: i64) -> Option<(CostLimitKind, i64)> {
        let total = self.spent.saturating_add(self.reserved).saturating_add(most);
        match (self.task, self.limit) {
            // Checked first: a higher sandbox limit does not help a task that is over.
            (Some(task), _) if total > task => Some((CostLimitKind::Task, task)),
            (_, Some(limit)) if total > limit => Some((CostLimitKind::Sandbox, limit)),
            (_, _) => None,
        }
    }

    pub const fn reserve(&mut self, most: i64) {
        self.reserved = self.reserved.saturating_add(most);
    }

    /// Replaces the reservation of a finished request with its cost.
    pub const fn settle(&mut self, reserved: i64, cost: i64) {
        self.reserved = self.reserved.saturating_sub(reserved);
        self.spent = self.spent.saturating_add(cost);
    }
}

impl SandboxBudget {
    pub fn new(sandbox: SandboxId, project: Arc<ProjectBudget>, balance: Balance) -> Self {
        let balance = Mutex::new(balance);
        Self {
            sandbox,
            project,
            buffer_space: BufferSpace::for_sandbox(),
            balance,
            models: Mutex::default(),
            assumed: Mutex::default(),
            unclaimed: Arc::new(Semaphore::new(MAX_UNCLAIMED_RESPONSES)),
            throttle: Mutex::default(),
            exhausted: Mutex::default(),
            usage_reports: Mutex::default(),
        }
    }

    fn lock_balance(&self) -> MutexGuard<'_, Balance> {
        self.balance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name under which a model is metered; further models share one name.
    pub fn metered_name(&self, model: &str) -> String {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !models.contains(model);
        if is_new
            && (models.len() >= MAX_MODEL_NAMES
                || model.len() > MAX_MODEL_NAME_BYTES
                || model.chars().any(char::is_control))
        {
            return OTHER_MODELS.to_owned();
        }
        if is_new {
            models.insert(model.to_owned());
        }
        model.to_owned()
    }

    /// Returns true the first time that the price of a model is assumed. Metered names are bounded.
    pub fn is_first_assumption(&self, metered_name: &str) -> bool {
        self.assumed.lock().unwrap_or_else(PoisonError::into_inner).insert(metered_name.to_owned())
    }

    /// Counts a request. Returns true if an event about the use of models is due.
    pub fn is_usage_report_due(&self, request: FinishedRequest) -> bool {
        self.usage_reports.lock().unwrap_or_else(PoisonError::into_inner).count_request(request)
    }

    /// The right to read a response whose client is gone, if there is one left.
    pub fn unclaimed_slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.unclaimed).try_acquire_owned().ok()
    }

    /// Counts a refusal. Returns the number since the last report, or `None` while it is throttled.
    pub fn count_refusal(&self, reason: &'static str, stop: Option<Exhausted>) -> Option<u64> {
        let subject = match stop {
            Some(Exhausted::ProjectBudget(_)) => Limit::ProjectBudget.as_str(),
            Some(Exhausted::SandboxLimit | Exhausted::TaskLimit(_)) | None => "",
        };
        let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
        throttle.count_occurrence((subject.to_owned(), 0, reason), Instant::now())
    }

    /// Records an exhausted limit. Returns true the first time.
    pub fn mark_exhausted(&self, stop: Exhausted) -> bool {
        self.exhausted.lock().unwrap_or_else(PoisonError::into_inner).replace(stop) != Some(stop)
    }

    /// Forgets the exhausted limit, so that it is reported again.
    pub fn clear_exhausted(&self) {
        *self.exhausted.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The kind of cost limit that applies, if any.
    pub fn cost_limit_kind(&self) -> Option<Limit> {
        let Balance { limit, task, .. } = *self.lock_balance();
        let own = limit.or(task).map(|_| Limit::CostUsd);
        own.or_else(|| self.project.budget().map(|_| Limit::ProjectBudget))
    }

    pub fn set_limit(&self, limit: Option<i64>) {
        let before = std::mem::replace(&mut self.lock_balance().limit, limit);
        if before != limit {
            self.clear_exhausted();
        }
    }

    pub fn set_task_limit(&self, task: Option<i64>) {
        let before = std::mem::replace(&mut self.lock_balance().task, task);
        if before != task {
            self.clear_exhausted();
        }
    }

    /// Reserves a cost with the sandbox and with its project, or with neither.
    pub fn reserve(&self, most: i64, now: Timestamp) -> Result<(), GatewayRefusal> {
        let mut balance = self.lock_balance();
        let mut ledger = self.project.lock_ledger();
        match project_budget::reserve_both(&mut balance, &mut ledger, most, now) {
            Ok(()) => Ok(()),
            Err(BudgetShortage::Own(bound, limit)) => {
                let Balance { spent, reserved, .. } = *balance;
                Err(GatewayRefusal::Budget {
                    sandbox: self.sandbox,
                    limit_kind: bound,
                    limit,
                    spent,
                    reserved,
                    max_cost: most,
                })
            }
            Err(BudgetShortage::Project) => Err(self.project.shortage_refusal(&mut ledger, most, now)),
        }
    }

    pub fn settle(&self, reserved: i64, cost: i64, now: Timestamp) {
        self.lock_balance().settle(reserved, cost);
        self.project.lock_ledger().settle(reserved, cost, now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::project_budget::ProjectLedger;
    use super::*;
    use atoll_core::budget::BudgetPeriod;
    use atoll_core::id::ProjectId;

    fn account() -> SandboxBudget {
        let now = Timestamp::from_micros(0);
        let budget = ProjectBudget::new(ProjectId::new(), "parser".to_owned(), ProjectLedger::new(None, now, |_| 0));
        SandboxBudget::new(SandboxId::new(), Arc::new(budget), Balance::default())
    }

    fn reserve(balance: &mut Balance, most: i64) -> bool {
        let has_room = balance.find_shortage(most).is_none();
        if has_room {
            balance.reserve(most);
        }
        has_room
    }

    #[test]
    fn reservations_count_until_they_are_settled() {
        let mut balance = Balance { limit: Some(100), spent: 10, ..Balance::default() };
        assert!(reserve(&mut balance, 60));
        assert!(!reserve(&mut balance, 31), "two at once cannot have more than there is");
        assert!(reserve(&mut balance, 30));
        balance.settle(60, 5);
        assert_eq!(balance, Balance { limit: Some(100), spent: 15, reserved: 30, task: None });
        assert!(reserve(&mut balance, 55) && !reserve(&mut balance, 1));
        let mut free = Balance::default();
        assert!(reserve(&mut free, i64::MAX) && reserve(&mut free, i64::MAX));
    }

    #[test]
    fn a_task_limit_applies_besides_the_sandbox_limit() {
        let mut balance = Balance { limit: Some(100), task: Some(50), spent: 10, reserved: 0 };
        assert_eq!(balance.find_shortage(41), Some((CostLimitKind::Task, 50)));
        assert_eq!(balance.find_shortage(95), Some((CostLimitKind::Task, 50)), "a higher sandbox limit would not help");
        assert!(reserve(&mut balance, 40));
        balance.task = None;
        assert_eq!(balance.find_shortage(51), Some((CostLimitKind::Sandbox, 100)));
    }

    #[test]
    fn alternating_refusals_are_reported_once_each() {
        let account = account();
        let report_count =
            (0..100).filter_map(|at| account.count_refusal(if at % 2 == 0 { "key" } else { "budget" }, None)).count();
        assert_eq!(report_count, 2);
        let stop = Exhausted::ProjectBudget(BudgetPause { micros: 5, per: BudgetPeriod::Day, first: Some(1) });
        assert_eq!(account.count_refusal("budget", Some(stop)), Some(1), "the project's budget is reported separately");
    }

    #[test]
    fn exhaustion_is_reported_once_until_the_limit_changes() {
        let account = account();
        let day =
            |first| Exhausted::ProjectBudget(BudgetPause { micros: 5, per: BudgetPeriod::Day, first: Some(first) });
        assert!(account.mark_exhausted(day(1)) && !account.mark_exhausted(day(1)));
        assert!(account.mark_exhausted(day(2)), "a new day is reported again");
        account.clear_exhausted();
        assert!(
            account.mark_exhausted(day(2))
                && account.mark_exhausted(Exhausted::SandboxLimit)
                && !account.mark_exhausted(Exhausted::SandboxLimit)
        );
        account.set_limit(Some(7));
        assert!(account.mark_exhausted(Exhausted::SandboxLimit));
    }

    #[test]
    fn excess_model_names_share_one_name() {
        let account = account();
        for number in 0..MAX_MODEL_NAMES {
            assert_eq!(account.metered_name(&number.to_string()), number.to_string());
        }
        assert_eq!(account.metered_name("one more"), OTHER_MODELS);
        assert_eq!(account.metered_name("0"), "0");
    }
}
