//! Limits of a sandbox's agent.

use crate::deserialize_present;
use atoll_core::limit::Limit;
use atoll_core::model::CostSource;
use atoll_core::sandbox::{Activity, AgentLimits};
use serde::{Deserialize, Serialize};

/// The limits of a sandbox's agent and its use so far.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxLimits {
    pub limits: AgentLimits,
    /// The limit that paused the agent.
    pub limit_paused: Option<Limit>,
    pub activity: Activity,
    pub turns: i64,
    /// Model cost so far, in US dollars; absent if it is unknown.
    pub cost_usd: Option<f64>,
    pub cost_source: CostSource,
}

/// A change of limits: an absent limit stays, `null` removes it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeLimits {
    #[serde(default, deserialize_with = "deserialize_present")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>, minimum = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<Option<u32>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<Option<f64>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>, minimum = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_s: Option<Option<u32>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>, minimum = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_progress_s: Option<Option<u32>>,
}
