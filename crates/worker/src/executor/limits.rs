//! How much of its limits the agent has used, and what follows from it. Pure: the executor tells what happens, asks what
//! is to be done and carries it out.
//!
//! Clocks run only while the agent works: not while it waits for a person, and not while it is held.

use atoll_core::limit::{Limit, WARNED_AT};
use atoll_core::sandbox::AgentLimits;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Step {
    /// Tell the agent that most of it is used.
    Warn {
        limit: Limit,
        value: f64,
        used: f64,
    },
    /// Let it stand still.
    Pause {
        limit: Limit,
        value: f64,
        used: f64,
    },
    GoOn {
        limit: Limit,
    },
}

#[derive(Debug, Default)]
pub(super) struct Limits {
    given: AgentLimits,
    /// What the server counts is used up.
    held: Option<Limit>,
    turn: Option<Turn>,
    waiting: bool,
    paused: Option<Limit>,
}

#[derive(Debug)]
struct Turn {
    all: Clock,
    /// Since something came of it.
    idle: Clock,
    warned: BTreeSet<Limit>,
    /// It is to be broken off, and must be able to.
    let_go: bool,
}

/// What has gone by, less the time it stood.
#[derive(Debug, Clone, Copy, Default)]
struct Clock {
    before: Duration,
    since: Option<Instant>,
}

impl Clock {
    fn at(self, now: Instant) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    fn run(&mut self, runs: bool, now: Instant) {
        if runs != self.since.is_some() {
            self.before = self.at(now);
            self.since = runs.then_some(now);
        }
    }

    /// When it shows so much.
    fn shows(self, span: Duration) -> Option<Instant> {
        self.since.map(|since| since + span.saturating_sub(self.before))
    }
}

impl Limits {
    pub(super) fn set(&mut self, given: AgentLimits, held: Option<Limit>) {
        (self.given, self.held) = (given, held);
    }

    pub(super) fn begins(&mut self, now: Instant) {
        let turn = Turn { all: Clock::default(), idle: Clock::default(), warned: BTreeSet::new(), let_go: false };
        self.turn = Some(turn);
        self.run(now);
    }

    /// One that goes on counts from its own beginning.
    pub(super) fn begins_if_not(&mut self, now: Instant) {
        if self.turn.is_none() {
            self.begins(now);
        }
    }

    pub(super) fn ends(&mut self) {
        self.turn = None;
    }

    /// Something came of the turn.
    pub(super) fn progress(&mut self, now: Instant) {
        if let Some(turn) = &mut self.turn {
            turn.idle = Clock::default();
        }
        self.run(now);
    }

    /// Whether the agent waits for a person.
    pub(super) fn waits(&mut self, waiting: bool, now: Instant) {
        self.waiting = waiting;
        self.run(now);
    }

