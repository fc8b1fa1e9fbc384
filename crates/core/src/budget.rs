//! Project budgets: spending on models per period.

use crate::bounds::{OutOfBounds, reject_field};
use crate::string_enum;
use crate::time::Timestamp;
use jiff::civil::{Date, date};
use serde::{Deserialize, Serialize};

string_enum! {
    /// Period of a budget: a calendar day or month in UTC, or unlimited.
    #[derive(Default)]
    "budget period"
    BudgetPeriod { Day = "day", #[default] Month = "month", Ever = "ever" }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// In US dollars.
    pub usd: f64,
    #[serde(default)]
    pub per: BudgetPeriod,
}

/// Days since 1970-01-01.
pub type DayNumber = i64;

const MICROS_PER_DAY: i64 = 86_400_000_000;
const EPOCH: Date = date(1970, 1, 1);

pub const fn day_number(time: Timestamp) -> DayNumber {
    time.as_micros().div_euclid(MICROS_PER_DAY)
}

const fn start_of_day(day: DayNumber) -> Timestamp {
    Timestamp::from_micros(day.saturating_mul(MICROS_PER_DAY))
}

fn date_of_day(day: DayNumber) -> Date {
    let days = jiff::Span::new().try_days(day).unwrap_or_default();
    EPOCH.checked_add(days).unwrap_or(EPOCH)
}

fn day_of_date(date: Date) -> DayNumber {
    date.duration_since(EPOCH).as_hours().div_euclid(24)
}

/// A range of whole days.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// Absent: no start.
    pub first_day: Option<DayNumber>,
    /// The day after the last one.
    pub end_day: Option<DayNumber>,
}

impl Period {
    pub fn starts_at(&self) -> Option<Timestamp> {
        self.first_day.map(start_of_day)
    }

    pub fn ends_at(&self) -> Option<Timestamp> {
        self.end_day.map(start_of_day)
    }

    /// Returns true once a later period has started. Setting the clock back does not return to an earlier period.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.ends_at().is_some_and(|until| until <= now)
    }
}

impl BudgetPeriod {
    /// Returns the period that contains `now`.
    pub fn period_at(self, now: Timestamp) -> Period {
        let day = day_number(now);
        match self {
            Self::Day => Period { first_day: Some(day), end_day: Some(day.saturating_add(1)) },
            Self::Month => {
                let today = date_of_day(day);
                let last = day_of_date(today.last_of_month());
                Period { first_day: Some(day_of_date(today.first_of_month())), end_day: Some(last.saturating_add(1)) }
            }
            Self::Ever => Period { first_day: None, end_day: None },
        }
    }
}

/// Plausible range of a budget: the minimum is the smallest amount that is counted.
const MAX_BUDGET_USD: f64 = 1e9;
const MIN_BUDGET_USD: f64 = 1e-6;

impl Budget {
    /// In millionths of a dollar.
    pub fn limit_micros(&self) -> i64 {
        (self.usd * 1e6).round() as i64
    }

    pub fn check_bounds(&self, field: &str) -> Result<(), OutOfBounds> {
        if (MIN_BUDGET_USD..=MAX_BUDGET_USD).contains(&self.usd) {
            return Ok(());
        }
        reject_field(
            &format!("{field}.usd"),
            format!(
                "must be an amount of US dollars from {MIN_BUDGET_USD} to {MAX_BUDGET_USD}; set the budget to `null` to remove it"
            ),
        )
    }
}

/// The budget that paused an agent, as it was at that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetPause {
    pub micros: i64,
    pub per: BudgetPeriod,
    pub first: Option<DayNumber>,
}

impl BudgetPause {
    pub fn from_budget(budget: &Budget, now: Timestamp) -> Self {
        Self { micros: budget.limit_micros(), per: budget.per, first: budget.per.period_at(now).first_day }
    }

