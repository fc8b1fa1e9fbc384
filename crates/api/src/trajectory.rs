//! Trajectories and transcripts: the agent's work in reading order.

use atoll_core::event::Event;
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Direction {
    /// Towards newer events.
    #[default]
    Forward,
    /// Towards older events.
    Backward,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct TrajectoryQuery {
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000))]
    pub limit: Option<i64>,
    /// `next_cursor` or `prev_cursor` of another page.
    pub cursor: Option<String>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", param(inline))]
    pub direction: Direction,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatSummary {
    pub count: i64,
    pub first_heartbeat: Option<Timestamp>,
    pub last_heartbeat: Option<Timestamp>,
}

/// A page of a sandbox's trajectory.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Trajectory {
    pub sandbox_id: SandboxId,
    /// Oldest first, in either direction.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<crate::events::AnyEvent>))]
    pub events: Vec<Event>,
    pub heartbeat_summary: HeartbeatSummary,
    pub total_events: i64,
    pub trajectory_events: i64,
    /// Cursor of the newer events after this page.
    pub next_cursor: Option<String>,
    /// Cursor of the older events before this page.
    pub prev_cursor: Option<String>,
    /// There is more in the direction of this page.
    pub has_more: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TranscriptForm {
    /// Atoll's own form, the same for every agent; made from the event log.
    #[default]
    Portable,
    /// The agent's own file, as the worker last saved it.
    Native,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct TranscriptQuery {
    #[serde(default)]
    #[cfg_attr(feature = "openapi", param(inline))]
    pub form: TranscriptForm,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct LogQuery {
    /// Only events after this seq.
    #[cfg_attr(feature = "openapi", param(minimum = 0))]
    pub since: Option<i64>,
    /// Only the last events, at most this many.
    #[cfg_attr(feature = "openapi", param(minimum = 1))]
    pub tail: Option<i64>,
}
