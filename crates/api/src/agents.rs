//! The coding agents that a server knows.

use atoll_core::agent::Abilities;
use serde::{Deserialize, Serialize};

/// A coding agent and its state on the server's machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Agent {
    pub name: String,
    pub title: String,
    /// A sandbox on the server's machine can run it now.
    pub usable: bool,
    /// Path of its program on the server's machine; only admins see it.
    pub path: Option<String>,
    /// How the server found it: `installed`, `configured`, `path` or `builtin`.
    pub origin: Option<String>,
    pub version: Option<String>,
    /// The installed version is the one that Atoll is tested with.
    pub tested: bool,
    /// A model key is available, or the agent needs none.
    pub key: bool,
    /// Environment variables that may hold the model key.
    pub keys: Vec<String>,
    pub abilities: Abilities,
    /// Sentences that say why the agent is not usable.
    pub missing: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentList {
    pub items: Vec<Agent>,
}
