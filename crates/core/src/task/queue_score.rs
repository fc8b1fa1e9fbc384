//! The score of a queued task: the dispatcher claims the task with the highest one.
//!
//! The score has two parts. The *standing* changes only with the task or when its deadline comes near, so the store can
//! index it. The age grows for all tasks alike. Of tasks with the same standing, the oldest has the highest score; so the
//! best task is one of the oldest ones of each standing, and finding it does not depend on the number of tasks.

use crate::ticket::TicketPriority;
use crate::time::Timestamp;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Age at which the share of the age in the score is complete.
const FULL_AGE: Duration = HOUR;
/// Age from which a task's score is at least [`OLD_SCORE`].
const OLD_AGE: Duration = Duration::from_secs(2 * 3600);
const OLD_SCORE: f64 = 0.6;
const LAST_MINUTES_FACTOR: f64 = 1.25;
const AGE_SHARE: f64 = 0.20;
/// Units of a standing per 1.0 of the score.
const UNITS: i64 = 100_000;
/// Marks the standing of a task in the last minutes before its deadline.
const LAST_MINUTES_MARK: i64 = 1_000_000;

/// How near a deadline is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeadlineLevel {
    /// No deadline, or more than a day left.
    Far,
    /// Up to a day left.
    Day,
    /// Up to four hours left.
    Hours,
    /// Up to an hour left.
    Hour,
    /// Up to 15 minutes left, or the deadline has passed.
    LastMinutes,
}

impl DeadlineLevel {
    const STEPS: [(Self, Duration); 4] = [
        (Self::LastMinutes, Duration::from_secs(15 * 60)),
        (Self::Hour, HOUR),
        (Self::Hours, Duration::from_secs(4 * 3600)),
        (Self::Day, Duration::from_secs(24 * 3600)),
    ];

    /// The level at a time, and the time at which the next one begins.
    pub fn at(deadline: Option<Timestamp>, now: Timestamp) -> (Self, Option<Timestamp>) {
        let Some(deadline) = deadline else { return (Self::Far, None) };
        let mut next = None;
        for (level, left) in Self::STEPS {
            let begins_at = deadline - left;
            if now >= begins_at {
                return (level, next);
            }
            next = Some(begins_at);
        }
        (Self::Far, next)
    }

    /// The share of 1.0, in quarters.
    const fn quarters(self) -> i64 {
        match self {
            Self::Far => 0,
            Self::Day => 1,
            Self::Hours => 2,
            Self::Hour => 3,
            Self::LastMinutes => 4,
        }
    }
}

/// The part of the score that does not depend on the age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing(i64);

impl Standing {
    /// 0.45 · priority + 0.15 · deadline + 0.15 · min(tasks it blocks / 10, 1) + 0.05 · (1 − retries / max).
    pub fn new(
        priority: TicketPriority,
        level: DeadlineLevel,
        blocked_tasks: u32,
        retries: u32,
        max_retries: u32,
    ) -> Self {
        let priority_quarters = match priority {
            TicketPriority::Critical => 4,
            TicketPriority::High => 3,
            TicketPriority::Medium => 2,
            TicketPriority::Low => 1,
        };
        let max = i64::from(max_retries.max(1));
        let left = (max - i64::from(retries)).max(0);
        let units = UNITS * 45 / 100 * priority_quarters / 4
            + UNITS * 15 / 100 * level.quarters() / 4
            + UNITS * 15 / 100 * i64::from(blocked_tasks.min(10)) / 10
            + UNITS * 5 / 100 * left / max;
        let mark = if level == DeadlineLevel::LastMinutes { LAST_MINUTES_MARK } else { 0 };
        Self(units + mark)
    }

    /// The form in which the store keeps it.
    pub const fn as_units(self) -> i64 {
        self.0
    }

    pub const fn from_units(units: i64) -> Self {
        Self(units)
    }

    /// The score of a task that has been in the queue for `age`.
    pub fn score(self, age: Duration) -> f64 {
        let is_last = self.0 >= LAST_MINUTES_MARK;
        let standing = (self.0 % LAST_MINUTES_MARK) as f64 / UNITS as f64;
        let age_share = (age.as_secs_f64() / FULL_AGE.as_secs_f64()).min(1.0);
        let sum = AGE_SHARE.mul_add(age_share, standing);
        let score = if is_last { sum * LAST_MINUTES_FACTOR } else { sum };
        if age >= OLD_AGE { score.max(OLD_SCORE) } else { score }
    }
}

