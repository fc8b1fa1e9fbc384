//! The model costs of a project's sandboxes, and the project's budget.

use super::gateway_refusal::{GatewayRefusal, ProjectShortage};
use super::sandbox_budget::{Balance, CostLimitKind};
use crate::state::App;
use atoll_core::budget::{Budget, BudgetPause, BudgetPeriod, Period};
use atoll_core::id::ProjectId;
use atoll_core::time::Timestamp;
use atoll_store::{Tx, budgets, projects};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The cost in the current period of one length.
#[derive(Debug, Clone, Copy)]
struct PeriodTotal {
    per: BudgetPeriod,
    period: Period,
    spent: i64,
}

/// The costs of a project, totalled for every period length, so that a budget can change while requests are in flight.
#[derive(Debug, Clone)]
pub struct ProjectLedger {
    budget: Option<Budget>,
    totals: Vec<PeriodTotal>,
    reserved: i64,
}

impl ProjectLedger {
    pub fn new(budget: Option<Budget>, now: Timestamp, spent: impl Fn(BudgetPeriod) -> i64) -> Self {
        let tally = |per: &BudgetPeriod| PeriodTotal { per: *per, period: per.period_at(now), spent: spent(*per) };
        Self { budget, totals: BudgetPeriod::ALL.iter().map(tally).collect(), reserved: 0 }
    }

    /// The current balance; a new day or month starts at zero.
    pub fn current_balance(&mut self, now: Timestamp) -> Balance {
        for tally in &mut self.totals {
            if tally.period.is_over(now) {
                *tally = PeriodTotal { period: tally.per.period_at(now), spent: 0, ..*tally };
            }
        }
        let (limit, spent) = match &self.budget {
            Some(budget) => (Some(budget.limit_micros()), self.find_total(budget.per).map_or(0, |tally| tally.spent)),
            None => (None, 0),
        };
        Balance { limit, task: None, spent, reserved: self.reserved }
    }

    fn find_total(&self, per: BudgetPeriod) -> Option<&PeriodTotal> {
        self.totals.iter().find(|tally| tally.per == per)
    }

    pub fn reserve(&mut self, most: i64) {
        self.reserved = self.reserved.saturating_add(most);
    }

    /// Charges the cost to the period in which the request ended.
    pub fn settle(&mut self, reserved: i64, cost: i64, now: Timestamp) {
        self.current_balance(now);
        self.reserved = self.reserved.saturating_sub(reserved);
        for tally in &mut self.totals {
            tally.spent = tally.spent.saturating_add(cost);
        }
    }
}

/// The budget that a request would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetShortage {
    /// The sandbox's limit or its task's.
    Own(CostLimitKind, i64),
    Project,
}

/// Reserves the maximum cost of a request with its sandbox and its project, or with neither.
pub fn reserve_both(
    own: &mut Balance,
    ledger: &mut ProjectLedger,
    most: i64,
    now: Timestamp,
) -> Result<(), BudgetShortage> {
    if let Some((bound, limit)) = own.find_shortage(most) {
        return Err(BudgetShortage::Own(bound, limit));
    }
    if ledger.current_balance(now).find_shortage(most).is_some() {
        return Err(BudgetShortage::Project);
    }
    own.reserve(most);
    ledger.reserve(most);
    Ok(())
}

/// The cached budget of one project.
pub struct ProjectBudget {
    pub project: ProjectId,
    name: Mutex<String>,
    ledger: Mutex<ProjectLedger>,
}

impl ProjectBudget {
    pub fn new(project: ProjectId, name: String, ledger: ProjectLedger) -> Self {
        Self { project, name: Mutex::new(name), ledger: Mutex::new(ledger) }
    }

    /// Lock order: a sandbox's balance first, then the ledger.
    pub fn lock_ledger(&self) -> MutexGuard<'_, ProjectLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn budget(&self) -> Option<Budget> {
        self.lock_ledger().budget
    }

    fn update(&self, name: String, budget: Option<Budget>) {
        *self.name.lock().unwrap_or_else(PoisonError::into_inner) = name;
        self.lock_ledger().budget = budget;
    }

    /// The refusal of a request that exceeds the budget.
    pub fn shortage_refusal(&self, ledger: &mut ProjectLedger, most: i64, now: Timestamp) -> GatewayRefusal {
        let Balance { spent, reserved, .. } = ledger.current_balance(now);
        // Unreachable without a budget.
        let budget = ledger.budget.unwrap_or(Budget { usd: 0.0, per: BudgetPeriod::Ever });
        GatewayRefusal::ProjectBudget(Box::new(ProjectShortage {
            project: self.project,
            name: self.name.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            budget: BudgetPause::from_budget(&budget, now),
            until: budget.per.period_at(now).ends_at(),
            spent,
            reserved,
            most,
        }))
    }
}

