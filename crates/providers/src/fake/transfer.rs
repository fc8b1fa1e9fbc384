//! Uploads and downloads of whole files or ranges.

use super::environment::SandboxRuntime;
use super::file_jobs::{file_entry, file_error};
use super::tree::{MAX_BYTES, TreeError, relative_path};
use crate::lock_state;
use atoll_core::provider::{
    ByteRange, ByteStream, Download, Error, FileError, FileErrorCode, FileResult, Transfer, UploadSummary,
};
use atoll_core::sandbox::ProviderKind;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;

const CHUNK_BYTES: usize = 64 << 10;

/// Returns the file and range; tar transfers are unsupported.
pub(super) fn file_target(transfer: &Transfer) -> Result<(&str, Option<ByteRange>), Error> {
    match transfer {
        Transfer::File { path, range, .. } => Ok((path, *range)),
        Transfer::Tar { .. } => {
            Err(Error::Unsupported { provider: ProviderKind::Fake, ability: "transfer directories" })
        }
    }
}

/// With a range, overwrites from its offset; the file grows as needed; an offset past its end is an error.
pub(super) async fn upload_file(
    runtime: &SandboxRuntime,
    path: &str,
    range: Option<ByteRange>,
    mut data: ByteStream,
) -> Result<FileResult<UploadSummary>, Error> {
    if let Err(error) = relative_path(path) {
        return Ok(Err(file_error(error)));
    }
    let mut content = BytesMut::new();
    while let Some(chunk) = data.next().await {
        let chunk = chunk?;
        if content.len() + chunk.len() > MAX_BYTES {
            return Ok(Err(file_error(TreeError::Full)));
        }
        content.extend_from_slice(&chunk);
    }
    Ok(store_upload(runtime, path, range, content))
}

fn store_upload(
    runtime: &SandboxRuntime,
    path: &str,
    range: Option<ByteRange>,
    content: BytesMut,
) -> FileResult<UploadSummary> {
    let bytes = content.len() as u64;
    let mut tree = lock_state(&runtime.environment.tree);
    let content = match range {
        None => content.freeze(),
        Some(ByteRange { offset, length }) => {
            if let Some(length) = length.filter(|length| *length != bytes) {
                return Err(invalid_error(format!("expected {length} bytes for the range, received {bytes}")));
            }
            patch_bytes(&tree.read(path).unwrap_or_default(), offset, &content)?
        }
    };
    tree.write(path, content).map_err(file_error)?;
    Ok(UploadSummary { bytes, entries: 1, ..UploadSummary::default() })
}

fn invalid_error(detail: String) -> FileError {
    FileError::new(FileErrorCode::BadContent, detail)
}

fn patch_bytes(old: &[u8], offset: u64, patch: &[u8]) -> FileResult<Bytes> {
    let start = usize::try_from(offset).ok().filter(|start| *start <= old.len());
    let start = start.ok_or_else(|| invalid_error(format!("offset {offset} is past the end of the file")))?;
    let mut content = BytesMut::from(&old[..start]);
    content.extend_from_slice(patch);
    content.extend_from_slice(old.get(content.len()..).unwrap_or_default());
    Ok(content.freeze())
}

/// A range beyond the end returns what exists.
pub(super) fn download_file(runtime: &SandboxRuntime, path: &str, range: Option<ByteRange>) -> FileResult<Download> {
    let content = lock_state(&runtime.environment.tree).read(path).map_err(file_error)?;
    let size = content.len();
    let at = |position: u64| usize::try_from(position).unwrap_or(usize::MAX).min(size);
    let ByteRange { offset, length } = range.unwrap_or(ByteRange { offset: 0, length: None });
    let end = length.map_or(size, |length| at(offset.saturating_add(length)));
    let mut rest = content.slice(at(offset).min(end)..end);
    let chunks = std::iter::from_fn(move || (!rest.is_empty()).then(|| Ok(rest.split_to(rest.len().min(CHUNK_BYTES)))));
    let entry = file_entry(path.rsplit('/').next().unwrap_or(path), size as u64);
    Ok(Download { entry, data: Box::pin(futures_util::stream::iter(chunks)) })
}
