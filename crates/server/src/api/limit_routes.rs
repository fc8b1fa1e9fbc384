//! `/sandboxes/{id}/limits`: limits of a sandbox's agent.

use crate::app::limits;
use crate::auth::access::{CanSee, CanWork};
use crate::extract::Body;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{ChangeLimits, SandboxLimits};
use atoll_core::id::SandboxId;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Show the limits of a sandbox's agent and its use.
#[utoipa::path(get, path = "/sandboxes/{id}/limits", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = SandboxLimits)))]
pub async fn read_limits(State(app): State<Arc<App>>, access: CanSee<SandboxId>) -> Result<Json<SandboxLimits>> {
    limits::read_limits(&app, access).await.map(Json)
}

/// Change the limits of a sandbox's agent.
///
/// Raising or removing the limit that paused the agent resumes it.
#[utoipa::path(patch, path = "/sandboxes/{id}/limits", tag = "sandboxes", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeLimits, responses((status = 200, body = SandboxLimits)))]
pub async fn change_limits(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<ChangeLimits>,
) -> Result<JsonResponse> {
    limits::submit_change(&app, access, key.with_body(hash), value).await
}
