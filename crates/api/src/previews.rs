//! Open ports of sandboxes, and links to them.

use atoll_core::id::PreviewId;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A port on which a program in the sandbox listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Port {
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub port: u16,
    /// The name of the program, if the worker found it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    pub opened_at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PortList {
    pub items: Vec<Port>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewPreview {
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub port: u16,
    /// Seconds until the link ends; `preview.lifetime` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 604_800))]
    pub ttl_s: Option<u32>,
}

/// A link to a port of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Preview {
    pub id: PreviewId,
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub port: u16,
    /// The link; only in the response that created it. Everyone who has it can use the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreviewList {
    pub items: Vec<Preview>,
}