/// Longest age at which a score still grows, for simulations.
pub const MAX_GROWING_AGE: Duration = OLD_AGE.saturating_add(MINUTE);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(0) + Duration::from_secs(seconds)
    }

    fn score(priority: TicketPriority, level: DeadlineLevel, blocks: u32, retries: u32, minutes: u64) -> f64 {
        Standing::new(priority, level, blocks, retries, 4).score(MINUTE * u32::try_from(minutes).unwrap())
    }

    #[test]
    fn scores_follow_the_formula() {
        use DeadlineLevel as L;
        use TicketPriority::{Critical, High, Low, Medium};
        for (priority, level, blocks, retries, minutes, expected) in [
            (Critical, L::Far, 0, 0, 0, 0.50),
            (High, L::Far, 0, 0, 0, 0.3875),
            (Medium, L::Far, 0, 0, 0, 0.275),
            (Low, L::Far, 0, 0, 0, 0.1625),
            (Medium, L::Far, 0, 4, 0, 0.225),
            (Medium, L::Far, 0, 9, 0, 0.225),
            (Medium, L::Far, 5, 0, 0, 0.35),
            (Medium, L::Far, 99, 0, 0, 0.425),
            (Medium, L::Far, 0, 0, 30, 0.375),
            (Medium, L::Far, 0, 0, 119, 0.475),
            (Medium, L::Far, 0, 0, 120, 0.6),
            (Low, L::Far, 0, 4, 120, 0.6),
            (Critical, L::Far, 10, 0, 120, 0.85),
            (Medium, L::Day, 0, 0, 0, 0.3125),
            (Medium, L::Hour, 0, 0, 0, 0.3875),
            (Medium, L::LastMinutes, 0, 0, 0, 0.53125),
            (Critical, L::LastMinutes, 10, 0, 60, 1.25),
        ] {
            let found = score(priority, level, blocks, retries, minutes);
            assert!((found - expected).abs() < 1e-4, "{priority} {level:?} {blocks} {retries} {minutes}: {found}");
        }
    }

    #[test]
    fn the_deadline_comes_near_in_steps() {
        let deadline = at(100_000);
        for (now, level, next) in [
            (at(0), DeadlineLevel::Far, Some(at(100_000 - 86_400))),
            (at(100_000 - 86_400), DeadlineLevel::Day, Some(at(100_000 - 14_400))),
            (at(100_000 - 14_400), DeadlineLevel::Hours, Some(at(100_000 - 3_600))),
            (at(100_000 - 3_600), DeadlineLevel::Hour, Some(at(100_000 - 900))),
            (at(100_000 - 900), DeadlineLevel::LastMinutes, None),
            (at(200_000), DeadlineLevel::LastMinutes, None),
        ] {
            assert_eq!(DeadlineLevel::at(Some(deadline), now), (level, next), "{now}");
        }
        assert_eq!(DeadlineLevel::at(None, at(5)), (DeadlineLevel::Far, None));
    }

    proptest! {
        /// The order by (standing, age) never contradicts the score, so the store may look at the oldest only.
        #[test]
        fn the_oldest_of_a_standing_is_its_best(units in 0i64..80_000, last: bool, a in 0u64..10_000, b in 0u64..10_000) {
            let standing = Standing::from_units(units + if last { LAST_MINUTES_MARK } else { 0 });
            let (young, old) = (Duration::from_secs(a.min(b)), Duration::from_secs(a.max(b)));
            prop_assert!(standing.score(old) >= standing.score(young));
        }

        #[test]
        fn a_score_is_bounded(blocks: u32, retries: u32, max: u32, seconds in 0u64..100_000) {
            for priority in TicketPriority::ALL {
                let standing = Standing::new(*priority, DeadlineLevel::LastMinutes, blocks, retries, max);
                let score = standing.score(Duration::from_secs(seconds));
                prop_assert!((0.0..=1.2501).contains(&score), "{score}");
            }
        }
    }
}
