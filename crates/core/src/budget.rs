//! What a project may spend on models, and in which time.

use crate::bounds::{OutOfBounds, refuse};
use crate::time::Timestamp;
use crate::words;
use jiff::civil::{Date, date};
use serde::{Deserialize, Serialize};

words! {
    /// How long a budget is for: a day and a month of the calendar, in UTC.
    #[derive(Default)]
    "time of a budget"
    Per { Day = "day", #[default] Month = "month", Ever = "ever" }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// In US dollars.
    pub usd: f64,
    #[serde(default)]
    pub per: Per,
}

/// Days since 1970 began.
pub type Day = i64;

const MICROS_OF_DAY: i64 = 86_400_000_000;
const EPOCH: Date = date(1970, 1, 1);

pub const fn day_of(time: Timestamp) -> Day {
    time.as_micros().div_euclid(MICROS_OF_DAY)
}

const fn begin_of(day: Day) -> Timestamp {
    Timestamp::from_micros(day.saturating_mul(MICROS_OF_DAY))
}

fn date_of(day: Day) -> Date {
    let days = jiff::Span::new().try_days(day).unwrap_or_default();
    EPOCH.checked_add(days).unwrap_or(EPOCH)
}

fn day_of_date(date: Date) -> Day {
    date.duration_since(EPOCH).as_hours().div_euclid(24)
}

/// A stretch of whole days.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// Nothing: it has no beginning.
    pub first: Option<Day>,
    /// The day after its last one.
    pub next: Option<Day>,
}

impl Period {
    pub fn from(&self) -> Option<Timestamp> {
        self.first.map(begin_of)
    }

    pub fn until(&self) -> Option<Timestamp> {
        self.next.map(begin_of)
    }

    /// Whether a later one has begun. A clock that was set back does not bring an earlier one back.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until().is_some_and(|until| until <= now)
    }
}

impl Per {
    /// The period that a moment is in.
    pub fn period(self, now: Timestamp) -> Period {
        let day = day_of(now);
        match self {
            Self::Day => Period { first: Some(day), next: Some(day.saturating_add(1)) },
            Self::Month => {
                let today = date_of(day);
                let last = day_of_date(today.last_of_month());
                Period { first: Some(day_of_date(today.first_of_month())), next: Some(last.saturating_add(1)) }
            }
            Self::Ever => Period { first: None, next: None },
        }
    }
}

/// Above this nobody means it, and below that nothing could ever be asked.
const MOST_USD: f64 = 1e9;
const LEAST_USD: f64 = 1e-6;

impl Budget {
    /// In millionths of a dollar.
    pub fn micros(&self) -> i64 {
        (self.usd * 1e6).round() as i64
    }

    pub fn check(&self, field: &str) -> Result<(), OutOfBounds> {
        if (LEAST_USD..=MOST_USD).contains(&self.usd) {
            return Ok(());
        }
        refuse(
            &format!("{field}.usd"),
            format!(
                "must be an amount of US dollars from {LEAST_USD} to {MOST_USD}; `null` as the budget takes it away"
            ),
        )
    }
}

/// What held an agent back: its project's budget as it was then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub micros: i64,
    pub per: Per,
    pub first: Option<Day>,
}

impl Held {
    pub fn by(budget: &Budget, now: Timestamp) -> Self {
        Self { micros: budget.micros(), per: budget.per, first: budget.per.period(now).first }
    }

    /// Whether there is more now than there was: a larger budget or none, or another time. Not whether it is enough: the next
    /// request says that, and one that is too large for the same budget must not be tried again and again.
    pub fn is_over(&self, budget: Option<&Budget>, now: Timestamp) -> bool {
        let Some(budget) = budget else { return true };
        budget.micros() > self.micros
            || budget.per != self.per
            || budget.per.period(now).first.is_some_and(|first| Some(first) > self.first)
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
        (word(period.from()), word(period.until()))
    }

    #[test]
    fn a_period_is_a_day_or_a_month_of_the_calendar() {
        for (per, now, from, until) in [
            (Per::Day, "2026-11-16T00:00:00Z", "2026-11-16", "2026-11-17"),
            (Per::Day, "2026-11-16T23:59:59.999999Z", "2026-11-16", "2026-11-17"),
            (Per::Day, "2026-12-31T12:00:00Z", "2026-12-31", "2027-01-01"),
            (Per::Day, "2026-03-29T01:30:00+02:00", "2026-03-28", "2026-03-29"),
            (Per::Month, "2026-11-01T00:00:00Z", "2026-11-01", "2026-12-01"),
            (Per::Month, "2026-11-30T23:59:59.999999Z", "2026-11-01", "2026-12-01"),
            (Per::Month, "2026-12-31T23:59:59Z", "2026-12-01", "2027-01-01"),
            (Per::Month, "2028-02-29T08:00:00Z", "2028-02-01", "2028-03-01"),
            (Per::Month, "2027-02-28T08:00:00Z", "2027-02-01", "2027-03-01"),
            (Per::Month, "1969-12-31T23:00:00Z", "1969-12-01", "1970-01-01"),
        ] {
            let whole = |day: &str| format!("{day}T00:00:00.000000Z");
            assert_eq!(ends(per.period(at(now))), (whole(from), whole(until)), "{per} {now}");
        }
        assert_eq!(Per::Ever.period(at("2026-11-16T00:00:00Z")), Period { first: None, next: None });
    }

    #[test]
    fn a_period_is_over_at_its_end_and_not_before_its_beginning() {
        let period = Per::Month.period(at("2026-11-16T00:00:00Z"));
        assert!(!period.is_over(at("2026-11-30T23:59:59.999999Z")) && period.is_over(at("2026-12-01T00:00:00Z")));
        assert!(!period.is_over(at("2026-10-31T00:00:00Z")), "the clock was set back");
        assert!(!Per::Ever.period(at("2026-11-16T00:00:00Z")).is_over(at("2999-01-01T00:00:00Z")));
    }

    #[test]
    fn a_budget_is_above_nothing() {
        let budget = |usd: f64| Budget { usd, per: Per::Day }.check("budget");
        assert!(budget(0.000_001).is_ok() && budget(50.0).is_ok());
        for wrong in [0.0, -1.0, 1e-7, f64::NAN, f64::INFINITY, 1e10] {
            assert!(budget(wrong).unwrap_err().to_string().starts_with("budget.usd: "), "{wrong}");
        }
        assert_eq!(Budget { usd: 0.29, per: Per::Day }.micros(), 290_000);
        assert_eq!(serde_json::from_str::<Budget>(r#"{"usd": 5}"#).unwrap().per, Per::Month);
    }

    #[test]
    fn only_more_lets_an_agent_go_on() {
        let (then, later) = (at("2026-11-16T08:00:00Z"), at("2026-11-16T23:00:00Z"));
        let day = |usd: f64| Budget { usd, per: Per::Day };
        let held = Held::by(&day(5.0), then);
        assert!(!held.is_over(Some(&day(5.0)), later) && !held.is_over(Some(&day(4.0)), later));
        assert!(held.is_over(Some(&day(5.1)), later) && held.is_over(None, later));
        assert!(held.is_over(Some(&day(4.0)), at("2026-11-17T00:00:00Z")), "a new day");
        assert!(!held.is_over(Some(&day(5.0)), at("2026-11-15T00:00:00Z")), "the clock was set back");
        assert!(held.is_over(Some(&Budget { usd: 5.0, per: Per::Month }), later));
        let ever = Budget { usd: 5.0, per: Per::Ever };
        assert!(!Held::by(&ever, then).is_over(Some(&ever), at("2999-01-01T00:00:00Z")));
    }
}
