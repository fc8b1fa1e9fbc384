//! Faults drawn from a seed: the same seed and calls give the same faults.
//!
//! | kind | `create`, `destroy` | `heartbeat`, `event`, `ack` |
//! |---|---|---|
//! | `fail` | nothing is done; unreachable | the call is not made; the worker tries again |
//! | `drop` | it is done, but the answer is lost: unreachable | the same: a worker cannot tell them apart |
//! | `delay` | 50 to 500 ms before the call | the same |
//! | `duplicate` | asked twice under the same key | the call is made twice, as after a lost answer |
//! | `crash` | the worker ends abruptly; `destroy` itself fails | the worker ends abruptly |

use atoll_core::fake_options::{FakeOptions, Fault, FaultKind, FaultPoint};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A fault that strikes one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InjectedFault {
    Fail,
    Delay(Duration),
    Drop,
    Duplicate,
    Crash,
    Exhaust,
}

/// One sandbox's fault generator. It is seeded with the order of creation and not with the sandbox id, which differs
/// between runs. Each kind of call has its own counter, so that timing does not change the result.
#[derive(Debug)]
pub(super) struct FaultSource {
    seed: u64,
    faults: Vec<Fault>,
    calls: [AtomicU64; 5],
    backoffs: AtomicU64,
}

impl FaultSource {
    pub(super) fn new(options: &FakeOptions, ordinal: u64) -> Self {
        Self {
            seed: splitmix64(options.seed ^ splitmix64(ordinal)),
            faults: options.faults.clone(),
            calls: Default::default(),
            backoffs: AtomicU64::new(0),
        }
    }

    /// Returns the first configured fault that strikes this call.
    pub(super) fn draw_fault(&self, at: FaultPoint) -> Option<InjectedFault> {
        let call = self.calls[at as usize].fetch_add(1, Ordering::Relaxed);
        let base = splitmix64(self.seed ^ splitmix64(call << 8 | at as u64));
        let struck = self.faults.iter().enumerate().find(|(index, fault)| {
            fault.at == at && unit_interval(splitmix64(base ^ *index as u64)) < fault.rate //
        });
        Some(match struck?.1.kind {
            FaultKind::Fail => InjectedFault::Fail,
            FaultKind::Delay => InjectedFault::Delay(Duration::from_millis(50 + splitmix64(!base) % 451)),
            FaultKind::Drop => InjectedFault::Drop,
            FaultKind::Duplicate => InjectedFault::Duplicate,
            FaultKind::Crash => InjectedFault::Crash,
            FaultKind::Exhaust => InjectedFault::Exhaust,
        })
    }

    /// The seed of a back-off, independent of the faults.
    pub(super) fn backoff_seed(&self) -> u64 {
        splitmix64(!self.seed ^ self.backoffs.fetch_add(1, Ordering::Relaxed))
    }
}

/// One step of SplitMix64.
const fn splitmix64(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[allow(clippy::cast_precision_loss, reason = "53 bits are what a double holds")]
fn unit_interval(value: u64) -> f64 {
    (value >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault_options(rate: f64) -> FakeOptions {
        let fault = |at, kind| Fault { at, kind, rate };
        let faults = vec![
            fault(FaultPoint::Event, FaultKind::Drop),
            fault(FaultPoint::Event, FaultKind::Delay),
            fault(FaultPoint::Create, FaultKind::Fail),
        ];
        FakeOptions { seed: 7, faults }
    }

    fn draw_faults(options: &FakeOptions, ordinal: u64, at: FaultPoint) -> Vec<Option<InjectedFault>> {
        let dice = FaultSource::new(options, ordinal);
        (0..2000).map(|_| dice.draw_fault(at)).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_faults_and_another_gives_others() {
        let some = fault_options(0.2);
        assert_eq!(draw_faults(&some, 1, FaultPoint::Event), draw_faults(&some, 1, FaultPoint::Event));
        assert_ne!(draw_faults(&some, 1, FaultPoint::Event), draw_faults(&some, 2, FaultPoint::Event));
        let other = FakeOptions { seed: 8, ..some.clone() };
        assert_ne!(draw_faults(&some, 1, FaultPoint::Event), draw_faults(&other, 1, FaultPoint::Event));
    }

    #[test]
    fn rates_hold_and_delays_stay_within_their_bounds() {
        let drawn = draw_faults(&fault_options(0.2), 3, FaultPoint::Event);
        let drops = drawn.iter().filter(|one| **one == Some(InjectedFault::Drop)).count();
        assert!((300..500).contains(&drops), "{drops} of 2000 at a rate of 0.2");
        let mut delays = drawn.iter().filter_map(|one| match one {
            Some(InjectedFault::Delay(span)) => Some(span.as_millis()),
            _ => None,
        });
        assert!(delays.clone().count() > 100 && delays.all(|ms| (50..=500).contains(&ms)));
        assert!(draw_faults(&fault_options(0.0), 1, FaultPoint::Event).iter().all(Option::is_none));
        assert!(
            draw_faults(&fault_options(1.0), 1, FaultPoint::Create).iter().all(|one| *one == Some(InjectedFault::Fail))
        );
        assert!(draw_faults(&fault_options(1.0), 1, FaultPoint::Ack).iter().all(Option::is_none));
    }

    #[test]
    fn options_are_read_strictly() {
        let read = |text| serde_json::from_str::<FakeOptions>(text);
        let good = read(r#"{"seed": 7, "faults": [{"at": "ack", "kind": "duplicate", "rate": 0.5}]}"#).unwrap();
        assert_eq!(good.faults, [Fault { at: FaultPoint::Ack, kind: FaultKind::Duplicate, rate: 0.5 }]);
        assert_eq!(read("{}").unwrap(), FakeOptions::default());
        assert!(read(r#"{"faults": [{"at": "ack", "kind": "drop", "rate": 1.5}]}"#).is_err());
        assert!(read(r#"{"seeds": 7}"#).is_err());
    }
}
