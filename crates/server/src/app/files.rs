//! Files of sandboxes. A helper inside performs every operation with the agent's rights; the server only passes data on.

use super::targets::{SandboxTarget, find_running_target};
use crate::auth::access::{Access, CanWork, FileReader, Permission};
use crate::cursor::{decode_cursor, encode_cursor};
use crate::extract::{drain_body, page_size};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::events::{EventData, FileMoved, FilePath, FilesWritten};
use atoll_api::{DeleteFileQuery, FileListQuery, MoveFile, Page, SandboxFile, WriteFileQuery};
use atoll_core::event::EventSource;
use atoll_core::id::SandboxId;
use atoll_core::provider::files::{FileInfo, FileKind, UploadSummary, path_error};
use atoll_core::provider::{
    ByteRange, ByteStream, Download, FileError, FileErrorCode, FileOperation, FileOperationOutput, ReadScope, Transfer,
    WriteOptions,
};
use atoll_core::time::Timestamp;
use atoll_store::sandboxes;
use axum::body::{Body, BodyDataStream};
use futures_util::{StreamExt, stream};
use std::sync::{Arc, Mutex, PoisonError};

impl From<FileError> for Problem {
    fn from(error: FileError) -> Self {
        let code = match error.fault {
            FileErrorCode::NotFound => Code::FileNotFound,
            FileErrorCode::IsDirectory => Code::FileIsDirectory,
            FileErrorCode::NotADirectory => Code::NotADirectory,
            FileErrorCode::Denied => Code::FileDenied,
            FileErrorCode::Exists => Code::FileExists,
            FileErrorCode::NotEmpty => Code::DirectoryNotEmpty,
            FileErrorCode::NoSpace => Code::SandboxFull,
            FileErrorCode::UnsupportedKind => Code::FileUnsupported,
            FileErrorCode::Changed => Code::FileChanged,
            FileErrorCode::OutsideWorkspace => Code::Forbidden,
            FileErrorCode::TooLong | FileErrorCode::BadContent => Code::Invalid,
            FileErrorCode::Failed => Code::ProviderRefused,
        };
        Self::new(code, error.detail)
    }
}

fn view_file(entry: FileInfo) -> SandboxFile {
    SandboxFile {
        name: entry.name,
        name_hex: entry.name_hex,
        kind: entry.kind,
        size: entry.size,
        mode: format!("{:04o}", entry.mode & 0o7777),
        modified_at: Timestamp::from_micros(entry.modified.div_euclid(1000)),
        target: entry.target,
    }
}

fn check_path(path: &str) -> Result<()> {
    match path_error(path) {
        Some(error) => Err(Problem::invalid(format!("path: {}", error.detail))),
        None => Ok(()),
    }
}

fn check_mode(text: &str) -> Result<u32> {
    let is_octal = text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
    mode.ok_or_else(|| Problem::new(Code::BadRequest, "mode: three octal digits, like 644"))
}

async fn run_job(target: &SandboxTarget, job: &FileOperation) -> Result<FileOperationOutput> {
    Ok(target.provider.files(&target.id, job).await??)
}

/// Runs a job that changes files, and logs it.
async fn change_files(app: &App, access: &CanWork<SandboxId>, job: FileOperation, event: EventData) -> Result<()> {
    let target = find_running_target(app, access).await?;
    run_job(&target, &job).await?;
    log_change(app, access, event).await
}

async fn log_change(app: &App, access: &CanWork<SandboxId>, data: EventData) -> Result<()> {
    let (id, actor) = (access.id, access.actor());
    app.write(async move |work| {
        let (_, mut sandbox) = work.lock_sandbox(id).await?;
        let event = data.into_event(work.now).with_source(EventSource::User, Some(actor));
        work.log(&mut sandbox, vec![event]).await?;
        Ok(sandboxes::update_sandbox(work.tx, &mut sandbox).await?)
    })
    .await
}

