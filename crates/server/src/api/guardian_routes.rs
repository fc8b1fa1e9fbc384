//! The guardian: interventions, its state for a sandbox, and the replay of a log.

use crate::app::guardian;
use crate::auth::access::{CanList, CanSee};
use crate::extract::{Body, Params};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{GuardianReplay, GuardianStatus, Intervention, InterventionListQuery, Page, PageQuery, ReplayGuardian};
use atoll_core::id::{InterventionId, SandboxId};
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// List the guardian's interventions, newest first.
#[utoipa::path(get, path = "/interventions", tag = "guardian", params(InterventionListQuery),
    responses((status = 200, body = Page<Intervention>)))]
pub async fn list_interventions(
    State(app): State<Arc<App>>,
    access: CanList,
    Params(query): Params<InterventionListQuery>,
) -> Result<Json<Page<Intervention>>> {
    guardian::list_all(&app, access, query).await.map(Json)
}

/// Show an intervention.
#[utoipa::path(get, path = "/interventions/{id}", tag = "guardian", params(("id" = InterventionId, Path)),
    responses((status = 200, body = Intervention)))]
pub async fn read_intervention(
    State(app): State<Arc<App>>,
    access: CanSee<InterventionId>,
) -> Result<Json<Intervention>> {
    guardian::read_intervention(&app, access).await.map(Json)
}

/// List the guardian's interventions in a sandbox, newest first.
#[utoipa::path(get, path = "/sandboxes/{id}/interventions", tag = "guardian",
    params(("id" = SandboxId, Path), PageQuery), responses((status = 200, body = Page<Intervention>)))]
pub async fn list_sandbox_interventions(
    State(app): State<Arc<App>>,
    access: CanSee<SandboxId>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<Intervention>>> {
    guardian::list_of_sandbox(&app, access, query).await.map(Json)
}

/// Show the guardian's settings and counts for a sandbox.
#[utoipa::path(get, path = "/sandboxes/{id}/guardian", tag = "guardian", params(("id" = SandboxId, Path)),
    responses((status = 200, body = GuardianStatus)))]
pub async fn read_guardian(State(app): State<Arc<App>>, access: CanSee<SandboxId>) -> Result<Json<GuardianStatus>> {
    guardian::read_status(&app, access).await.map(Json)
}

/// Replay a sandbox's log with other settings of the guardian.
///
/// Nothing is sent or stored: the response lists what the guardian would have done.
#[utoipa::path(post, path = "/sandboxes/{id}/guardian/replay", tag = "guardian", params(("id" = SandboxId, Path)),
    request_body = ReplayGuardian, responses((status = 200, body = GuardianReplay)))]
pub async fn replay_guardian(
    State(app): State<Arc<App>>,
    access: CanSee<SandboxId>,
    Body { value, .. }: Body<ReplayGuardian>,
) -> Result<Json<GuardianReplay>> {
    guardian::replay_log(&app, access, value).await.map(Json)
}
