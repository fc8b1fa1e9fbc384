//! The providers of a server.

use atoll_core::provider::Capabilities;
use atoll_core::sandbox::ProviderKind;
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
    /// Operations that it supports, and the maximum resources of one sandbox.
    pub capabilities: Capabilities,
    /// Limit on the time between the request and the first heartbeat of a sandbox, in seconds.
    pub create_timeout_s: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProviderList {
    pub items: Vec<Provider>,
}
