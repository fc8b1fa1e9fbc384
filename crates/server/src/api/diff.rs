//! `/sandboxes/{id}/diff`: what the work has changed since the commit it began at.

use crate::auth::{Caller, access};
use crate::extract::{Id, Params};
use crate::problem::{Code, Problem, Result};
use crate::repo;
use crate::state::App;
use atoll_core::bounds;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::provider::{Exit, GitJob, ProviderId};
use atoll_core::sandbox::ProviderKind;
use atoll_store::sandboxes::{self, Sandbox};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::io::{Read, Seek};
use std::sync::Arc;

/// The longest patch or list that is given.
const LONGEST: u64 = 64 << 20;
const PATCH: &str = "text/x-diff";

/// Its name at its provider, as long as something of it is there.
pub(super) fn at_provider(row: &Sandbox) -> Option<(ProviderKind, ProviderId)> {
    row.provider_id.clone().map(|name| (row.provider, ProviderId(name)))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DiffQuery {
    /// Another commit to compare with.
    base: Option<String>,
    /// Only this file or directory.
    path: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Diff {
    base: String,
    files: Vec<DiffFile>,
}

#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DiffFile {
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    old_path: Option<String>,
    /// `added`, `modified`, `deleted` or `renamed`.
    change: String,
    added: u64,
    removed: u64,
    #[serde(default)]
    binary: bool,
}

/// What has changed in the workspace, committed or not.
///
/// With `Accept: text/x-diff` the answer is the patch.
#[utoipa::path(get, path = "/sandboxes/{id}/diff", tag = "sandboxes", params(("id" = SandboxId, Path), DiffQuery),
    responses((status = 200, body = Diff)))]
pub async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(query): Params<DiffQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let patch = accept.split(',').any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == PATCH));
    let row = app.read(move |tx| {
        Box::pin(async move {
            access::sandbox(tx, &caller, id, Action::See).await?;
            sandboxes::get(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))
        })
    });
    let row = row.await?;
    let Some(began) = row.settings.repo.as_ref().map(|repo| repo.base.clone().unwrap_or_default()) else {
        return Err(Problem::new(Code::NoRepository, "it was made without one, so there is nothing to compare with"));
    };
    let gone = || Problem::new(Code::SandboxGone, "its workspace is no longer there; its results are on their branch");
    let (kind, place) = at_provider(&row).ok_or_else(gone)?;
    for (field, value) in [("base", &query.base), ("path", &query.path)] {
        if let Some(value) = value {
            bounds::line(field, value, 4096)?;
        }
    }
    let base = query.base.unwrap_or(began);
    let job = GitJob::Diff { base, paths: query.path.into_iter().collect(), patch };
    let failed = |error: std::io::Error| Problem::internal(format!("no file for the diff: {error}"));
    let mut file = tempfile::tempfile_in(&app.data_dir).map_err(failed)?;
    let output = file.try_clone().map_err(failed)?;
    let done = app.providers()?.get(kind).git(&place, &job, output).await?;
    if done.exit != (Exit::Exited { code: 0 }) {
        let said = repo::said(&done.said);
        return Err(Problem::new(Code::ProviderRefused, format!("git could not compare ({:?}): {said}", done.exit)));
    }
    let mut text = Vec::new();
    file.rewind().map_err(failed)?;
    file.take(LONGEST + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > LONGEST {
        return Err(Problem::new(Code::TooLarge, "the diff is longer than 64 MB; ask for it by `path`"));
    }
    if patch {
        return Ok(([(header::CONTENT_TYPE, PATCH)], text).into_response());
    }
    // It comes from inside the sandbox: read into its form, never passed on as it is.
    let diff: Diff = serde_json::from_slice(&text)
        .map_err(|error| Problem::new(Code::ProviderRefused, format!("git's answer can't be read: {error}")))?;
    Ok(axum::Json(diff).into_response())
}
