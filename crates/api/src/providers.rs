//! The providers of a server.

use atoll_core::health::circuit_breaker::CircuitState;
use atoll_core::provider::Capabilities;
use atoll_core::sandbox::ProviderKind;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A provider, its capabilities and limits, and its state on this server.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Provider {
    pub name: ProviderKind,
    /// Sandboxes use it unless the request or the project names another one.
    pub is_default: bool,
    /// It responds and can create sandboxes.
    pub available: bool,
    /// A sentence that says why it is not available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The circuit breaker, unless it is closed: the provider fails, and the server creates no sandbox there for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circuit: Option<Circuit>,
    /// Operations that it supports, and the maximum resources of one sandbox.
    pub capabilities: Capabilities,
    /// Limit on the time between the request and the first heartbeat of a sandbox, in seconds.
    pub create_timeout_s: u64,
}

/// The circuit breaker of a failing provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Circuit {
    pub state: CircuitState,
    /// Consecutive failures.
    pub failures: u32,
    /// When the server tries the provider again; absent if the next creation does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// The last failure; only admins see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProviderList {
    pub items: Vec<Provider>,
}
