//! One file: download with ranges and conditions, and upload.

use super::range::{etag_matches, fit_range, format_http_date, parse_range};
use crate::app::files::{self, version_tag};
use crate::auth::access::{CanWork, FileReader};
use crate::extract::Params;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::{FilePathQuery, WriteFileQuery};
use atoll_core::id::SandboxId;
use atoll_core::provider::Download;
use atoll_core::provider::files::UploadSummary;
use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// Headers that stop a browser from showing a file as a page of this server.
pub(super) const DOWNLOAD_HEADERS: [(HeaderName, HeaderValue); 2] = [
    (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
];

fn get_header(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn set_header(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Download a file of a sandbox, or a part of it.
#[utoipa::path(get, path = "/sandboxes/{id}/files", tag = "files", params(("id" = SandboxId, Path), FilePathQuery),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "The part that `Range` names", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 304, description = "The file has the version that `If-None-Match` names")))]
pub async fn download_file(
    State(app): State<Arc<App>>,
    reader: FileReader,
    Params(query): Params<FilePathQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let requested = parse_range(get_header(&headers, header::RANGE));
    let only_if = get_header(&headers, header::IF_RANGE);
    let (Download { entry, data }, range) = files::read_file(&app, reader, query.path, requested, only_if).await?;
    let tag = version_tag(&entry);
    if get_header(&headers, header::IF_NONE_MATCH).is_some_and(|known| etag_matches(known, &tag)) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    let (status, length) = match range.map(|range| fit_range(range.offset, range.length, entry.size)) {
        None => (StatusCode::OK, entry.size),
        Some(Some((_, length))) => (StatusCode::PARTIAL_CONTENT, length),
        Some(None) => {
            let detail = format!("the file has {} bytes", entry.size);
            let mut refusal = Problem::new(Code::RangeNotSatisfiable, detail).into_response();
            set_header(refusal.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{}", entry.size));
            return Ok(refusal);
        }
    };
    let mut response = (status, DOWNLOAD_HEADERS, Body::from_stream(data)).into_response();
    let headers = response.headers_mut();
    set_header(headers, header::CONTENT_TYPE, "application/octet-stream");
    set_header(headers, header::CONTENT_LENGTH, &length.to_string());
    set_header(headers, header::ACCEPT_RANGES, "bytes");
    set_header(headers, header::ETAG, &tag);
    if let Some(date) = format_http_date(entry.modified) {
        set_header(headers, header::LAST_MODIFIED, &date);
    }
    if let Some((start, length)) = range.and_then(|range| fit_range(range.offset, range.length, entry.size)) {
        let content_range = format!("bytes {start}-{}/{}", start + length - 1, entry.size);
        set_header(headers, header::CONTENT_RANGE, &content_range);
    }
    Ok(response)
}

/// Upload a file to a sandbox. It replaces the existing file when all data has arrived.
#[utoipa::path(put, path = "/sandboxes/{id}/files", tag = "files", params(("id" = SandboxId, Path), WriteFileQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = UploadSummary)))]
pub async fn upload_file(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    Params(query): Params<WriteFileQuery>,
    request: Request,
) -> Result<Json<UploadSummary>> {
    files::write_file(&app, access, query, request.into_body()).await.map(Json)
}
