//! Sessions.

use crate::ModelUsage;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::model::CostSource;
use atoll_core::sandbox::{ProviderKind, Reason};
use atoll_core::session::SessionState;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Session {
    pub id: SessionId,
    pub project_id: ProjectId,
    pub agent: Option<String>,
    pub title: String,
    pub branch: Option<String>,
    pub state: SessionState,
    /// The live sandbox, if there is one.
    pub sandbox_id: Option<SandboxId>,
    pub last_sandbox_id: Option<SandboxId>,
    pub native_id: Option<String>,
    pub transcript: Option<String>,
    pub forked_from: Option<SessionId>,
    /// In US dollars; absent if it is unknown.
    pub cost: Option<f64>,
    pub cost_source: CostSource,
    /// Model usage; only in responses about one session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<ModelUsage>,
    /// It was removed: lists omit it.
    #[serde(default)]
    pub archived: bool,
    /// Why a person has to look at it: Atoll restarted it too often. Its next sandbox removes this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<Reason>,
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct SessionListQuery {
    pub project: Option<ProjectId>,
    pub state: Option<SessionState>,
    /// The beginning or the end of an id, or a branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Also removed sessions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub archived: bool,
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 200))]
    pub limit: Option<i64>,
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeSession {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<SessionState>,
    /// Remove the session from lists, or show it again. A session with a live sandbox cannot be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archived: Option<bool>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResumeSession {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderKind>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForkSession {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}
