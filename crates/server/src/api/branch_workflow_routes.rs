//! `/branch-workflow` and `/pull-requests`: publish and merge the branches of tickets and sessions.

use crate::app::branch_workflow::requests;
use crate::auth::access::{CanList, CanSee, ClientCaller};
use crate::extract::{Body, Params};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{
    BranchWorkflow, BranchWorkflowQuery, FinishBranchWorkflow, MergeBranchWorkflow, Page, PullRequestListQuery,
    PullRequestView, StartBranchWorkflow,
};
use atoll_core::id::SessionId;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Create the branch of a ticket.
///
/// A sandbox for the ticket does the same.
#[utoipa::path(post, path = "/branch-workflow/start", tag = "branch workflow",
    params(("Idempotency-Key" = Option<String>, Header)), request_body = StartBranchWorkflow,
    responses((status = 201, body = BranchWorkflow)))]
pub async fn start_branch_workflow(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    key: IdempotencyKey,
    Body { value, hash }: Body<StartBranchWorkflow>,
) -> Result<JsonResponse> {
    requests::start_workflow(&app, client, key.with_body(hash), value).await
}

/// Push the branch and open a pull request.
///
/// The server does so in the background. A failed workflow continues.
#[utoipa::path(post, path = "/branch-workflow/finish", tag = "branch workflow",
    params(("Idempotency-Key" = Option<String>, Header)), request_body = FinishBranchWorkflow,
    responses((status = 200, body = BranchWorkflow)))]
pub async fn finish_branch_workflow(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    key: IdempotencyKey,
    Body { value, hash }: Body<FinishBranchWorkflow>,
) -> Result<JsonResponse> {
    requests::finish_workflow(&app, client, key.with_body(hash), value).await
}

/// Merge the pull request when its checks and reviews allow it.
///
/// The server does so in the background, and deletes the branch afterwards.
#[utoipa::path(post, path = "/branch-workflow/merge", tag = "branch workflow",
    params(("Idempotency-Key" = Option<String>, Header)), request_body = MergeBranchWorkflow,
    responses((status = 200, body = BranchWorkflow)))]
pub async fn merge_branch_workflow(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    key: IdempotencyKey,
    Body { value, hash }: Body<MergeBranchWorkflow>,
) -> Result<JsonResponse> {
    requests::merge_workflow(&app, client, key.with_body(hash), value).await
}

/// Show the branch workflow of a ticket or a session.
#[utoipa::path(get, path = "/branch-workflow/status", tag = "branch workflow", params(BranchWorkflowQuery),
    responses((status = 200, body = BranchWorkflow)))]
pub async fn read_branch_workflow(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    Params(query): Params<BranchWorkflowQuery>,
) -> Result<Json<BranchWorkflow>> {
    requests::read_status(&app, client, query).await.map(Json)
}

/// List the pull requests that Atoll opened, newest session first.
#[utoipa::path(get, path = "/pull-requests", tag = "branch workflow", params(PullRequestListQuery),
    responses((status = 200, body = Page<PullRequestView>)))]
pub async fn list_pull_requests(
    State(app): State<Arc<App>>,
    access: CanList,
    Params(query): Params<PullRequestListQuery>,
) -> Result<Json<Page<PullRequestView>>> {
    requests::list_pull_requests(&app, access, query).await.map(Json)
}

/// Show a session's pull request, with its checks and reviews.
#[utoipa::path(get, path = "/pull-requests/{id}", tag = "branch workflow", params(("id" = SessionId, Path)),
    responses((status = 200, body = PullRequestView)))]
pub async fn read_pull_request(
    State(app): State<Arc<App>>,
    access: CanSee<SessionId>,
) -> Result<Json<PullRequestView>> {
    requests::read_pull_request(&app, access).await.map(Json)
}
