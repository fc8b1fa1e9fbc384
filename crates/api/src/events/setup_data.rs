//! Data of events about a project's set-up.

use atoll_core::provider::{CommandExit, OutputStream};
use atoll_core::sandbox::NetworkPolicy;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetupStarted {
    /// Where the steps come from, such as `request`, `repository` or `detected`.
    pub source: String,
    /// The commands, in order.
    pub steps: Vec<String>,
    /// The network policy during set-up.
    pub network: NetworkPolicy,
    /// Remarks about the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetupOutput {
    /// Number of the step, from 1.
    pub step: usize,
    pub stream: OutputStream,
    pub text: String,
    /// Bytes before `text` that the log does not have: it keeps a bounded part of the output.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetupStepCompleted {
    /// Number of the step, from 1.
    pub step: usize,
    pub command: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub exit: CommandExit,
    pub seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetupCompleted {
    pub seconds: f64,
    /// The sandbox started from the layer that an earlier set-up left, and no step ran.
    pub cached: bool,
    /// The set-up is stored as a layer, so that the next sandbox with the same key skips it.
    #[serde(default)]
    pub stored: bool,
    /// The key of the layer; absent if this set-up has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The parts of the key: name and value, or hash of the value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub key_parts: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetupFailed {
    /// Number of the failed step, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<CommandExit>,
    /// What happened, as a sentence.
    pub error: String,
    /// The end of the step's output.
    pub tail: String,
    /// What to do about it, if Atoll knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetupSkipped {
    pub reason: String,
}
