//! `/tasks`, and the task of a sandbox: create, list, change, cancel, retry, report and validate.

use super::worker_routes::WorkerBody;
use crate::app::tasks;
use crate::auth::access::{CanList, CanSee, CanWork, ClientCaller, ReaderOrWorker, WorkReporter};
use crate::extract::{Body, Params};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{
    BulkTaskResults, BulkTasks, ChangeTask, NewTask, Page, Task, TaskListQuery, TaskReport, ValidationVerdict,
};
use atoll_core::id::{SandboxId, TaskId};
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Create a task.
///
/// The server starts it when there is a free slot and nothing blocks it.
#[utoipa::path(post, path = "/tasks", tag = "tasks", params(("Idempotency-Key" = Option<String>, Header)),
    request_body = NewTask, responses((status = 201, body = Task)))]
pub async fn create_task(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    key: IdempotencyKey,
    Body { value, hash }: Body<NewTask>,
) -> Result<JsonResponse> {
    tasks::create_task(&app, client, key.with_body(hash), value).await
}

/// List tasks, newest first.
#[utoipa::path(get, path = "/tasks", tag = "tasks", params(TaskListQuery), responses((status = 200, body = Page<Task>)))]
pub async fn list_tasks(
    State(app): State<Arc<App>>,
    access: CanList,
    Params(query): Params<TaskListQuery>,
) -> Result<Json<Page<Task>>> {
    tasks::list_tasks(&app, access, query).await.map(Json)
}

/// Show a task with its attempts.
#[utoipa::path(get, path = "/tasks/{id}", tag = "tasks", params(("id" = TaskId, Path)),
    responses((status = 200, body = Task)))]
pub async fn read_task(State(app): State<Arc<App>>, access: CanSee<TaskId>) -> Result<Json<Task>> {
    tasks::read_task(&app, access).await.map(Json)
}

/// Change a task that has not ended.
#[utoipa::path(patch, path = "/tasks/{id}", tag = "tasks",
    params(("id" = TaskId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeTask, responses((status = 200, body = Task)))]
pub async fn change_task(
    State(app): State<Arc<App>>,
    access: CanWork<TaskId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<ChangeTask>,
) -> Result<JsonResponse> {
    tasks::change_task(&app, access, key.with_body(hash), value).await
}

/// Cancel a task.
///
/// Its running sandbox ends, and the server exports the results.
#[utoipa::path(post, path = "/tasks/{id}/cancel", tag = "tasks",
    params(("id" = TaskId, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = Task)))]
pub async fn cancel_task(
    State(app): State<Arc<App>>,
    access: CanWork<TaskId>,
    key: IdempotencyKey,
) -> Result<JsonResponse> {
    tasks::cancel_task(&app, access, key).await
}

/// Start a failed or cancelled task again.
///
/// The next attempt continues the task's session, on its branch, in a new sandbox.
#[utoipa::path(post, path = "/tasks/{id}/retry", tag = "tasks",
    params(("id" = TaskId, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = Task)))]
pub async fn retry_task(
    State(app): State<Arc<App>>,
    access: CanWork<TaskId>,
    key: IdempotencyKey,
) -> Result<JsonResponse> {
    tasks::retry_task(&app, access, key).await
}

/// Cancel or retry many tasks.
#[utoipa::path(post, path = "/tasks/bulk", tag = "tasks", request_body = BulkTasks,
    responses((status = 200, body = BulkTaskResults)))]
pub async fn change_tasks(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    Body { value, .. }: Body<BulkTasks>,
) -> Result<Json<BulkTaskResults>> {
    tasks::change_tasks(&app, client, value).await.map(Json)
}

/// Show the task that a sandbox works on.
#[utoipa::path(get, path = "/sandboxes/{id}/task", tag = "tasks", params(("id" = SandboxId, Path)),
    responses((status = 200, body = Task)))]
pub async fn read_sandbox_task(State(app): State<Arc<App>>, access: ReaderOrWorker) -> Result<Json<Task>> {
    tasks::read_sandbox_task(&app, access).await.map(Json)
}

/// Report that the work on a sandbox's task is over.
///
/// The sandbox ends, and the task with it when the results are exported. A repeated report changes nothing.
#[utoipa::path(post, path = "/sandboxes/{id}/task-complete", tag = "tasks", params(("id" = SandboxId, Path)),
    request_body = TaskReport, responses((status = 200, body = Task)))]
pub async fn report_completion(
    State(app): State<Arc<App>>,
    access: WorkReporter,
    WorkerBody(report): WorkerBody<TaskReport>,
) -> Result<Json<Task>> {
    tasks::report_completion(&app, access, report).await.map(Json)
}

/// Submit the verdict on the finished work of a sandbox's task.
///
/// Without `passed`, the task starts another attempt, which gets the feedback.
#[utoipa::path(post, path = "/sandboxes/{id}/validation-result", tag = "tasks",
    params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ValidationVerdict, responses((status = 200, body = Task)))]
pub async fn record_validation(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<ValidationVerdict>,
) -> Result<JsonResponse> {
    tasks::record_validation(&app, access, key.with_body(hash), value).await
}
