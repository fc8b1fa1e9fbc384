//! Data of events about services.

use atoll_core::provider::CommandExit;
use atoll_core::string_enum;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceStarted {
    pub name: String,
    /// The port of its ready check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Number of restarts since the worker started, or since the last fork or snapshot.
    pub restarts: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceReady {
    pub name: String,
    /// Seconds from its start.
    pub seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceExited {
    pub name: String,
    /// Its exit, unless it could not start.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub exit: Option<CommandExit>,
    /// What happened, in words.
    pub detail: String,
    /// The end of its output.
    pub tail: String,
    /// Delay before the restart, in seconds.
    pub restart_s: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceStopped {
    pub name: String,
}

string_enum! {
    /// Why the worker gave a service up.
    "service failure"
    ServiceFailure {
        /// It ended before it was ready for the first time.
        NotStarted = "not_started",
        /// It was not ready in time.
        NotReady = "not_ready",
        /// It ended too often.
        TooManyRestarts = "too_many_restarts",
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceFailed {
    pub name: String,
    pub reason: ServiceFailure,
    /// What happened, in words.
    pub detail: String,
    /// Its last exit; `null` if it still ran, or could not start.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub exit: Option<CommandExit>,
    /// The end of its output.
    pub tail: String,
}
