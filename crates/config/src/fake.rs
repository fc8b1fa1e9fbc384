//! The form of `providers.fake`.

use serde::{Deserialize, Serialize};

pub(crate) const FORM: &str = "{seed: whole number, faults: [{at: create|heartbeat|event|ack|destroy, \
     kind: fail|delay|drop|duplicate|crash, rate: 0 to 1}]}";

/// What the `fake` provider does wrong, and how it throws its dice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fake {
    pub seed: u64,
    pub faults: Vec<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub at: FaultAt,
    pub kind: FaultKind,
    /// How often it happens: 0 is never, 1 always.
    pub rate: f64,
}

atoll_core::words! {
    "place of a fault"
    FaultAt { Create = "create", Heartbeat = "heartbeat", Event = "event", Ack = "ack", Destroy = "destroy" }
}

atoll_core::words! {
    "kind of fault"
    FaultKind { Fail = "fail", Delay = "delay", Drop = "drop", Duplicate = "duplicate", Crash = "crash" }
}

/// Brings what was written to its full form.
pub(crate) fn read(written: serde_json::Value) -> Result<serde_json::Value, String> {
    let fake: Fake = serde_json::from_value(written).map_err(|error| error.to_string())?;
    if let Some(fault) = fake.faults.iter().find(|fault| !(0.0..=1.0).contains(&fault.rate)) {
        return Err(format!("the rate {} is not from 0 to 1", fault.rate));
    }
    serde_json::to_value(fake).map_err(|error| error.to_string())
}
