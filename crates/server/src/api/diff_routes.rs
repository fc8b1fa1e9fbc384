//! `/sandboxes/{id}/diff`: changes since the commit that the work started from.

use crate::app::diffs;
use crate::auth::access::CanSee;
use crate::extract::Params;
use crate::problem::Result;
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
/// With `Accept: text/x-diff` the response is a patch. `turn` shows the changes of one turn, also after the sandbox's end.
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
    if as_patch {
        let patch = diffs::read_patch(&app, access, query).await?;
        return Ok(([(header::CONTENT_TYPE, PATCH)], patch).into_response());
    }
    Ok(Json(diffs::list_changes(&app, access, query).await?).into_response())
}
