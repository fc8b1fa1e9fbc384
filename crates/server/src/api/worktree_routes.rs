//! `/sandboxes/{id}/worktree`: a user's worktree in the sandbox.

use crate::app::worktrees;
use crate::auth::access::CanWork;
use crate::extract::Params;
use crate::problem::Result;
use crate::state::App;
use atoll_api::{SyncedWorktree, WorktreeQuery};
use atoll_core::id::SandboxId;
use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// Copy a worktree into the workspace.
///
/// `atoll code` makes the stream. The first one has all files, a later one only changes. Changes in the workspace that the
/// worktree does not have yet stay.
#[utoipa::path(post, path = "/sandboxes/{id}/worktree/in", tag = "sandboxes", params(("id" = SandboxId, Path)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = SyncedWorktree)))]
pub async fn receive_worktree(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    request: Request,
) -> Result<Json<SyncedWorktree>> {
    worktrees::receive_worktree(app, access, request.into_body()).await.map(Json)
}

/// Read the workspace's changes since a state that the worktree has.
///
/// The response is a git bundle with one commit. It is empty if nothing changed.
#[utoipa::path(post, path = "/sandboxes/{id}/worktree/out", tag = "sandboxes",
    params(("id" = SandboxId, Path), WorktreeQuery),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream")))]
pub async fn send_worktree(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    Params(query): Params<WorktreeQuery>,
) -> Result<Response> {
    let bundle = worktrees::send_worktree(app, access, query.base).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], Body::from_stream(bundle)).into_response())
}
