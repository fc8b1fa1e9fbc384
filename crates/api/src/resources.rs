//! Resource usage of a sandbox.

use atoll_core::sandbox::Resources;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct ResourceQuery {
    /// Only samples from this time on; by default those of the last hour. Older ones are ten minutes apart.
    pub since: Option<Timestamp>,
    /// Seconds between two samples.
    #[cfg_attr(feature = "openapi", param(minimum = 10, maximum = 3600))]
    pub step: Option<u64>,
}

/// Resource usage of a sandbox over time.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceSeries {
    /// The sandbox's resource limits.
    pub limits: Option<Resources>,
    /// The current usage; absent if the sandbox does not run.
    pub now: Option<ResourceSample>,
    pub step_s: u64,
    pub items: Vec<ResourceSample>,
}

/// Resource usage of a sandbox at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceSample {
    pub at: Timestamp,
    /// Processors in use since the previous sample, such as 1.5.
    pub cpu: Option<f64>,
    pub memory_bytes: u64,
    /// Disk use of the sandbox alone; absent if neither the server nor the worker can measure it.
    pub disk_bytes: Option<u64>,
    pub pids: u64,
    /// Bytes in and out since the sandbox started.
    pub network_bytes: u64,
}
