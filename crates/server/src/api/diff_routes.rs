//! `/sandboxes/{id}/diff`: changes since the commit that the work started from.

use crate::app::diffs;
use crate::auth::access::CanSee;
use crate::extract::Params;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::{Diff, DiffQuery};
use atoll_core::id::SandboxId;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

const PATCH: &str = "text/x-diff";

/// Show the changes in the workspace, committed or not.
///
/// With `Accept: text/x-diff` the response is a patch.
#[utoipa::path(get, path = "/sandboxes/{id}/diff", tag = "sandboxes", params(("id" = SandboxId, Path), DiffQuery),
    responses((status = 200, body = Diff)))]
pub async fn read_diff(
    State(app): State<Arc<App>>,
    access: CanSee<SandboxId>,
    Params(query): Params<DiffQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let as_patch = accept.split(',').any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == PATCH));
    let text = diffs::read_diff(&app, access, query, as_patch).await?;
    if as_patch {
        return Ok(([(header::CONTENT_TYPE, PATCH)], text).into_response());
    }
    // The text comes from inside the sandbox, so it is parsed and never passed on unchecked.
    let diff: Diff = serde_json::from_slice(&text)
        .map_err(|error| Problem::new(Code::ProviderRefused, format!("cannot parse git's output: {error}")))?;
    Ok(Json(diff).into_response())
}
