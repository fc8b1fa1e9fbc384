//! `/sandboxes/{id}/exec`: commands in a sandbox.

use crate::app::commands::{self, AttachedCommand};
use crate::auth::access::{CanSee, CanWork};
use crate::extract::{Body, Params, SubId};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{
    AttachQuery, ExecInputQuery, ExecInputReceipt, ExecList, ExecOutput, ExecReceipt, NewExec, NewSignal, TerminalSize,
};
use atoll_core::id::SandboxId;
use atoll_core::provider::{CommandExit, ExecEvent};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt;
use std::sync::Arc;

const EXEC_ID: HeaderName = HeaderName::from_static("exec-id");

/// Run a command in a sandbox.
///
/// The response is NDJSON while the command runs: `{"stream","data"}` (`base64` instead of `data` if it is not UTF-8), and at
/// the end `{"exit":{"kind":"exited","code":0}}`. The header `Exec-Id` holds its id for attaching again.
#[utoipa::path(post, path = "/sandboxes/{id}/exec", tag = "sandboxes", params(("id" = SandboxId, Path)),
    request_body = NewExec, responses((status = 200, description = "NDJSON", content_type = "application/x-ndjson")))]
pub async fn start_command(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    Body { value, .. }: Body<NewExec>,
) -> Result<Response> {
    commands::start_command(&app, access, value).await.map(to_ndjson)
}

/// Attach to a running command again.
#[utoipa::path(get, path = "/sandboxes/{id}/exec/{eid}", tag = "sandboxes",
    params(("id" = SandboxId, Path), ("eid" = String, Path), AttachQuery),
    responses((status = 200, description = "NDJSON", content_type = "application/x-ndjson")))]
pub async fn attach_command(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    SubId(exec): SubId<String>,
    Params(query): Params<AttachQuery>,
) -> Result<Response> {
    commands::attach_command(&app, access, exec, query.cursor).await.map(to_ndjson)
}

fn to_ndjson(output: AttachedCommand) -> Response {
    let AttachedCommand { id, events, viewer, in_use } = output;
    let lines = events.map(move |event| {
        // The stream owns the viewer, which leaves when the response ends.
        let _viewer = (&viewer, &in_use);
        let line = match event {
            Ok(ExecEvent::Output { stream, data, cursor }) => match std::str::from_utf8(&data) {
                Ok(text) => ExecOutput::Text { stream, data: text.to_owned(), cursor },
                Err(_) => ExecOutput::Binary { stream, base64: STANDARD.encode(&data), cursor },
            },
            Ok(ExecEvent::Gap { cursor }) => ExecOutput::Gap { gap: cursor },
            Ok(ExecEvent::Ended(exit)) => ExecOutput::Exit { exit },
            Err(error) => ExecOutput::Failed { error: error.to_string(), exit: CommandExit::Unknown },
        };
        serde_json::to_string(&line).map(|line| Bytes::from(line + "\n"))
    });
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson".to_owned()), (EXEC_ID, id)];
    (headers, axum::body::Body::from_stream(lines)).into_response()
}

/// List a sandbox's running and recently ended commands, oldest first.
#[utoipa::path(get, path = "/sandboxes/{id}/exec", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = ExecList)))]
pub async fn list_commands(State(app): State<Arc<App>>, access: CanSee<SandboxId>) -> Result<Json<ExecList>> {
    commands::list_commands(&app, access).await.map(Json)
}

/// Kill a command with all processes that it started.
///
/// An ended command stays unchanged.
#[utoipa::path(delete, path = "/sandboxes/{id}/exec/{eid}", tag = "sandboxes",
    params(("id" = SandboxId, Path), ("eid" = String, Path)), responses((status = 200, body = ExecReceipt)))]
pub async fn kill_command(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    SubId(exec): SubId<String>,
) -> Result<Json<ExecReceipt>> {
    let id = commands::kill_command(&app, access, exec).await?;
    Ok(Json(ExecReceipt { id }))
}

/// Send a signal to a command and its process group.
///
/// With a terminal, the foreground process group gets it as well. KILL ends everything that the command started.
#[utoipa::path(post, path = "/sandboxes/{id}/exec/{eid}/signal", tag = "sandboxes",
    params(("id" = SandboxId, Path), ("eid" = String, Path)), request_body = NewSignal, responses((status = 200, body = ExecReceipt)))]
pub async fn signal_command(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    SubId(exec): SubId<String>,
    Body { value, .. }: Body<NewSignal>,
) -> Result<Json<ExecReceipt>> {
    let id = commands::signal_command(&app, access, exec, &value.signal).await?;
    Ok(Json(ExecReceipt { id }))
}

/// Change the size of a command's terminal.
#[utoipa::path(post, path = "/sandboxes/{id}/exec/{eid}/resize", tag = "sandboxes",
    params(("id" = SandboxId, Path), ("eid" = String, Path)), request_body = TerminalSize, responses((status = 200, body = ExecReceipt)))]
pub async fn resize_terminal(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    SubId(exec): SubId<String>,
    Body { value, .. }: Body<TerminalSize>,
) -> Result<Json<ExecReceipt>> {
    let id = commands::resize_terminal(&app, access, exec, value).await?;
    Ok(Json(ExecReceipt { id }))
}

/// Write to a command's input: the raw body, of any length.
///
/// Only a command with `"stdin": true` or a terminal takes input; others answer 409 `no_input`. The server reads the body as
/// fast as the command does. A body that ends early leaves the input open, even with `end`.
#[utoipa::path(post, path = "/sandboxes/{id}/exec/{eid}/stdin", tag = "sandboxes",
    params(("id" = SandboxId, Path), ("eid" = String, Path), ExecInputQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = ExecInputReceipt)))]
pub async fn write_command_input(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    SubId(exec): SubId<String>,
    Params(query): Params<ExecInputQuery>,
    request: Request,
) -> Result<Json<ExecInputReceipt>> {
    let (id, bytes) = commands::write_input(&app, access, exec, request.into_body(), query.end).await?;
    Ok(Json(ExecInputReceipt { id, bytes }))
}
