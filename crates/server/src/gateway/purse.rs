//! What the sandboxes of a project spend together, and what their project's budget leaves them.

use super::account::{Balance, Bound};
use super::refusal::{Refusal, Shortage};
use crate::state::App;
use atoll_core::budget::{Budget, Held, Per, Period};
use atoll_core::id::ProjectId;
use atoll_core::time::Timestamp;
use atoll_store::{Tx, budgets, projects};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What was spent in one kind of time.
#[derive(Debug, Clone, Copy)]
struct Tally {
    per: Per,
    period: Period,
    spent: i64,
}

/// A project's money. Every kind of time is counted, so that a budget can be set, and set for another time, while
/// requests are under way.
#[derive(Debug, Clone)]
pub struct Till {
    budget: Option<Budget>,
    tallies: Vec<Tally>,
    reserved: i64,
}

impl Till {
    pub fn new(budget: Option<Budget>, now: Timestamp, spent: impl Fn(Per) -> i64) -> Self {
        let tally = |per: &Per| Tally { per: *per, period: per.period(now), spent: spent(*per) };
        Self { budget, tallies: Per::ALL.iter().map(tally).collect(), reserved: 0 }
    }

    /// As it stands now: a new day or month begins with nothing spent.
    pub fn balance(&mut self, now: Timestamp) -> Balance {
        for tally in &mut self.tallies {
            if tally.period.is_over(now) {
                *tally = Tally { period: tally.per.period(now), spent: 0, ..*tally };
            }
        }
        let (limit, spent) = match &self.budget {
            Some(budget) => (Some(budget.micros()), self.tally(budget.per).map_or(0, |tally| tally.spent)),
            None => (None, 0),
        };
        Balance { limit, task: None, spent, reserved: self.reserved }
    }

    fn tally(&self, per: Per) -> Option<&Tally> {
        self.tallies.iter().find(|tally| tally.per == per)
    }

    pub fn hold(&mut self, most: i64) {
        self.reserved = self.reserved.saturating_add(most);
    }

    /// What it cost counts in the time in which the request ended.
    pub fn settle(&mut self, held: i64, cost: i64, now: Timestamp) {
        self.balance(now);
        self.reserved = self.reserved.saturating_sub(held);
        for tally in &mut self.tallies {
            tally.spent = tally.spent.saturating_add(cost);
        }
    }
}

/// Which of the two has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// The sandbox: its own limit or its task's.
    Own(Bound, i64),
    Project,
}

/// Holds the most that a request can cost with its sandbox and with its project, or with neither.
pub fn reserve(own: &mut Balance, till: &mut Till, most: i64, now: Timestamp) -> Result<(), Lack> {
    if let Some((bound, limit)) = own.lack(most) {
        return Err(Lack::Own(bound, limit));
    }
    if till.balance(now).lack(most).is_some() {
        return Err(Lack::Project);
    }
    own.hold(most);
    till.hold(most);
    Ok(())
}

/// One project's, as long as an account of one of its sandboxes is kept.
pub struct Purse {
    pub project: ProjectId,
    name: Mutex<String>,
    till: Mutex<Till>,
}

impl Purse {
    pub fn new(project: ProjectId, name: String, till: Till) -> Self {
        Self { project, name: Mutex::new(name), till: Mutex::new(till) }
    }

    /// Whoever needs a sandbox's balance, too, locks that one first.
    pub fn locked(&self) -> MutexGuard<'_, Till> {
        self.till.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn budget(&self) -> Option<Budget> {
        self.locked().budget
    }

    fn set(&self, name: String, budget: Option<Budget>) {
        *self.name.lock().unwrap_or_else(PoisonError::into_inner) = name;
        self.locked().budget = budget;
    }

    /// Why there is no room, for whoever asked.
    pub fn shortage(&self, till: &mut Till, most: i64, now: Timestamp) -> Refusal {
        let Balance { spent, reserved, .. } = till.balance(now);
        // Without one there is always room.
        let budget = till.budget.unwrap_or(Budget { usd: 0.0, per: Per::Ever });
        Refusal::ProjectBudget(Box::new(Shortage {
            project: self.project,
            name: self.name.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            held: Held::by(&budget, now),
            until: budget.per.period(now).until(),
            spent,
            reserved,
            most,
        }))
    }
}