pub async fn list_directory(app: &App, reader: FileReader, query: FileListQuery) -> Result<Page<SandboxFile>> {
    let path = query.path.unwrap_or_else(|| ".".to_owned());
    check_path(&path)?;
    let limit = u32::try_from(page_size(query.limit, 200, 1000)?).unwrap_or(200);
    let target = find_running_target(app, &reader.access).await?;
    let after = decode_cursor("files", query.cursor.as_deref())?;
    match run_job(&target, &FileOperation::List { path, after, limit, scope: reader.scope }).await? {
        FileOperationOutput::Listed { entries, next } => Ok(Page {
            items: entries.into_iter().map(view_file).collect(),
            next_cursor: next.map(|next| encode_cursor("files", &next)),
        }),
        FileOperationOutput::Info(_) | FileOperationOutput::Completed => {
            Err(Problem::internal("a file list without entries"))
        }
    }
}

pub async fn stat_file(app: &App, reader: FileReader, path: String) -> Result<SandboxFile> {
    check_path(&path)?;
    let target = find_running_target(app, &reader.access).await?;
    match run_job(&target, &FileOperation::Stat { path, scope: reader.scope }).await? {
        FileOperationOutput::Info(entry) => Ok(view_file(entry)),
        FileOperationOutput::Listed { .. } | FileOperationOutput::Completed => {
            Err(Problem::internal("a file status without an entry"))
        }
    }
}

pub async fn move_file(app: &App, access: CanWork<SandboxId>, request: MoveFile) -> Result<FileMoved> {
    let MoveFile { from, to, replace } = request;
    check_path(&from)?;
    check_path(&to)?;
    let moved = FileMoved { from: from.clone(), to: to.clone() };
    let event = EventData::FilesMoved(moved.clone());
    change_files(app, &access, FileOperation::Move { from, to, replace }, event).await?;
    Ok(moved)
}

pub async fn create_directory(app: &App, access: CanWork<SandboxId>, path: String) -> Result<FilePath> {
    check_path(&path)?;
    let created = FilePath { path: path.clone() };
    change_files(app, &access, FileOperation::MakeDirectory { path }, EventData::FilesMade(created.clone())).await?;
    Ok(created)
}

pub async fn delete_file(app: &App, access: CanWork<SandboxId>, query: DeleteFileQuery) -> Result<FilePath> {
    let DeleteFileQuery { path, recursive } = query;
    check_path(&path)?;
    let deleted = FilePath { path: path.clone() };
    change_files(app, &access, FileOperation::Delete { path, recursive }, EventData::FilesDeleted(deleted.clone()))
        .await?;
    Ok(deleted)
}

/// A part of a file that a client requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedRange {
    From {
        offset: u64,
        length: Option<u64>,
    },
    /// This many bytes from the end.
    Last(u64),
}

/// A version tag that changes with the file, as far as its file system shows.
pub fn version_tag(entry: &FileInfo) -> String {
    format!("\"{:x}-{:x}-{:x}\"", entry.inode, entry.size, entry.modified)
}

/// Resolves a requested range. `only_if` is the version that the range must be of.
async fn resolve_range(
    target: &SandboxTarget,
    (path, scope): (&str, ReadScope),
    requested: Option<RequestedRange>,
    only_if: Option<&str>,
) -> Result<Option<ByteRange>> {
    let Some(requested) = requested else { return Ok(None) };
    let (offset, length) = match (requested, only_if) {
        (RequestedRange::From { offset, length }, None) => (offset, length),
        (requested, only_if) => {
            let FileOperationOutput::Info(entry) =
                run_job(target, &FileOperation::Stat { path: path.to_owned(), scope }).await?
            else {
                return Ok(None);
            };
            if entry.kind != FileKind::File || only_if.is_some_and(|tag| tag != version_tag(&entry)) {
                return Ok(None);
            }
            match requested {
                RequestedRange::From { offset, length } => (offset, length),
                // The last zero bytes are outside of the file.
                RequestedRange::Last(0) => (entry.size, None),
                RequestedRange::Last(count) => (entry.size.saturating_sub(count), None),
            }
        }
    };
    Ok(Some(ByteRange { offset, length }))
}

