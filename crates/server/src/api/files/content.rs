//! One file, in and out.

use super::range::{Wanted, etag, http_date, is_among, part, wanted};
use super::{PathQuery, Place, Sent, checked};
use crate::auth::Caller;
use crate::extract::{Id, Params};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::event::kind;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::provider::files::{FileEntry, FileKind, Uploaded};
use atoll_core::provider::{Download, FileDone, FileJob, Range, Transfer, WriteOptions};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

/// What a browser must not take for a page of this server.
pub(super) const HARMLESS: [(HeaderName, HeaderValue); 2] = [
    (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
];

fn said(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

async fn look(place: &Place, path: &str) -> Result<Option<FileEntry>> {
    match place.run(&FileJob::Stat { path: path.to_owned() }).await? {
        FileDone::Seen(entry) => Ok(Some(entry).filter(|entry| entry.kind == FileKind::File)),
        FileDone::Listed { .. } | FileDone::Done => Ok(None),
    }
}

/// The range to ask the provider for. Where HTTP makes it depend on the file, that is looked at first.
async fn range(place: &Place, path: &str, headers: &HeaderMap) -> Result<Option<Range>> {
    let Some(wanted) = wanted(said(headers, header::RANGE)) else { return Ok(None) };
    let only_if = said(headers, header::IF_RANGE);
    let (offset, length) = match (wanted, only_if) {
        (Wanted::From { offset, length }, None) => (offset, length),
        (wanted, only_if) => {
            let Some(entry) = look(place, path).await? else { return Ok(None) };
            if only_if.is_some_and(|tag| tag != etag(&entry)) {
                return Ok(None);
            }
            match wanted {
                Wanted::From { offset, length } => (offset, length),
                // None from the end is a range that is not there.
                Wanted::Last(0) => (entry.size, None),
                Wanted::Last(count) => (entry.size.saturating_sub(count), None),
            }
        }
    };
    Ok(Some(Range { offset, length }))
}

/// Read a file of a sandbox, whole or in part.
#[utoipa::path(get, path = "/sandboxes/{id}/files", tag = "files", params(("id" = SandboxId, Path), PathQuery),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "The part that `Range` names", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 304, description = "It is the one that `If-None-Match` names")))]
pub async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(PathQuery { path }): Params<PathQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    checked(&path)?;
    let place = Place::find(&app, caller, id, Action::See).await?;
    let range = range(&place, &path, &headers).await?;
    let transfer = Transfer::File { path, range, write: WriteOptions::default() };
    let Download { entry, data } = place.provider().download(&place.at, &transfer).await??;
    let tag = etag(&entry);
    if said(&headers, header::IF_NONE_MATCH).is_some_and(|known| is_among(known, &tag)) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    let (status, length) = match range.map(|range| part(range.offset, range.length, entry.size)) {
        None => (StatusCode::OK, entry.size),
        Some(Some((_, length))) => (StatusCode::PARTIAL_CONTENT, length),
        Some(None) => {
            let detail = format!("the file has {} bytes", entry.size);
            let mut refusal = Problem::new(Code::RangeNotSatisfiable, detail).into_response();
            put(refusal.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{}", entry.size));
            return Ok(refusal);
        }
    };
    let mut response = (status, HARMLESS, Body::from_stream(data)).into_response();
    let headers = response.headers_mut();
    put(headers, header::CONTENT_TYPE, "application/octet-stream");
    put(headers, header::CONTENT_LENGTH, &length.to_string());
    put(headers, header::ACCEPT_RANGES, "bytes");
    put(headers, header::ETAG, &tag);
    if let Some(date) = http_date(entry.modified) {
        put(headers, header::LAST_MODIFIED, &date);
    }
    if let Some((start, length)) = range.and_then(|range| part(range.offset, range.length, entry.size)) {
        put(headers, header::CONTENT_RANGE, &format!("bytes {start}-{}/{}", start + length - 1, entry.size));
    }
    Ok(response)
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WriteQuery {
    /// Absolute inside the sandbox, or relative to its workspace.
    path: String,
    /// Permission bits in octal, like `755`; else those of the file that is there, or 644.
    mode: Option<String>,
    /// Make the directories above it that are not there.
    #[serde(default)]
    parents: bool,
}

fn mode(text: &str) -> Result<u32> {
    let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o777);
    mode.ok_or_else(|| Problem::new(Code::BadRequest, "mode: three octal digits, like 644"))
}

/// Write a file of a sandbox. It takes the place of what is there only when all of it has come.
#[utoipa::path(put, path = "/sandboxes/{id}/files", tag = "files", params(("id" = SandboxId, Path), WriteQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Uploaded)))]
pub async fn write(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(WriteQuery { path, mode: bits, parents }): Params<WriteQuery>,
    request: Request,
) -> Result<axum::Json<Uploaded>> {
    checked(&path)?;
    let mode = bits.as_deref().map(mode).transpose()?;
    let place = Place::find(&app, caller, id, Action::Work).await?;
    let write = WriteOptions { mode, parents_exist: !parents };
    let transfer = Transfer::File { path: path.clone(), range: None, write };
    let done = take_in(&place, &transfer, request).await?;
    place.log(&app, kind::FILES_WRITTEN, json!({ "path": path, "bytes": done.bytes })).await?;
    Ok(axum::Json(done))
}

/// Passes a request's body on to the provider.
pub(super) async fn take_in(place: &Place, transfer: &Transfer, request: Request) -> Result<Uploaded> {
    let sent = Sent::new(request.into_body());
    let done = place.provider().upload(&place.at, transfer, sent.data()).await;
    match done {
        Ok(Ok(uploaded)) => Ok(uploaded),
        Ok(Err(error)) => {
            sent.drain().await;
            Err(error.into())
        }
        Err(error) => {
            sent.drain().await;
            Err(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_mode_is_three_digits() {
        for (text, mode) in [("644", 0o644), ("0755", 0o755), ("0", 0)] {
            assert_eq!(super::mode(text).unwrap(), mode);
        }
        for bad in ["", "4755", "888", "+644", "rwx", "77777777777777777"] {
            assert!(super::mode(bad).is_err(), "{bad}");
        }
    }
}
