//! `/sandboxes`: create, list, read, stop, pause, resume, fork and remove them.

use crate::app::{create, pausing, results, sandboxes, tokens};
use crate::auth::access::{CanList, CanSee, CanWork, ClientCaller, ReaderOrWorker};
use crate::extract::{Body, Params};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{
    ExportedResults, ForkSandbox, NewSandbox, Page, RemoveSandboxQuery, ResourceQuery, ResourceSeries, Sandbox,
    SandboxListQuery, SandboxPreview, StopSandbox, WorkerStart,
};
use atoll_core::id::SandboxId;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Create a sandbox.
///
/// The response comes at once; a job creates the sandbox. With `provider: "external"` the response holds `worker`: how to
/// start the worker by hand, on any machine.
#[utoipa::path(post, path = "/sandboxes", tag = "sandboxes", request_body = NewSandbox,
    params(("Idempotency-Key" = Option<String>, Header)), responses((status = 201, body = Sandbox)))]
pub async fn create_sandbox(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    key: IdempotencyKey,
    Body { value, hash }: Body<NewSandbox>,
) -> Result<JsonResponse> {
    create::create_sandbox(&app, client, key.with_body(hash), value).await
}

/// Resolve the agent and the settings of a sandbox, without creating it.
#[utoipa::path(post, path = "/sandboxes/preview", tag = "sandboxes", request_body = NewSandbox,
    responses((status = 200, body = SandboxPreview)))]
pub async fn preview_sandbox(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    Body { value, .. }: Body<NewSandbox>,
) -> Result<Json<SandboxPreview>> {
    create::preview_sandbox(&app, client, value).await.map(Json)
}

/// List sandboxes, newest first.
#[utoipa::path(get, path = "/sandboxes", tag = "sandboxes", params(SandboxListQuery),
    responses((status = 200, body = Page<Sandbox>)))]
pub async fn list_sandboxes(
    State(app): State<Arc<App>>,
    access: CanList,
    Params(query): Params<SandboxListQuery>,
) -> Result<Json<Page<Sandbox>>> {
    sandboxes::list_sandboxes(&app, access, query).await.map(Json)
}

/// Show a sandbox.
#[utoipa::path(get, path = "/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = Sandbox)))]
pub async fn read_sandbox(State(app): State<Arc<App>>, access: ReaderOrWorker) -> Result<Json<Sandbox>> {
    sandboxes::read_sandbox(&app, access).await.map(Json)
}

/// Stop a sandbox.
///
/// `take` (the default) exports the results first; `discard` ends the sandbox at once.
#[utoipa::path(post, path = "/sandboxes/{id}/stop", tag = "sandboxes", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = StopSandbox, responses((status = 200, body = Sandbox)))]
pub async fn stop_sandbox(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<StopSandbox>,
) -> Result<JsonResponse> {
    results::submit_stop(&app, access, key.with_body(hash), value.results).await
}

/// Export the results of a sandbox.
///
/// A running sandbox commits its current work to the session's branch, between two tool calls, and continues.
#[utoipa::path(post, path = "/sandboxes/{id}/results", tag = "sandboxes", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = ExportedResults)))]
pub async fn export_results(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
) -> Result<JsonResponse> {
    results::export_results(&app, access, key).await
}

/// Pause a sandbox. Its processes keep their memory.
#[utoipa::path(post, path = "/sandboxes/{id}/pause", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = Sandbox)))]
pub async fn pause_sandbox(State(app): State<Arc<App>>, access: CanWork<SandboxId>) -> Result<Json<Sandbox>> {
    pausing::pause_sandbox(app, access).await.map(Json)
}

/// Resume a paused sandbox.
#[utoipa::path(post, path = "/sandboxes/{id}/resume", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = Sandbox)))]
pub async fn resume_sandbox(State(app): State<Arc<App>>, access: CanWork<SandboxId>) -> Result<Json<Sandbox>> {
    pausing::resume_sandbox(app, access).await.map(Json)
}

/// Create a sandbox with the current files of this one, in a fork of its session.
///
/// Only between two turns of the agent. Processes are not copied, and the agent's processes in this sandbox end.
#[utoipa::path(post, path = "/sandboxes/{id}/fork", tag = "sandboxes",
    params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ForkSandbox, responses((status = 201, body = Sandbox)))]
pub async fn fork_sandbox(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<ForkSandbox>,
) -> Result<JsonResponse> {
    sandboxes::fork_sandbox(app, access, key.with_body(hash), value).await
}

/// Remove a sandbox at its provider and from lists. Its row, events and blobs stay until retention removes them.
#[utoipa::path(delete, path = "/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxId, Path), RemoveSandboxQuery),
    responses((status = 200, body = Sandbox)))]
pub async fn remove_sandbox(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    Params(query): Params<RemoveSandboxQuery>,
) -> Result<Json<Sandbox>> {
    results::submit_removal(&app, access, query.force).await.map(Json)
}

/// Issue a new token for the sandbox's worker, and revoke the old one.
#[utoipa::path(post, path = "/sandboxes/{id}/worker-token", tag = "sandboxes", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 201, body = WorkerStart)))]
pub async fn replace_worker_token(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
) -> Result<JsonResponse> {
    tokens::replace_worker_token(&app, access, key).await
}

/// Show a sandbox's resource usage: CPU, memory, disk, processes and network.
#[utoipa::path(get, path = "/sandboxes/{id}/resources", tag = "sandboxes",
    params(("id" = SandboxId, Path), ResourceQuery), responses((status = 200, body = ResourceSeries)))]
pub async fn read_resources(
    State(app): State<Arc<App>>,
    access: CanSee<SandboxId>,
    Params(query): Params<ResourceQuery>,
) -> Result<Json<ResourceSeries>> {
    sandboxes::read_resources(&app, access, query).await.map(Json)
}
