//! Options of the `fake` provider: its seed and the faults that it injects.

use serde::{Deserialize, Deserializer, Serialize};

/// Schema of [`FakeOptions`], for messages.
pub const FAKE_OPTIONS_FORM: &str = "{seed: whole number, faults: [{at: create|heartbeat|event|ack|destroy, \
     kind: fail|delay|drop|duplicate|crash|exhaust, rate: 0 to 1}]}";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FakeOptions {
    pub seed: u64,
    pub faults: Vec<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub at: FaultPoint,
    pub kind: FaultKind,
    /// Probability, from 0 (never) to 1 (always).
    #[serde(deserialize_with = "deserialize_rate")]
    pub rate: f64,
}

fn deserialize_rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let rate = f64::deserialize(deserializer)?;
    if (0.0..=1.0).contains(&rate) {
        Ok(rate)
    } else {
        Err(serde::de::Error::custom(format!("the rate {rate} is not from 0 to 1")))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultPoint {
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
    /// At `create`: the quota is used up.
    Exhaust,
}
