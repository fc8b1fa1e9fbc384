//! Faults that are drawn from a seed: the same seed and the same calls give the same faults.
//!
//! | kind | `create`, `destroy` | `heartbeat`, `event`, `ack` |
//! |---|---|---|
//! | `fail` | nothing is done; unreachable | the call is not made; the worker tries again |
//! | `drop` | it is done, but the answer is lost: unreachable | the same: a worker can't tell them apart |
//! | `delay` | 50 to 500 ms before the call | the same |
//! | `duplicate` | asked twice under the same key | the call is made twice, as after a lost answer |
//! | `crash` | the worker ends abruptly; `destroy` itself fails | the worker ends abruptly |

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FakeOptions {
    pub seed: u64,
    pub faults: Vec<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub at: FaultAt,
    pub kind: FaultKind,
    /// How often, from 0 (never) to 1 (always).
    #[serde(deserialize_with = "share")]
    pub rate: f64,
}

fn share<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let rate = f64::deserialize(deserializer)?;
    if (0.0..=1.0).contains(&rate) { Ok(rate) } else { Err(serde::de::Error::custom("a rate is a number from 0 to 1")) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultAt {
    Create,
    Heartbeat,
    Event,
    Ack,
    Destroy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    Fail,
    Delay,
    Drop,
    Duplicate,
    Crash,
}

/// What is to happen to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mishap {
    Fail,
    Delay(Duration),
    Drop,
    Duplicate,
    Crash,
}

/// One sandbox's luck. Sandboxes are told apart by the order in which they were first asked for,
/// not by their ids, which differ from run to run; each kind of call counts for itself, so that
/// the timing of one doesn't change what happens to another.
#[derive(Debug)]
pub(super) struct Dice {
    seed: u64,
    faults: Vec<Fault>,
    calls: [AtomicU64; 5],
    draws: AtomicU64,
}

impl Dice {
    pub(super) fn new(options: &FakeOptions, ordinal: u64) -> Self {
        Self {
            seed: mix(options.seed ^ mix(ordinal)),
            faults: options.faults.clone(),
            calls: Default::default(),
            draws: AtomicU64::new(0),
        }
    }

    /// The first of the configured faults that strikes this call.
    pub(super) fn roll(&self, at: FaultAt) -> Option<Mishap> {
        let call = self.calls[at as usize].fetch_add(1, Ordering::Relaxed);
        let base = mix(self.seed ^ mix(call << 8 | at as u64));
        let struck = self.faults.iter().enumerate().find(|(index, fault)| {
            fault.at == at && unit(mix(base ^ *index as u64)) < fault.rate //
        });
        Some(match struck?.1.kind {
            FaultKind::Fail => Mishap::Fail,
            FaultKind::Delay => Mishap::Delay(Duration::from_millis(50 + mix(!base) % 451)),
            FaultKind::Drop => Mishap::Drop,
            FaultKind::Duplicate => Mishap::Duplicate,
            FaultKind::Crash => Mishap::Crash,
        })
    }

    /// A number from 0 to below 1, for jitter; apart from the faults.
    pub(super) fn jitter(&self) -> f64 {
        unit(mix(!self.seed ^ self.draws.fetch_add(1, Ordering::Relaxed)))
    }
}

/// One step of SplitMix64.
const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[allow(clippy::cast_precision_loss, reason = "53 bits are what a double holds")]
fn unit(value: u64) -> f64 {
    (value >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(rate: f64) -> FakeOptions {
        let fault = |at, kind| Fault { at, kind, rate };
        let faults = vec![
            fault(FaultAt::Event, FaultKind::Drop),
            fault(FaultAt::Event, FaultKind::Delay),
            fault(FaultAt::Create, FaultKind::Fail),
        ];
        FakeOptions { seed: 7, faults }
    }

    fn rolls(options: &FakeOptions, ordinal: u64, at: FaultAt) -> Vec<Option<Mishap>> {
        let dice = Dice::new(options, ordinal);
        (0..2000).map(|_| dice.roll(at)).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_faults_and_another_gives_others() {
        let some = options(0.2);
        assert_eq!(rolls(&some, 1, FaultAt::Event), rolls(&some, 1, FaultAt::Event));
        assert_ne!(rolls(&some, 1, FaultAt::Event), rolls(&some, 2, FaultAt::Event));
        let other = FakeOptions { seed: 8, ..some.clone() };
        assert_ne!(rolls(&some, 1, FaultAt::Event), rolls(&other, 1, FaultAt::Event));
    }

    #[test]
    fn rates_hold_and_delays_stay_within_their_bounds() {
        let drawn = rolls(&options(0.2), 3, FaultAt::Event);
        let drops = drawn.iter().filter(|one| **one == Some(Mishap::Drop)).count();
        assert!((300..500).contains(&drops), "{drops} of 2000 at a rate of 0.2");
        let mut delays = drawn.iter().filter_map(|one| match one {
            Some(Mishap::Delay(span)) => Some(span.as_millis()),
            _ => None,
        });
        assert!(delays.clone().count() > 100 && delays.all(|ms| (50..=500).contains(&ms)));
        assert!(rolls(&options(0.0), 1, FaultAt::Event).iter().all(Option::is_none));
        assert!(rolls(&options(1.0), 1, FaultAt::Create).iter().all(|one| *one == Some(Mishap::Fail)));
        assert!(rolls(&options(1.0), 1, FaultAt::Ack).iter().all(Option::is_none));
    }

    #[test]
    fn options_are_read_strictly() {
        let read = |text| serde_json::from_str::<FakeOptions>(text);
        let good = read(r#"{"seed": 7, "faults": [{"at": "ack", "kind": "duplicate", "rate": 0.5}]}"#).unwrap();
        assert_eq!(good.faults, [Fault { at: FaultAt::Ack, kind: FaultKind::Duplicate, rate: 0.5 }]);
        assert_eq!(read("{}").unwrap(), FakeOptions::default());
        assert!(read(r#"{"faults": [{"at": "ack", "kind": "drop", "rate": 1.5}]}"#).is_err());
        assert!(read(r#"{"seeds": 7}"#).is_err());
    }
}