/// Opens a file or a part of it. Returns the range that the data covers.
pub async fn read_file(
    app: &App,
    reader: FileReader,
    path: String,
    requested: Option<RequestedRange>,
    only_if: Option<&str>,
) -> Result<(Download, Option<ByteRange>)> {
    check_path(&path)?;
    let target = find_running_target(app, &reader.access).await?;
    let range = resolve_range(&target, (&path, reader.scope), requested, only_if).await?;
    let transfer = Transfer::File { path, range, write: WriteOptions::default() };
    Ok((target.provider.download(&target.id, &transfer, reader.scope).await??, range))
}

/// Writes a file, which replaces the existing one when all data has arrived.
pub async fn write_file(
    app: &App,
    access: CanWork<SandboxId>,
    query: WriteFileQuery,
    body: Body,
) -> Result<UploadSummary> {
    let WriteFileQuery { path, mode, parents } = query;
    check_path(&path)?;
    let mode = mode.as_deref().map(check_mode).transpose()?;
    let write = WriteOptions { mode, parents_exist: !parents };
    let transfer = Transfer::File { path: path.clone(), range: None, write };
    let uploaded = upload(app, &access, &transfer, body).await?;
    let written = FilesWritten { path, bytes: uploaded.bytes, entries: None };
    log_change(app, &access, EventData::FilesWritten(written)).await?;
    Ok(uploaded)
}

/// Opens a directory or a file as a tar stream.
pub async fn read_tar(app: &App, reader: FileReader, path: String) -> Result<Download> {
    check_path(&path)?;
    let target = find_running_target(app, &reader.access).await?;
    Ok(target.provider.download(&target.id, &Transfer::Tar { root: path }, reader.scope).await??)
}

/// Unpacks a tar stream into a directory.
pub async fn write_tar(app: &App, access: CanWork<SandboxId>, path: String, body: Body) -> Result<UploadSummary> {
    check_path(&path)?;
    let uploaded = upload(app, &access, &Transfer::Tar { root: path.clone() }, body).await?;
    let written = FilesWritten { path, bytes: uploaded.bytes, entries: Some(uploaded.entries) };
    log_change(app, &access, EventData::FilesWritten(written)).await?;
    Ok(uploaded)
}

/// Streams a body to the provider.
async fn upload(
    app: &App,
    access: &Access<SandboxId, impl Permission>,
    transfer: &Transfer,
    body: Body,
) -> Result<UploadSummary> {
    let target = find_running_target(app, access).await?;
    let body = UploadBody::new(body);
    let problem = match target.provider.upload(&target.id, transfer, body.stream()).await {
        Ok(Ok(uploaded)) => return Ok(uploaded),
        Ok(Err(error)) => error.into(),
        Err(error) => error.into(),
    };
    body.drain().await;
    Err(problem)
}

/// A request body that a provider reads. The server can drain the rest: otherwise a client that is still sending sees a
/// broken connection instead of the response.
struct UploadBody(Arc<Mutex<BodyDataStream>>);

impl UploadBody {
    fn new(body: Body) -> Self {
        Self(Arc::new(Mutex::new(body.into_data_stream())))
    }

    fn stream(&self) -> ByteStream {
        let body = Arc::clone(&self.0);
        let broken = |_| atoll_core::provider::Error::Refused { detail: "the body ended early".to_owned() };
        Box::pin(stream::poll_fn(move |context| {
            let mut body = body.lock().unwrap_or_else(PoisonError::into_inner);
            body.poll_next_unpin(context).map(|chunk| chunk.map(|chunk| chunk.map_err(broken)))
        }))
    }

    async fn drain(self) {
        // The provider has dropped its stream, so this is the last reference.
        if let Some(body) = Arc::into_inner(self.0) {
            let body = body.into_inner().unwrap_or_else(PoisonError::into_inner);
            drain_body(Body::from_stream(body)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_mode_is_three_octal_digits() {
        for (text, mode) in [("644", 0o644), ("0755", 0o755), ("0", 0)] {
            assert_eq!(super::check_mode(text).unwrap(), mode);
        }
        for bad in ["", "4755", "888", "+644", "rwx", "77777777777777777"] {
            assert!(super::check_mode(bad).is_err(), "{bad}");
        }
    }
}