#[derive(Default)]
struct CachedBudgets {
    budgets: HashMap<ProjectId, Arc<ProjectBudget>>,
    /// Number of reloads; a read that began before a reload is stale.
    changes: u64,
}

#[derive(Default)]
pub struct ProjectBudgets {
    cache: Mutex<CachedBudgets>,
    /// Serializes reloads, so that they apply in the order of their reads.
    reload_lock: tokio::sync::Mutex<()>,
}

/// Delay between attempts to reload a project.
const RETRY_DELAY: Duration = Duration::from_millis(200);
const MAX_RELOAD_ATTEMPTS: usize = 10;

impl ProjectBudgets {
    fn lock_cache(&self) -> MutexGuard<'_, CachedBudgets> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn project_budget(&self, app: &App, project: ProjectId) -> Result<Arc<ProjectBudget>, GatewayRefusal> {
        loop {
            let before = {
                let known = self.lock_cache();
                if let Some(budget) = known.budgets.get(&project) {
                    return Ok(Arc::clone(budget));
                }
                known.changes
            };
            let now = app.clock.now();
            let read = app.read(async move |tx| Ok(load_budget(tx, project, now).await?)).await;
            let new_budget = read.map_err(|_| GatewayRefusal::Busy)?.ok_or(GatewayRefusal::WrongPlaceholder)?;
            let mut known = self.lock_cache();
            if known.changes == before {
                return Ok(Arc::clone(known.budgets.entry(project).or_insert_with(|| Arc::new(new_budget))));
            }
        }
    }

    /// Reloads a changed project.
    pub async fn reload_project(&self, app: &App, project: ProjectId) {
        let _alone = self.reload_lock.lock().await;
        for _ in 0..MAX_RELOAD_ATTEMPTS {
            let read = app.read(async move |tx| Ok(projects::find_project(tx, project).await?)).await;
            if let Ok(row) = read {
                let mut known = self.lock_cache();
                known.changes += 1;
                if let (Some(budget), Some(row)) = (known.budgets.get(&project), row) {
                    budget.update(row.name, row.budget);
                }
                return;
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
        tracing::warn!(%project, "failed to reload a changed project; its old budget applies until the server restarts");
    }

    /// Drops budgets that no sandbox uses.
    pub fn prune(&self) {
        self.lock_cache().budgets.retain(|_, budget| Arc::strong_count(budget) > 1);
    }
}

async fn load_budget(
    tx: &mut dyn Tx,
    project: ProjectId,
    now: Timestamp,
) -> atoll_store::Result<Option<ProjectBudget>> {
    let Some(row) = projects::find_project(tx, project).await? else { return Ok(None) };
    let mut spent = HashMap::new();
    for per in BudgetPeriod::ALL {
        spent.insert(*per, budgets::sum_costs(tx, project, &per.period_at(now)).await?);
    }
    let ledger = ProjectLedger::new(row.budget, now, |per| spent.get(&per).copied().unwrap_or(0));
    Ok(Some(ProjectBudget::new(project, row.name, ledger)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn till(micros: i64, per: BudgetPeriod, now: Timestamp) -> ProjectLedger {
        ProjectLedger::new(Some(Budget { usd: micros as f64 / 1e6, per }), now, |_| 0)
    }

    #[test]
    fn reserves_with_sandbox_and_project_or_neither() {
        let now = at("2026-11-16T10:00:00Z");
        let (mut own, mut shared) =
            (Balance { limit: Some(100), ..Balance::default() }, till(50, BudgetPeriod::Day, now));
        assert_eq!(reserve_both(&mut own, &mut shared, 60, now), Err(BudgetShortage::Project));
        assert_eq!((own.reserved, shared.reserved), (0, 0));
        assert_eq!(reserve_both(&mut own, &mut shared, 40, now), Ok(()));
        let mut other = Balance { limit: Some(5), ..Balance::default() };
        assert_eq!(reserve_both(&mut other, &mut shared, 6, now), Err(BudgetShortage::Own(CostLimitKind::Sandbox, 5)));
        let mut third = Balance::default();
        assert_eq!(
            reserve_both(&mut third, &mut shared, 11, now),
            Err(BudgetShortage::Project),
            "the reservations of other sandboxes count"
        );
        shared.settle(40, 7, now);
        assert_eq!(reserve_both(&mut third, &mut shared, 43, now), Ok(()));
        assert_eq!((own.reserved, other.reserved, third.reserved, shared.reserved), (40, 0, 43, 43));
    }

    #[test]
    fn a_new_period_starts_at_zero() {
        let evening = at("2026-11-30T23:59:59Z");
        let spent = |per: BudgetPeriod| match per {
            BudgetPeriod::Day => 1,
            BudgetPeriod::Month => 20,
            BudgetPeriod::Ever => 300,
        };
        for (per, before, after) in
            [(BudgetPeriod::Day, 1, 0), (BudgetPeriod::Month, 20, 0), (BudgetPeriod::Ever, 300, 300)]
        {
            let mut ledger = ProjectLedger::new(Some(Budget { usd: 1.0, per }), evening, spent);
            ledger.reserve(9);
            assert_eq!(ledger.current_balance(evening).spent, before);
            let morning = evening + Duration::from_secs(1);
            assert_eq!(ledger.current_balance(morning).spent, after, "{per}");
            ledger.settle(9, 4, morning);
            assert_eq!(
                ledger.current_balance(morning),
                Balance { limit: Some(1_000_000), spent: after + 4, reserved: 0, task: None }
            );
            // A clock that moves backwards does not restore the budget.
            assert_eq!(ledger.current_balance(evening).spent, after + 4);
        }
    }

    #[test]
    fn a_budget_can_change_while_requests_are_in_flight() {
        let now = at("2026-11-16T10:00:00Z");
        let mut shared = ProjectLedger::new(None, now, |_| 10);
        let mut own = Balance::default();
        assert_eq!(reserve_both(&mut own, &mut shared, 70, now), Ok(()));
        shared.budget = Some(Budget { usd: 0.0001, per: BudgetPeriod::Month });
        assert_eq!(reserve_both(&mut own, &mut shared, 21, now), Err(BudgetShortage::Project));
        assert_eq!(reserve_both(&mut own, &mut shared, 20, now), Ok(()));
        shared.settle(70, 5, now);
        shared.budget = Some(Budget { usd: 0.000_035, per: BudgetPeriod::Day });
        assert_eq!(shared.current_balance(now), Balance { limit: Some(35), spent: 15, reserved: 20, task: None });
        assert_eq!(reserve_both(&mut own, &mut shared, 1, now), Err(BudgetShortage::Project));
    }

    #[derive(Debug, Clone, Copy)]
    struct BudgetStep {
        sandbox: usize,
        most: i64,
        percent: i64,
        ends: bool,
        hours: u32,
    }

    fn step() -> impl Strategy<Value = BudgetStep> {
        let parts = (0..3_usize, 0..300_i64, 0..=100_i64, any::<bool>(), 0..4_u32);
        parts.prop_map(|(sandbox, most, percent, ends, hours)| BudgetStep { sandbox, most, percent, ends, hours })
    }

    proptest! {
        /// Requests of three sandboxes overlap while days pass. If none costs more than its reservation, no limit and no
        /// budget is exceeded.
        #[test]
        fn no_limit_is_ever_exceeded(
            limits in prop::array::uniform3((prop::option::of(0..1000_i64), prop::option::of(0..1000_i64))),
            budget in 1..1500_i64,
            per in prop::sample::select(BudgetPeriod::ALL.to_vec()),
            steps in prop::collection::vec(step(), 0..80),
        ) {
            let mut now = at("2026-10-30T20:00:00Z");
            let mut own = limits.map(|(limit, task)| Balance { limit, task, ..Balance::default() });
            let (mut shared, mut open) = (till(budget, per, now), Vec::new());
            // Actual cost by the first day of the period.
            let mut paid: HashMap<Option<i64>, i64> = HashMap::new();
            for BudgetStep { sandbox, most, percent, ends, hours } in steps {
                now = now + HOUR * hours;
                let before = (own[sandbox], shared.reserved);
                if reserve_both(&mut own[sandbox], &mut shared, most, now).is_ok() {
                    open.push((sandbox, most, most * percent / 100));
                } else {
                    prop_assert_eq!((own[sandbox], shared.reserved), before);
                }
                if ends && !open.is_empty() {
                    let (sandbox, reserved, cost) = open.remove(0);
                    own[sandbox].settle(reserved, cost);
                    shared.settle(reserved, cost, now);
                    *paid.entry(per.period_at(now).first_day).or_default() += cost;
                }
                for balance in &own {
                    let most = [balance.limit, balance.task].into_iter().flatten().min();
                    prop_assert!(most.is_none_or(|most| balance.spent + balance.reserved <= most));
                }
                let balance = shared.current_balance(now);
                prop_assert_eq!(balance.reserved, own.iter().map(|one| one.reserved).sum::<i64>());
                prop_assert_eq!(balance.spent, paid.get(&per.period_at(now).first_day).copied().unwrap_or(0));
                prop_assert!(balance.spent + balance.reserved <= budget);
            }
            prop_assert!(paid.values().all(|paid| *paid <= budget));
        }
    }
}
