//! Tickets.

use atoll_core::id::{ProjectId, SessionId, TicketId};
use atoll_core::pull_request::PullRequestLink;
use atoll_core::ticket::{TicketKey, TicketPriority, TicketStatus, TicketType};
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A piece of work that owns a branch and a pull request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ticket {
    pub id: TicketId,
    /// Unique key for people, such as `ATL-12`.
    pub key: TicketKey,
    pub project_id: ProjectId,
    pub title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(rename = "type")]
    pub ticket_type: TicketType,
    pub priority: TicketPriority,
    pub status: TicketStatus,
    /// No sandbox can start to work on it.
    pub blocked: bool,
    /// Tickets of the same project that come first.
    pub depends_on: Vec<TicketKey>,
    pub branch: Option<String>,
    pub pr: Option<PullRequestLink>,
    /// The session that worked on it last.
    pub session_id: Option<SessionId>,
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewTicket {
    pub title: String,
    /// The project; by default the default project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<ProjectId>,
    /// The task for the agent, if the sandbox has no prompt of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `feature` by default.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub ticket_type: Option<TicketType>,
    /// `medium` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<TicketPriority>,
    /// `backlog` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<TicketStatus>,
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub blocked: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 50))]
    pub depends_on: Vec<TicketKey>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeTicket {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// `null` removes the description.
    #[serde(default, deserialize_with = "crate::deserialize_present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub description: Option<Option<String>>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub ticket_type: Option<TicketType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<TicketPriority>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<TicketStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<bool>,
    /// Replaces all dependencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 50))]
    pub depends_on: Option<Vec<TicketKey>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct TicketListQuery {
    pub project: Option<ProjectId>,
    pub status: Option<TicketStatus>,
    #[serde(rename = "type")]
    pub ticket_type: Option<TicketType>,
    pub priority: Option<TicketPriority>,
    pub blocked: Option<bool>,
    /// The ticket with this key.
    pub key: Option<TicketKey>,
    /// The ticket that owns this branch.
    pub branch: Option<String>,
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 200))]
    pub limit: Option<i64>,
    pub cursor: Option<String>,
}
