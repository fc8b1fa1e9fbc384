//! API tokens and one-time tickets.

use atoll_core::id::{ProjectId, TokenId, UserId};
use atoll_core::principal::{Role, TokenKind};
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    pub id: TokenId,
    pub kind: TokenKind,
    pub name: String,
    pub user_id: Option<UserId>,
    pub role: Role,
    pub project_id: Option<ProjectId>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// The token itself; only in the response that created it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewToken {
    pub name: String,
    /// `user` (the default): for a person, with that person's role. `service`: for a program.
    #[serde(default = "for_user")]
    pub kind: TokenKind,
    /// The token's user; the caller if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// The role of a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Limits a service to one project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<ProjectId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

const fn for_user() -> TokenKind {
    TokenKind::User
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebSocketTicket {
    pub ticket: String,
    pub expires_at: Timestamp,
}
