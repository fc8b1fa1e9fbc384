//! Tracks how much of its limits the agent has used. Pure: the executor reports what happens and carries out the next
//! step.
//!
//! Clocks run only while the agent works, not while it waits for a person or is paused.

use atoll_core::limit::{Limit, WARNING_FRACTION};
use atoll_core::sandbox::AgentLimits;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum LimitStep {
    /// Warn that most of the limit is used.
    Warn {
        limit: Limit,
        value: f64,
        used: f64,
    },
    /// Pause the agent.
    Pause {
        limit: Limit,
        value: f64,
        used: f64,
    },
    Resume {
        limit: Limit,
    },
}

#[derive(Debug, Default)]
pub(super) struct LimitTracker {
    limits: AgentLimits,
    /// A limit that the server counts and that is used up.
    exhausted: Option<Limit>,
    turn: Option<Turn>,
    waiting: bool,
    paused: Option<Limit>,
}

#[derive(Debug)]
struct Turn {
    all: Stopwatch,
    /// Time since the last progress.
    idle: Stopwatch,
    warned: BTreeSet<Limit>,
    /// An interrupt ends this turn: limits no longer apply.
    is_released: bool,
}

/// A stopwatch.
#[derive(Debug, Clone, Copy, Default)]
struct Stopwatch {
    before: Duration,
    since: Option<Instant>,
}

impl Stopwatch {
    fn elapsed(self, now: Instant) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    fn set_running(&mut self, runs: bool, now: Instant) {
        if runs != self.since.is_some() {
            self.before = self.elapsed(now);
            self.since = runs.then_some(now);
        }
    }

    /// When the stopwatch reaches `span`.
    fn reaches_at(self, span: Duration) -> Option<Instant> {
        self.since.map(|since| since + span.saturating_sub(self.before))
    }
}

impl LimitTracker {
    pub(super) fn set_limits(&mut self, limits: AgentLimits, exhausted: Option<Limit>) {
        (self.limits, self.exhausted) = (limits, exhausted);
    }

    pub(super) fn begin_turn(&mut self, now: Instant) {
        let turn =
            Turn { all: Stopwatch::default(), idle: Stopwatch::default(), warned: BTreeSet::new(), is_released: false };
        self.turn = Some(turn);
        self.update_clocks(now);
    }

    /// Begins a turn unless one is running.
    pub(super) fn ensure_turn(&mut self, now: Instant) {
        if self.turn.is_none() {
            self.begin_turn(now);
        }
    }

    pub(super) fn end_turn(&mut self) {
        self.turn = None;
    }

    /// Resets the no-progress clock.
    pub(super) fn record_progress(&mut self, now: Instant) {
        if let Some(turn) = &mut self.turn {
            turn.idle = Stopwatch::default();
        }
        self.update_clocks(now);
    }

    /// Stops the clocks while the agent waits for a person.
    pub(super) fn set_waiting(&mut self, waiting: bool, now: Instant) {
        self.waiting = waiting;
        self.update_clocks(now);
    }

