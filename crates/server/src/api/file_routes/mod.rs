//! `/sandboxes/{id}/files`: the files of a sandbox, as its agent sees them.

pub mod content;
mod range;
pub mod tree;

use crate::app::files;
use crate::auth::access::{CanWork, FileReader};
use crate::extract::{Body, Params};
use crate::problem::Result;
use crate::state::App;
use atoll_api::events::{FileMoved, FilePath};
use atoll_api::{DeleteFileQuery, FileListQuery, FilePathQuery, MoveFile, NewDirectory, Page, SandboxFile};
use atoll_core::id::SandboxId;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// List a directory of a sandbox, sorted by name.
#[utoipa::path(get, path = "/sandboxes/{id}/files/list", tag = "files", params(("id" = SandboxId, Path), FileListQuery),
    responses((status = 200, body = Page<SandboxFile>)))]
pub async fn list_directory(
    State(app): State<Arc<App>>,
    reader: FileReader,
    Params(query): Params<FileListQuery>,
) -> Result<Json<Page<SandboxFile>>> {
    files::list_directory(&app, reader, query).await.map(Json)
}

/// Show one file, directory or link. Links are not followed.
#[utoipa::path(get, path = "/sandboxes/{id}/files/stat", tag = "files", params(("id" = SandboxId, Path), FilePathQuery),
    responses((status = 200, body = SandboxFile)))]
pub async fn stat_file(
    State(app): State<Arc<App>>,
    reader: FileReader,
    Params(query): Params<FilePathQuery>,
) -> Result<Json<SandboxFile>> {
    files::stat_file(&app, reader, query.path).await.map(Json)
}

/// Move or rename a file or directory.
#[utoipa::path(post, path = "/sandboxes/{id}/files/move", tag = "files", params(("id" = SandboxId, Path)),
    request_body = MoveFile, responses((status = 200, body = FileMoved)))]
pub async fn move_file(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    Body { value, .. }: Body<MoveFile>,
) -> Result<Json<FileMoved>> {
    files::move_file(&app, access, value).await.map(Json)
}

/// Create a directory with its parents. An existing one is no error.
#[utoipa::path(post, path = "/sandboxes/{id}/files/directory", tag = "files", params(("id" = SandboxId, Path)),
    request_body = NewDirectory, responses((status = 200, body = FilePath)))]
pub async fn create_directory(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    Body { value, .. }: Body<NewDirectory>,
) -> Result<Json<FilePath>> {
    files::create_directory(&app, access, value.path).await.map(Json)
}

/// Delete a file, a link or a directory.
#[utoipa::path(delete, path = "/sandboxes/{id}/files", tag = "files", params(("id" = SandboxId, Path), DeleteFileQuery),
    responses((status = 200, body = FilePath)))]
pub async fn delete_file(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    Params(query): Params<DeleteFileQuery>,
) -> Result<Json<FilePath>> {
    files::delete_file(&app, access, query).await.map(Json)
}
