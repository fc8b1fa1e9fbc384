//! `/approvals` and `/sandboxes/{id}/approvals`: pending approvals and their answers.

use crate::app::approvals;
use crate::auth::access::{CanList, CanSee, CanWork};
use crate::extract::{Body, Params, SubId};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{AnswerApproval, Approval, ApprovalListQuery, Page, PageQuery};
use atoll_core::id::SandboxId;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// List the pending approvals of all sandboxes, oldest first.
#[utoipa::path(get, path = "/approvals", tag = "approvals", params(ApprovalListQuery),
    responses((status = 200, body = Page<Approval>)))]
pub async fn list_pending_approvals(
    State(app): State<Arc<App>>,
    access: CanList,
    Params(query): Params<ApprovalListQuery>,
) -> Result<Json<Page<Approval>>> {
    approvals::list_pending(&app, access, query).await.map(Json)
}

/// List the approvals that a sandbox's agent requested.
#[utoipa::path(get, path = "/sandboxes/{id}/approvals", tag = "approvals", params(("id" = SandboxId, Path), PageQuery),
    responses((status = 200, body = Page<Approval>)))]
pub async fn list_approvals(
    State(app): State<Arc<App>>,
    access: CanSee<SandboxId>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<Approval>>> {
    approvals::list_of_sandbox(&app, access, query).await.map(Json)
}

/// Allow or deny a tool call, or answer a question of the agent.
///
/// The first answer wins; repeating it changes nothing. The agent has the answer when the state is `resolved`.
#[utoipa::path(post, path = "/sandboxes/{id}/approvals/{approval_id}", tag = "approvals",
    params(("id" = SandboxId, Path), ("approval_id" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = AnswerApproval, responses((status = 200, body = Approval)))]
pub async fn answer_approval(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    SubId(approval_id): SubId<String>,
    key: IdempotencyKey,
    Body { value, hash }: Body<AnswerApproval>,
) -> Result<JsonResponse> {
    approvals::submit_answer(&app, access, approval_id, key.with_body(hash), value).await
}
