//! A circuit breaker per provider: after repeated failures, the server asks it for no sandbox until a probe succeeds.

use crate::string_enum;
use crate::time::Timestamp;
use std::time::Duration;

string_enum! {
    /// State of a provider's circuit breaker.
    "circuit state"
    CircuitState {
        /// The provider works.
        Closed = "closed",
        /// The server asks it for no sandbox.
        Open = "open",
        /// One creation is tried.
        Probing = "probing",
    }
}

/// When a circuit opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Consecutive failures that open the circuit.
    pub max_failures: u32,
    /// How long it stays open at first. Each failed probe doubles the time.
    pub open_for: Duration,
}

/// Longest time that a circuit stays open without a probe.
const MAX_OPEN_FOR: Duration = Duration::from_secs(900);

/// The answer to a request for a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    Admitted,
    /// The circuit is open until this time.
    Refused(Timestamp),
}

/// A change of the circuit that users see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CircuitChange {
    Opened(Timestamp),
    Closed,
}

/// The circuit of one provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitBreaker {
    policy: BreakerPolicy,
    state: CircuitState,
    failures: u32,
    open_for: Duration,
    /// The time of the next probe, or until which a running probe blocks others.
    until: Timestamp,
}

impl CircuitBreaker {
    pub const fn new(policy: BreakerPolicy) -> Self {
        let until = Timestamp::from_micros(0);
        Self { policy, state: CircuitState::Closed, failures: 0, open_for: policy.open_for, until }
    }

    pub const fn state(&self) -> CircuitState {
        self.state
    }

    /// Consecutive failures so far.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// The time until which requests are refused, if they are.
    pub fn refused_until(&self, now: Timestamp) -> Option<Timestamp> {
        match self.state {
            CircuitState::Closed => None,
            CircuitState::Open | CircuitState::Probing => Some(self.until).filter(|until| *until > now),
        }
    }

    /// Admits a creation. The first one after the open time is the probe; others wait for its outcome.
    pub fn admit(&mut self, now: Timestamp) -> Admission {
        if let Some(until) = self.refused_until(now) {
            return Admission::Refused(until);
        }
        match self.state {
            CircuitState::Closed => {}
            // A probe without an outcome is replaced after its time.
            CircuitState::Open | CircuitState::Probing => {
                self.state = CircuitState::Probing;
                self.until = now + self.open_for;
            }
        }
        Admission::Admitted
    }

    /// Records that the provider created a sandbox or refused it for a reason of the request.
    pub const fn record_response(&mut self) -> Option<CircuitChange> {
        self.failures = 0;
        self.open_for = self.policy.open_for;
        match self.state {
            CircuitState::Closed => None,
            CircuitState::Open | CircuitState::Probing => {
                self.state = CircuitState::Closed;
                Some(CircuitChange::Closed)
            }
        }
    }

    /// Records that the provider did not respond or failed.
    pub fn record_failure(&mut self, now: Timestamp) -> Option<CircuitChange> {
        self.failures = self.failures.saturating_add(1);
        match self.state {
            CircuitState::Closed if self.failures < self.policy.max_failures => return None,
            // A late failure of a creation from before the circuit opened.
            CircuitState::Open => return None,
            CircuitState::Closed => {}
            CircuitState::Probing => self.open_for = self.open_for.saturating_mul(2).min(MAX_OPEN_FOR),
        }
        self.state = CircuitState::Open;
        self.until = now + self.open_for;
        Some(CircuitChange::Opened(self.until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Admission::{Admitted, Refused};
    use CircuitChange::{Closed, Opened};

    const POLICY: BreakerPolicy = BreakerPolicy { max_failures: 3, open_for: Duration::from_secs(60) };

    const fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn repeated_failures_open_the_circuit_and_a_probe_closes_it() {
        let mut breaker = CircuitBreaker::new(POLICY);
        assert_eq!((breaker.admit(at(0)), breaker.record_failure(at(0))), (Admitted, None));
        assert_eq!((breaker.admit(at(1)), breaker.record_failure(at(1))), (Admitted, None));
        assert_eq!(breaker.record_failure(at(2)), Some(Opened(at(62))));
        assert_eq!((breaker.admit(at(3)), breaker.state()), (Refused(at(62)), CircuitState::Open));
        assert_eq!(breaker.record_failure(at(4)), None, "a late failure does not extend the time");
        assert_eq!(breaker.refused_until(at(62)), None);
        assert_eq!((breaker.admit(at(62)), breaker.state()), (Admitted, CircuitState::Probing));
        assert_eq!(breaker.admit(at(63)), Refused(at(122)), "only one creation is the probe");
        assert_eq!(breaker.record_failure(at(64)), Some(Opened(at(184))), "a failed probe doubles the time");
        assert_eq!(breaker.admit(at(184)), Admitted);
        assert_eq!(breaker.record_response(), Some(Closed));
        assert_eq!((breaker.admit(at(185)), breaker.failures()), (Admitted, 0));
        assert_eq!(breaker.record_failure(at(186)), None, "the count starts again");
    }

    #[test]
    fn a_response_between_failures_keeps_the_circuit_closed() {
        let mut breaker = CircuitBreaker::new(POLICY);
        for round in 0..10 {
            assert_eq!((breaker.record_failure(at(round)), breaker.record_failure(at(round))), (None, None));
            assert_eq!(breaker.record_response(), None);
        }
        assert_eq!(breaker.state(), CircuitState::Closed);
    }

    #[test]
    fn the_open_time_is_bounded_and_a_lost_probe_is_replaced() {
        let mut breaker = CircuitBreaker::new(POLICY);
        for _ in 0..3 {
            breaker.record_failure(at(0));
        }
        let mut now = at(60);
        for _ in 0..20 {
            assert_eq!(breaker.admit(now), Admitted);
            assert!(matches!(breaker.record_failure(now), Some(Opened(_))));
            now = breaker.refused_until(now).unwrap();
        }
        assert_eq!(breaker.admit(now), Admitted);
        // The probe's server process died, or its outcome was lost.
        let next = breaker.refused_until(now).unwrap();
        assert_eq!(next, now + MAX_OPEN_FOR);
        assert_eq!(breaker.admit(next), Admitted);
    }
}
