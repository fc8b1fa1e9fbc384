//! `/sandboxes/{id}/ports` and `/sandboxes/{id}/previews`.

use crate::app::previews;
use crate::auth::access::{CanSee, CanWork};
use crate::extract::{Body, SubId};
use crate::idempotency::JsonResponse;
use crate::problem::Result;
use crate::state::App;
use atoll_api::{NewPreview, PortList, Preview, PreviewList};
use atoll_core::id::{PreviewId, SandboxId};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use std::sync::Arc;

/// List the ports on which programs in the sandbox listen.
#[utoipa::path(get, path = "/sandboxes/{id}/ports", tag = "previews", params(("id" = SandboxId, Path)),
    responses((status = 200, body = PortList)))]
pub async fn list_ports(State(app): State<Arc<App>>, access: CanSee<SandboxId>) -> Result<Json<PortList>> {
    previews::list_ports(&app, access).await.map(Json)
}

/// Create a link to a port of the sandbox, which only this response shows.
///
/// The link is on an origin of its own. Everyone who has it can use the port, until it expires or is revoked, its creator
/// loses access to the sandbox or the sandbox ends.
#[utoipa::path(post, path = "/sandboxes/{id}/previews", tag = "previews", request_body = NewPreview,
    params(("id" = SandboxId, Path)), responses((status = 201, body = Preview)))]
pub async fn create_preview(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    headers: HeaderMap,
    Body { value, .. }: Body<NewPreview>,
) -> Result<JsonResponse> {
    let authority = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    previews::create_preview(&app, access, value, &authority.to_ascii_lowercase()).await
}

/// List the links to ports of the sandbox.
#[utoipa::path(get, path = "/sandboxes/{id}/previews", tag = "previews", params(("id" = SandboxId, Path)),
    responses((status = 200, body = PreviewList)))]
pub async fn list_previews(State(app): State<Arc<App>>, access: CanSee<SandboxId>) -> Result<Json<PreviewList>> {
    previews::list_sandbox_previews(&app, access).await.map(Json)
}

/// Revoke a link to a port; its open connections end.
#[utoipa::path(delete, path = "/sandboxes/{id}/previews/{preview_id}", tag = "previews",
    params(("id" = SandboxId, Path), ("preview_id" = PreviewId, Path)), responses((status = 200, body = Preview)))]
pub async fn revoke_preview(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    SubId(preview): SubId<PreviewId>,
) -> Result<Json<Preview>> {
    previews::revoke_preview(&app, access, preview).await.map(Json)
}