    /// Lifts the limits of an interrupted turn, so that it can end.
    pub(super) const fn release_turn(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.is_released = true;
        }
    }

    /// True if another turn may begin after `turns` turns.
    pub(super) fn may_begin(&self, turns: i64) -> bool {
        self.exhausted.is_none() && !self.is_last_turn(turns.saturating_sub(1))
    }

    /// True if the turn after `turns` turns is the last one.
    pub(super) fn is_last_turn(&self, turns: i64) -> bool {
        self.limits.turns.is_some_and(|most| turns.saturating_add(1) >= i64::from(most))
    }

    pub(super) fn max_turns(&self) -> Option<f64> {
        self.limits.value_of(Limit::Turns)
    }

    fn update_clocks(&mut self, now: Instant) {
        let runs = !self.waiting && self.paused.is_none();
        if let Some(turn) = &mut self.turn {
            turn.all.set_running(runs, now);
            turn.idle.set_running(runs, now);
        }
    }

    /// The limit that is used up, its value, and the usage.
    fn used_up(&self, turns: i64, wants_turn: bool, now: Instant) -> Option<(Limit, f64, f64)> {
        if let Some(turn) = &self.turn {
            if turn.is_released {
                return None;
            }
            if let Some(limit) = self.exhausted {
                let value = self.limits.value_of(limit).unwrap_or_default();
                return Some((limit, value, value));
            }
            return self.clocks(turn).into_iter().find_map(|(limit, clock, most)| {
                let used = clock.elapsed(now).as_secs_f64();
                (used >= most).then_some((limit, most, used))
            });
        }
        if !wants_turn || self.may_begin(turns) {
            return None;
        }
        let limit = self.exhausted.unwrap_or(Limit::Turns);
        let value = self.limits.value_of(limit).unwrap_or_default();
        Some((limit, value, value))
    }

    fn clocks(&self, turn: &Turn) -> Vec<(Limit, Stopwatch, f64)> {
        let both = [(Limit::TurnS, turn.all), (Limit::NoProgressS, turn.idle)];
        both.into_iter().filter_map(|(limit, clock)| Some((limit, clock, self.limits.value_of(limit)?))).collect()
    }

    /// Returns the next step after `turns` turns; `wants_turn` if a message waits to begin a turn.
    pub(super) fn next_step(&mut self, turns: i64, wants_turn: bool, now: Instant) -> Option<LimitStep> {
        let used_up = self.used_up(turns, wants_turn, now);
        match (self.paused, used_up) {
            (Some(paused), Some((limit, _, _))) if paused == limit => None,
            (Some(paused), _) => {
                self.paused = None;
                self.update_clocks(now);
                Some(LimitStep::Resume { limit: paused })
            }
            (None, Some((limit, value, used))) => {
                self.paused = Some(limit);
                self.update_clocks(now);
                Some(LimitStep::Pause { limit, value, used })
            }
            (None, None) => self.next_warning(now),
        }
    }

    fn next_warning(&mut self, now: Instant) -> Option<LimitStep> {
        let turn = self.turn.as_ref().filter(|turn| !turn.is_released)?;
        let due = self.clocks(turn).into_iter().find_map(|(limit, clock, value)| {
            let used = clock.elapsed(now).as_secs_f64();
            (used >= value * WARNING_FRACTION && !turn.warned.contains(&limit)).then_some((limit, value, used))
        });
        let (limit, value, used) = due?;
        self.turn.as_mut()?.warned.insert(limit);
        Some(LimitStep::Warn { limit, value, used })
    }

    /// When `next_step` may have a new step without an event.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let turn = self.turn.as_ref().filter(|turn| !turn.is_released)?;
        let dues = self.clocks(turn).into_iter().filter_map(|(limit, clock, value)| {
            let part = if turn.warned.contains(&limit) { 1.0 } else { WARNING_FRACTION };
            clock.reaches_at(Duration::from_secs_f64(value * part))
        });
        // A millisecond later, because the clock rounds.
        dues.min().map(|due| due + Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl LimitTracker {
        const fn paused(&self) -> Option<Limit> {
            self.paused
        }
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn limits(settings: AgentLimits) -> LimitTracker {
        let mut limits = LimitTracker::default();
        limits.set_limits(settings, None);
        limits
    }

    fn describe_step(step: Option<LimitStep>) -> String {
        match step {
            Some(LimitStep::Warn { limit, .. }) => format!("warn {limit}"),
            Some(LimitStep::Pause { limit, .. }) => format!("pause {limit}"),
            Some(LimitStep::Resume { limit }) => format!("resume {limit}"),
            None => "nothing".to_owned(),
        }
    }

    #[test]
    fn a_long_turn_is_warned_paused_and_resumed() {
        let start = Instant::now();
        let mut limits = limits(AgentLimits { turn_s: Some(10), ..AgentLimits::default() });
        limits.begin_turn(start);
        assert_eq!(describe_step(limits.next_step(1, false, start + secs(7))), "nothing");
        assert!(limits.deadline().is_some_and(|due| due >= start + secs(8) && due < start + secs(9)));
        assert_eq!(describe_step(limits.next_step(1, false, start + secs(8))), "warn turn_s");
        assert_eq!(describe_step(limits.next_step(1, false, start + secs(9))), "nothing", "once");
        assert_eq!(describe_step(limits.next_step(1, false, start + secs(10))), "pause turn_s");
        assert_eq!((limits.paused(), limits.deadline()), (Some(Limit::TurnS), None), "no clock runs");
        assert_eq!(describe_step(limits.next_step(1, false, start + secs(999))), "nothing");
        limits.set_limits(AgentLimits { turn_s: Some(15), ..AgentLimits::default() }, None);
        assert_eq!(describe_step(limits.next_step(1, false, start + secs(1000))), "resume turn_s");
        assert_eq!(
            describe_step(limits.next_step(1, false, start + secs(1004))),
            "nothing",
            "the pause is not counted"
        );
        assert_eq!(describe_step(limits.next_step(1, false, start + secs(1005))), "pause turn_s");
    }

    #[test]
    fn progress_resets_the_clock_and_waiting_stops_it() {
        let start = Instant::now();
        let mut limits = limits(AgentLimits { no_progress_s: Some(10), ..AgentLimits::default() });
        limits.begin_turn(start);
        limits.record_progress(start + secs(9));
        assert_eq!(describe_step(limits.next_step(1, false, start + secs(12))), "nothing");
        limits.set_waiting(true, start + secs(12));
        assert_eq!(
            (describe_step(limits.next_step(1, false, start + secs(500))), limits.deadline()),
            ("nothing".into(), None)
        );
        limits.set_waiting(false, start + secs(500));
        assert_eq!(describe_step(limits.next_step(1, false, start + secs(506))), "warn no_progress_s");
        assert_eq!(describe_step(limits.next_step(1, false, start + secs(507))), "pause no_progress_s");
        limits.end_turn();
        assert_eq!(
            describe_step(limits.next_step(1, false, start + secs(508))),
            "resume no_progress_s",
            "that turn is over"
        );
    }

    #[test]
    fn pauses_before_a_turn_over_the_limit() {
        let now = Instant::now();
        let mut limits = limits(AgentLimits { turns: Some(2), ..AgentLimits::default() });
        assert!(limits.may_begin(0) && limits.may_begin(1) && !limits.may_begin(2));
        assert!(!limits.is_last_turn(0) && limits.is_last_turn(1));
        assert_eq!(describe_step(limits.next_step(2, false, now)), "nothing", "no turn is requested");
        assert_eq!(describe_step(limits.next_step(2, true, now)), "pause turns");
        limits.set_limits(AgentLimits { turns: Some(3), ..AgentLimits::default() }, None);
        assert_eq!(describe_step(limits.next_step(2, true, now)), "resume turns");
    }

    #[test]
    fn a_server_limit_pauses_until_the_server_lifts_it() {
        let now = Instant::now();
        let mut limits = LimitTracker::default();
        limits.begin_turn(now);
        limits.set_limits(AgentLimits::default(), Some(Limit::CostUsd));
        assert_eq!(describe_step(limits.next_step(1, false, now)), "pause cost_usd");
        assert!(!limits.may_begin(1));
        limits.set_limits(AgentLimits::default(), None);
        assert_eq!(describe_step(limits.next_step(1, false, now)), "resume cost_usd");
    }

    #[test]
    fn an_interrupted_turn_can_end() {
        let start = Instant::now();
        let mut limits = limits(AgentLimits { turn_s: Some(1), ..AgentLimits::default() });
        limits.begin_turn(start);
        assert_eq!(describe_step(limits.next_step(1, false, start + secs(2))), "pause turn_s");
        limits.release_turn();
        assert_eq!(describe_step(limits.next_step(1, false, start + secs(2))), "resume turn_s");
        assert_eq!(describe_step(limits.next_step(1, false, start + secs(9))), "nothing");
    }

    proptest! {
        /// In any order of events: only an existing limit pauses the agent, every pause ends once, each limit warns once per
        /// turn, and the clock of a paused agent stands still.
        #[test]
        fn pauses_and_warnings_follow_the_rules(
            steps in prop::collection::vec((0..8_u8, 0..20_u64), 0..120), turns in prop::option::of(1..4_u32),
            turn_s in prop::option::of(1..30_u32), no_progress_s in prop::option::of(1..30_u32),
        ) {
            let settings = AgentLimits { turns, turn_s, no_progress_s, cost_usd: None };
            let mut limits = limits(settings);
            let (mut now, mut done, mut in_turn) = (Instant::now(), 0_i64, false);
            let (mut paused, mut warned) = (None, BTreeSet::new());
            for (what, seconds) in steps {
                now += secs(seconds);
                match what {
                    0 if !in_turn && limits.may_begin(done) => {
                        limits.begin_turn(now);
                        (in_turn, done) = (true, done + 1);
                        warned.clear();
                    }
                    1 => { limits.end_turn(); in_turn = false; }
                    2 => limits.record_progress(now),
                    3 => limits.set_waiting(true, now),
                    4 => limits.set_waiting(false, now),
                    5 => limits.set_limits(settings, Some(Limit::CostUsd)),
                    6 => limits.set_limits(settings, None),
                    _ => {}
                }
                for _ in 0..6 {
                    match limits.next_step(done, !in_turn, now) {
                        Some(LimitStep::Warn { limit, .. }) => {
                            prop_assert!(in_turn && paused.is_none() && warned.insert(limit));
                            prop_assert!(settings.value_of(limit).is_some());
                        }
                        Some(LimitStep::Pause { limit, used, value }) => {
                            prop_assert!(paused.replace(limit).is_none() && used >= value);
                            prop_assert!(limit == Limit::CostUsd || settings.value_of(limit).is_some());
                        }
                        Some(LimitStep::Resume { limit }) => prop_assert_eq!(paused.take(), Some(limit)),
                        None => break,
                    }
                }
                prop_assert_eq!(limits.paused(), paused);
                prop_assert!(limits.next_step(done, !in_turn, now).is_none(), "nothing more in the same moment");
                if paused.is_some() {
                    prop_assert!(limits.deadline().is_none());
                }
            }
        }
    }
}
