//! Health checks.

use serde::{Deserialize, Serialize};

/// The process is up: `/healthz`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    pub status: String,
    pub version: String,
}

/// The database answers, or not: `/readyz` and `/sandboxes/health`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreHealth {
    /// `ready`, `healthy` or `not_ready`.
    pub status: String,
    /// The kind of database, if it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}
