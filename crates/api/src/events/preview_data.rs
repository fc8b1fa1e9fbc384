//! Data of events about ports and previews.

use atoll_core::id::PreviewId;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PortOpened {
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub port: u16,
    /// The name of the program that listens, if the worker found it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PortClosed {
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreviewCreated {
    pub preview_id: PreviewId,
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub port: u16,
    pub expires_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreviewRevoked {
    pub preview_id: PreviewId,
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub port: u16,
}