    /// A person breaks the turn off: whatever it has used, it goes on until it has ended.
    pub(super) const fn let_go(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.let_go = true;
        }
    }

    /// Whether another turn may begin after so many.
    pub(super) fn may_begin(&self, turns: i64) -> bool {
        self.held.is_none() && !self.is_last(turns.saturating_sub(1))
    }

    /// Whether the turn after so many others is the last one.
    pub(super) fn is_last(&self, turns: i64) -> bool {
        self.given.turns.is_some_and(|most| turns.saturating_add(1) >= i64::from(most))
    }

    pub(super) fn turns(&self) -> Option<f64> {
        self.given.of(Limit::Turns)
    }

    fn run(&mut self, now: Instant) {
        let runs = !self.waiting && self.paused.is_none();
        if let Some(turn) = &mut self.turn {
            turn.all.run(runs, now);
            turn.idle.run(runs, now);
        }
    }

    /// What is used up, with its value and how much that is.
    fn used_up(&self, turns: i64, wants_turn: bool, now: Instant) -> Option<(Limit, f64, f64)> {
        if let Some(turn) = &self.turn {
            if turn.let_go {
                return None;
            }
            if let Some(limit) = self.held {
                let value = self.given.of(limit).unwrap_or_default();
                return Some((limit, value, value));
            }
            return self.clocks(turn).into_iter().find_map(|(limit, clock, most)| {
                let used = clock.at(now).as_secs_f64();
                (used >= most).then_some((limit, most, used))
            });
        }
        if !wants_turn || self.may_begin(turns) {
            return None;
        }
        let limit = self.held.unwrap_or(Limit::Turns);
        let value = self.given.of(limit).unwrap_or_default();
        Some((limit, value, value))
    }

    fn clocks(&self, turn: &Turn) -> Vec<(Limit, Clock, f64)> {
        let both = [(Limit::TurnS, turn.all), (Limit::NoProgressS, turn.idle)];
        both.into_iter().filter_map(|(limit, clock)| Some((limit, clock, self.given.of(limit)?))).collect()
    }

    /// What is to be done now, after so many turns; `wants_turn` says that something waits to begin one.
    pub(super) fn step(&mut self, turns: i64, wants_turn: bool, now: Instant) -> Option<Step> {
        let used_up = self.used_up(turns, wants_turn, now);
        match (self.paused, used_up) {
            (Some(paused), Some((limit, _, _))) if paused == limit => None,
            (Some(paused), _) => {
                self.paused = None;
                self.run(now);
                Some(Step::GoOn { limit: paused })
            }
            (None, Some((limit, value, used))) => {
                self.paused = Some(limit);
                self.run(now);
                Some(Step::Pause { limit, value, used })
            }
            (None, None) => self.warning(now),
        }
    }

    fn warning(&mut self, now: Instant) -> Option<Step> {
        let turn = self.turn.as_ref().filter(|turn| !turn.let_go)?;
        let due = self.clocks(turn).into_iter().find_map(|(limit, clock, value)| {
            let used = clock.at(now).as_secs_f64();
            (used >= value * WARNED_AT && !turn.warned.contains(&limit)).then_some((limit, value, used))
        });
        let (limit, value, used) = due?;
        self.turn.as_mut()?.warned.insert(limit);
        Some(Step::Warn { limit, value, used })
    }

    /// When `step` may have something new to say by itself.
    pub(super) fn until(&self) -> Option<Instant> {
        let turn = self.turn.as_ref().filter(|turn| !turn.let_go)?;
        let dues = self.clocks(turn).into_iter().filter_map(|(limit, clock, value)| {
            let part = if turn.warned.contains(&limit) { 1.0 } else { WARNED_AT };
            clock.shows(Duration::from_secs_f64(value * part))
        });
        // A clock rounds; a little later it certainly shows so much.
        dues.min().map(|due| due + Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Limits {
        const fn paused(&self) -> Option<Limit> {
            self.paused
        }
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn limits(given: AgentLimits) -> Limits {
        let mut limits = Limits::default();
        limits.set(given, None);
        limits
    }

    fn words(step: Option<Step>) -> String {
        match step {
            Some(Step::Warn { limit, .. }) => format!("warn {limit}"),
            Some(Step::Pause { limit, .. }) => format!("pause {limit}"),
            Some(Step::GoOn { limit }) => format!("go on {limit}"),
            None => "nothing".to_owned(),
        }
    }

    #[test]
    fn a_long_turn_is_warned_paused_and_goes_on_from_there() {
        let start = Instant::now();
        let mut limits = limits(AgentLimits { turn_s: Some(10), ..AgentLimits::default() });
        limits.begins(start);
        assert_eq!(words(limits.step(1, false, start + secs(7))), "nothing");
        assert!(limits.until().is_some_and(|due| due >= start + secs(8) && due < start + secs(9)));
        assert_eq!(words(limits.step(1, false, start + secs(8))), "warn turn_s");
        assert_eq!(words(limits.step(1, false, start + secs(9))), "nothing", "once");
        assert_eq!(words(limits.step(1, false, start + secs(10))), "pause turn_s");
        assert_eq!((limits.paused(), limits.until()), (Some(Limit::TurnS), None), "no clock runs");
        assert_eq!(words(limits.step(1, false, start + secs(999))), "nothing");
        limits.set(AgentLimits { turn_s: Some(15), ..AgentLimits::default() }, None);
        assert_eq!(words(limits.step(1, false, start + secs(1000))), "go on turn_s");
        assert_eq!(words(limits.step(1, false, start + secs(1004))), "nothing", "the pause is not counted");
        assert_eq!(words(limits.step(1, false, start + secs(1005))), "pause turn_s");
    }

    #[test]
    fn progress_winds_its_clock_up_and_a_person_stops_it() {
        let start = Instant::now();
        let mut limits = limits(AgentLimits { no_progress_s: Some(10), ..AgentLimits::default() });
        limits.begins(start);
        limits.progress(start + secs(9));
        assert_eq!(words(limits.step(1, false, start + secs(12))), "nothing");
        limits.waits(true, start + secs(12));
        assert_eq!((words(limits.step(1, false, start + secs(500))), limits.until()), ("nothing".into(), None));
        limits.waits(false, start + secs(500));
        assert_eq!(words(limits.step(1, false, start + secs(506))), "warn no_progress_s");
        assert_eq!(words(limits.step(1, false, start + secs(507))), "pause no_progress_s");
        limits.ends();
        assert_eq!(words(limits.step(1, false, start + secs(508))), "go on no_progress_s", "that turn is over");
    }

    #[test]
    fn the_turn_after_the_last_waits() {
        let now = Instant::now();
        let mut limits = limits(AgentLimits { turns: Some(2), ..AgentLimits::default() });
        assert!(limits.may_begin(0) && limits.may_begin(1) && !limits.may_begin(2));
        assert!(!limits.is_last(0) && limits.is_last(1));
        assert_eq!(words(limits.step(2, false, now)), "nothing", "nobody wants one");
        assert_eq!(words(limits.step(2, true, now)), "pause turns");
        limits.set(AgentLimits { turns: Some(3), ..AgentLimits::default() }, None);
        assert_eq!(words(limits.step(2, true, now)), "go on turns");
    }

    #[test]
    fn what_the_server_holds_stands_until_it_says_otherwise() {
        let now = Instant::now();
        let mut limits = Limits::default();
        limits.begins(now);
        limits.set(AgentLimits::default(), Some(Limit::CostUsd));
        assert_eq!(words(limits.step(1, false, now)), "pause cost_usd");
        assert!(!limits.may_begin(1));
        limits.set(AgentLimits::default(), None);
        assert_eq!(words(limits.step(1, false, now)), "go on cost_usd");
    }

    #[test]
    fn an_interrupted_turn_must_be_able_to_end() {
        let start = Instant::now();
        let mut limits = limits(AgentLimits { turn_s: Some(1), ..AgentLimits::default() });
        limits.begins(start);
        assert_eq!(words(limits.step(1, false, start + secs(2))), "pause turn_s");
        limits.let_go();
        assert_eq!(words(limits.step(1, false, start + secs(2))), "go on turn_s");
        assert_eq!(words(limits.step(1, false, start + secs(9))), "nothing");
    }

    proptest! {
        /// In whatever order things happen: it is paused only by a limit that there is, every pause ends once, a turn is
        /// warned of each limit at most once, and the clock of a paused agent stands.
        #[test]
        fn pauses_and_warnings_follow_the_rules(
            steps in prop::collection::vec((0..8_u8, 0..20_u64), 0..120), turns in prop::option::of(1..4_u32),
            turn_s in prop::option::of(1..30_u32), no_progress_s in prop::option::of(1..30_u32),
        ) {
            let given = AgentLimits { turns, turn_s, no_progress_s, cost_usd: None };
            let mut limits = limits(given);
            let (mut now, mut done, mut in_turn) = (Instant::now(), 0_i64, false);
            let (mut paused, mut warned) = (None, BTreeSet::new());
            for (what, seconds) in steps {
                now += secs(seconds);
                match what {
                    0 if !in_turn && limits.may_begin(done) => {
                        limits.begins(now);
                        (in_turn, done) = (true, done + 1);
                        warned.clear();
                    }
                    1 => { limits.ends(); in_turn = false; }
                    2 => limits.progress(now),
                    3 => limits.waits(true, now),
                    4 => limits.waits(false, now),
                    5 => limits.set(given, Some(Limit::CostUsd)),
                    6 => limits.set(given, None),
                    _ => {}
                }
                for _ in 0..6 {
                    match limits.step(done, !in_turn, now) {
                        Some(Step::Warn { limit, .. }) => {
                            prop_assert!(in_turn && paused.is_none() && warned.insert(limit));
                            prop_assert!(given.of(limit).is_some());
                        }
                        Some(Step::Pause { limit, used, value }) => {
                            prop_assert!(paused.replace(limit).is_none() && used >= value);
                            prop_assert!(limit == Limit::CostUsd || given.of(limit).is_some());
                        }
                        Some(Step::GoOn { limit }) => prop_assert_eq!(paused.take(), Some(limit)),
                        None => break,
                    }
                }
                prop_assert_eq!(limits.paused(), paused);
                prop_assert!(limits.step(done, !in_turn, now).is_none(), "nothing more in the same moment");
                if paused.is_some() {
                    prop_assert!(limits.until().is_none());
                }
            }
        }
    }
}