#[derive(Default)]
struct Known {
    purses: HashMap<ProjectId, Arc<Purse>>,
    /// How often a project was changed: what was read before may be old.
    changes: u64,
}

#[derive(Default)]
pub struct Purses {
    known: Mutex<Known>,
    /// Who reads a project first also says first what was read.
    changing: tokio::sync::Mutex<()>,
}

/// Between two attempts to read a project that was changed.
const AGAIN: Duration = Duration::from_millis(200);
const ATTEMPTS: usize = 10;

impl Purses {
    fn locked(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn of(&self, app: &App, project: ProjectId) -> Result<Arc<Purse>, Refusal> {
        loop {
            let before = {
                let known = self.locked();
                if let Some(purse) = known.purses.get(&project) {
                    return Ok(Arc::clone(purse));
                }
                known.changes
            };
            let now = app.clock.now();
            let read = app.read(move |tx| Box::pin(async move { Ok(load(tx, project, now).await?) })).await;
            let made = read.map_err(|_| Refusal::Busy)?.ok_or(Refusal::BadKey)?;
            let mut known = self.locked();
            if known.changes == before {
                return Ok(Arc::clone(known.purses.entry(project).or_insert_with(|| Arc::new(made))));
            }
        }
    }

    /// A person has changed a project, perhaps its budget.
    pub async fn changed(&self, app: &App, project: ProjectId) {
        let _alone = self.changing.lock().await;
        for _ in 0..ATTEMPTS {
            let read = app.read(move |tx| Box::pin(async move { Ok(projects::get(tx, project).await?) })).await;
            if let Ok(row) = read {
                let mut known = self.locked();
                known.changes += 1;
                if let (Some(purse), Some(row)) = (known.purses.get(&project), row) {
                    purse.set(row.name, row.budget);
                }
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
        tracing::warn!(%project, "a changed project can't be read; its budget counts as it was until the server is started again");
    }

    /// Those that no account needs.
    pub fn tidy(&self) {
        self.locked().purses.retain(|_, purse| Arc::strong_count(purse) > 1);
    }
}

async fn load(tx: &mut dyn Tx, project: ProjectId, now: Timestamp) -> atoll_store::Result<Option<Purse>> {
    let Some(row) = projects::get(tx, project).await? else { return Ok(None) };
    let mut spent = HashMap::new();
    for per in Per::ALL {
        spent.insert(*per, budgets::spent(tx, project, &per.period(now)).await?);
    }
    let till = Till::new(row.budget, now, |per| spent.get(&per).copied().unwrap_or(0));
    Ok(Some(Purse::new(project, row.name, till)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn till(micros: i64, per: Per, now: Timestamp) -> Till {
        Till::new(Some(Budget { usd: micros as f64 / 1e6, per }), now, |_| 0)
    }

    #[test]
    fn a_request_is_held_with_both_or_with_neither() {
        let now = at("2026-11-16T10:00:00Z");
        let (mut own, mut shared) = (Balance { limit: Some(100), ..Balance::default() }, till(50, Per::Day, now));
        assert_eq!(reserve(&mut own, &mut shared, 60, now), Err(Lack::Project));
        assert_eq!((own.reserved, shared.reserved), (0, 0));
        assert_eq!(reserve(&mut own, &mut shared, 40, now), Ok(()));
        let mut other = Balance { limit: Some(5), ..Balance::default() };
        assert_eq!(reserve(&mut other, &mut shared, 6, now), Err(Lack::Own(Bound::Sandbox, 5)));
        let mut third = Balance::default();
        assert_eq!(reserve(&mut third, &mut shared, 11, now), Err(Lack::Project), "what another holds counts");
        shared.settle(40, 7, now);
        assert_eq!(reserve(&mut third, &mut shared, 43, now), Ok(()));
        assert_eq!((own.reserved, other.reserved, third.reserved, shared.reserved), (40, 0, 43, 43));
    }

    #[test]
    fn a_new_period_begins_with_nothing_spent() {
        let evening = at("2026-11-30T23:59:59Z");
        let spent = |per: Per| match per {
            Per::Day => 1,
            Per::Month => 20,
            Per::Ever => 300,
        };
        for (per, before, after) in [(Per::Day, 1, 0), (Per::Month, 20, 0), (Per::Ever, 300, 300)] {
            let mut till = Till::new(Some(Budget { usd: 1.0, per }), evening, spent);
            till.hold(9);
            assert_eq!(till.balance(evening).spent, before);
            let morning = evening + Duration::from_secs(1);
            assert_eq!(till.balance(morning).spent, after, "{per}");
            till.settle(9, 4, morning);
            assert_eq!(
                till.balance(morning),
                Balance { limit: Some(1_000_000), spent: after + 4, reserved: 0, task: None }
            );
            // A clock that is set back brings no money back.
            assert_eq!(till.balance(evening).spent, after + 4);
        }
    }

    #[test]
    fn a_budget_can_be_set_and_changed_while_requests_are_under_way() {
        let now = at("2026-11-16T10:00:00Z");
        let mut shared = Till::new(None, now, |_| 10);
        let mut own = Balance::default();
        assert_eq!(reserve(&mut own, &mut shared, 70, now), Ok(()));
        shared.budget = Some(Budget { usd: 0.0001, per: Per::Month });
        assert_eq!(reserve(&mut own, &mut shared, 21, now), Err(Lack::Project));
        assert_eq!(reserve(&mut own, &mut shared, 20, now), Ok(()));
        shared.settle(70, 5, now);
        shared.budget = Some(Budget { usd: 0.000_035, per: Per::Day });
        assert_eq!(shared.balance(now), Balance { limit: Some(35), spent: 15, reserved: 20, task: None });
        assert_eq!(reserve(&mut own, &mut shared, 1, now), Err(Lack::Project));
    }

    #[derive(Debug, Clone, Copy)]
    struct Step {
        sandbox: usize,
        most: i64,
        percent: i64,
        ends: bool,
        hours: u32,
    }

    fn step() -> impl Strategy<Value = Step> {
        let parts = (0..3_usize, 0..300_i64, 0..=100_i64, any::<bool>(), 0..4_u32);
        parts.prop_map(|(sandbox, most, percent, ends, hours)| Step { sandbox, most, percent, ends, hours })
    }

    proptest! {
        /// However the requests of three sandboxes overlap, and days pass: if none costs more than was held for it,
        /// neither a sandbox's limit nor the project's budget is overrun.
        #[test]
        fn no_limit_is_ever_overrun(
            limits in prop::array::uniform3((prop::option::of(0..1000_i64), prop::option::of(0..1000_i64))),
            budget in 1..1500_i64,
            per in prop::sample::select(Per::ALL.to_vec()),
            steps in prop::collection::vec(step(), 0..80),
        ) {
            let mut now = at("2026-10-30T20:00:00Z");
            let mut own = limits.map(|(limit, task)| Balance { limit, task, ..Balance::default() });
            let (mut shared, mut open) = (till(budget, per, now), Vec::new());
            // What was really paid, by the first day of its period.
            let mut paid: HashMap<Option<i64>, i64> = HashMap::new();
            for Step { sandbox, most, percent, ends, hours } in steps {
                now = now + HOUR * hours;
                let before = (own[sandbox], shared.reserved);
                if reserve(&mut own[sandbox], &mut shared, most, now).is_ok() {
                    open.push((sandbox, most, most * percent / 100));
                } else {
                    prop_assert_eq!((own[sandbox], shared.reserved), before);
                }
                if ends && !open.is_empty() {
                    let (sandbox, held, cost) = open.remove(0);
                    own[sandbox].settle(held, cost);
                    shared.settle(held, cost, now);
                    *paid.entry(per.period(now).first).or_default() += cost;
                }
                for balance in &own {
                    let most = [balance.limit, balance.task].into_iter().flatten().min();
                    prop_assert!(most.is_none_or(|most| balance.spent + balance.reserved <= most));
                }
                let balance = shared.balance(now);
                prop_assert_eq!(balance.reserved, own.iter().map(|one| one.reserved).sum::<i64>());
                prop_assert_eq!(balance.spent, paid.get(&per.period(now).first).copied().unwrap_or(0));
                prop_assert!(balance.spent + balance.reserved <= budget);
            }
            prop_assert!(paid.values().all(|paid| *paid <= budget));
        }
    }
}