    /// Returns true if more money is available than at the pause: a larger budget, no budget, or a new period.
    ///
    /// The next request decides if it is enough. A request too large for the same budget must not be retried.
    pub fn may_resume(&self, budget: Option<&Budget>, now: Timestamp) -> bool {
        let Some(budget) = budget else { return true };
        budget.limit_micros() > self.micros
            || budget.per != self.per
            || budget.per.period_at(now).first_day.is_some_and(|first| Some(first) > self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn ends(period: Period) -> (String, String) {
        let word = |time: Option<Timestamp>| time.map_or_else(|| "-".to_owned(), |time| time.to_string());
        (word(period.starts_at()), word(period.ends_at()))
    }

    #[test]
    fn periods_are_calendar_days_and_months() {
        for (per, now, from, until) in [
            (BudgetPeriod::Day, "2026-11-16T00:00:00Z", "2026-11-16", "2026-11-17"),
            (BudgetPeriod::Day, "2026-11-16T23:59:59.999999Z", "2026-11-16", "2026-11-17"),
            (BudgetPeriod::Day, "2026-12-31T12:00:00Z", "2026-12-31", "2027-01-01"),
            (BudgetPeriod::Day, "2026-03-29T01:30:00+02:00", "2026-03-28", "2026-03-29"),
            (BudgetPeriod::Month, "2026-11-01T00:00:00Z", "2026-11-01", "2026-12-01"),
            (BudgetPeriod::Month, "2026-11-30T23:59:59.999999Z", "2026-11-01", "2026-12-01"),
            (BudgetPeriod::Month, "2026-12-31T23:59:59Z", "2026-12-01", "2027-01-01"),
            (BudgetPeriod::Month, "2028-02-29T08:00:00Z", "2028-02-01", "2028-03-01"),
            (BudgetPeriod::Month, "2027-02-28T08:00:00Z", "2027-02-01", "2027-03-01"),
            (BudgetPeriod::Month, "1969-12-31T23:00:00Z", "1969-12-01", "1970-01-01"),
        ] {
            let whole = |day: &str| format!("{day}T00:00:00.000000Z");
            assert_eq!(ends(per.period_at(at(now))), (whole(from), whole(until)), "{per} {now}");
        }
        assert_eq!(BudgetPeriod::Ever.period_at(at("2026-11-16T00:00:00Z")), Period { first_day: None, end_day: None });
    }

    #[test]
    fn a_period_ends_at_its_end() {
        let period = BudgetPeriod::Month.period_at(at("2026-11-16T00:00:00Z"));
        assert!(!period.is_over(at("2026-11-30T23:59:59.999999Z")) && period.is_over(at("2026-12-01T00:00:00Z")));
        assert!(!period.is_over(at("2026-10-31T00:00:00Z")), "the clock was set back");
        assert!(!BudgetPeriod::Ever.period_at(at("2026-11-16T00:00:00Z")).is_over(at("2999-01-01T00:00:00Z")));
    }

    #[test]
    fn a_budget_is_positive() {
        let budget = |usd: f64| Budget { usd, per: BudgetPeriod::Day }.check_bounds("budget");
        assert!(budget(0.000_001).is_ok() && budget(50.0).is_ok());
        for wrong in [0.0, -1.0, 1e-7, f64::NAN, f64::INFINITY, 1e10] {
            assert!(budget(wrong).unwrap_err().to_string().starts_with("budget.usd: "), "{wrong}");
        }
        assert_eq!(Budget { usd: 0.29, per: BudgetPeriod::Day }.limit_micros(), 290_000);
        assert_eq!(serde_json::from_str::<Budget>(r#"{"usd": 5}"#).unwrap().per, BudgetPeriod::Month);
    }

    #[test]
    fn only_more_money_resumes_an_agent() {
        let (then, later) = (at("2026-11-16T08:00:00Z"), at("2026-11-16T23:00:00Z"));
        let day = |usd: f64| Budget { usd, per: BudgetPeriod::Day };
        let pause = BudgetPause::from_budget(&day(5.0), then);
        assert!(!pause.may_resume(Some(&day(5.0)), later) && !pause.may_resume(Some(&day(4.0)), later));
        assert!(pause.may_resume(Some(&day(5.1)), later) && pause.may_resume(None, later));
        assert!(pause.may_resume(Some(&day(4.0)), at("2026-11-17T00:00:00Z")), "a new day");
        assert!(!pause.may_resume(Some(&day(5.0)), at("2026-11-15T00:00:00Z")), "the clock was set back");
        assert!(pause.may_resume(Some(&Budget { usd: 5.0, per: BudgetPeriod::Month }), later));
        let ever = Budget { usd: 5.0, per: BudgetPeriod::Ever };
        assert!(!BudgetPause::from_budget(&ever, then).may_resume(Some(&ever), at("2999-01-01T00:00:00Z")));
    }
}
