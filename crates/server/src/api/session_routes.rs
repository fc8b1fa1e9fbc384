//! `/sessions`: list, read, change, resume and fork them.

use crate::app::sessions;
use crate::auth::access::{CanList, CanSee, CanWork};
use crate::extract::{Body, Params};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{ChangeSession, ForkSession, Page, ResumeSession, Sandbox, Session, SessionListQuery};
use atoll_core::id::SessionId;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// List sessions, newest first.
#[utoipa::path(get, path = "/sessions", tag = "sessions", params(SessionListQuery),
    responses((status = 200, body = Page<Session>)))]
pub async fn list_sessions(
    State(app): State<Arc<App>>,
    access: CanList,
    Params(query): Params<SessionListQuery>,
) -> Result<Json<Page<Session>>> {
    sessions::list_sessions(&app, access, query).await.map(Json)
}

/// Show a session.
#[utoipa::path(get, path = "/sessions/{id}", tag = "sessions", params(("id" = SessionId, Path)),
    responses((status = 200, body = Session)))]
pub async fn read_session(State(app): State<Arc<App>>, access: CanSee<SessionId>) -> Result<Json<Session>> {
    sessions::read_session(&app, access).await.map(Json)
}

/// Rename or close a session.
///
/// Closing makes queued messages undeliverable and stops the session's sandbox.
#[utoipa::path(patch, path = "/sessions/{id}", tag = "sessions", params(("id" = SessionId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeSession, responses((status = 200, body = Session)))]
pub async fn change_session(
    State(app): State<Arc<App>>,
    access: CanWork<SessionId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<ChangeSession>,
) -> Result<JsonResponse> {
    sessions::submit_change(&app, access, key.with_body(hash), value).await
}

/// Resume a session in a new sandbox like its last.
#[utoipa::path(post, path = "/sessions/{id}/resume", tag = "sessions", params(("id" = SessionId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ResumeSession, responses((status = 201, body = Sandbox)))]
pub async fn resume_session(
    State(app): State<Arc<App>>,
    access: CanWork<SessionId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<ResumeSession>,
) -> Result<JsonResponse> {
    sessions::submit_resume(&app, access, key.with_body(hash), value).await
}

/// Fork a session: create one that continues from its current state.
#[utoipa::path(post, path = "/sessions/{id}/fork", tag = "sessions", params(("id" = SessionId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ForkSession, responses((status = 201, body = Session)))]
pub async fn fork_session(
    State(app): State<Arc<App>>,
    access: CanWork<SessionId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<ForkSession>,
) -> Result<JsonResponse> {
    sessions::submit_fork(&app, access, key.with_body(hash), value).await
}
