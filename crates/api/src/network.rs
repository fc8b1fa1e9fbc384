//! The network of a sandbox.

use atoll_core::sandbox::NetworkPolicy;
use serde::{Deserialize, Serialize};

/// The network policy of a sandbox and its traffic so far.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkStatus {
    pub policy: NetworkPolicy,
    /// The hosts that the policies `allow` and `packages` list.
    pub allow: Vec<String>,
    /// Traffic by host since the server started, busiest first.
    pub hosts: Vec<HostTraffic>,
    pub total: TrafficTotal,
}

/// Traffic between a sandbox and one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostTraffic {
    /// `(others)` sums up all hosts after the first 512.
    pub host: String,
    #[cfg_attr(feature = "openapi", schema(maximum = 65535))]
    pub port: u16,
    /// Bytes that left the sandbox.
    pub sent: u64,
    /// Bytes that entered the sandbox.
    pub received: u64,
    pub connections: u64,
    pub refused: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TrafficTotal {
    pub sent: u64,
    pub received: u64,
    pub connections: u64,
    pub refused: u64,
}
