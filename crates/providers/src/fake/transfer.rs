//! Files in and out of the tree, whole or in part.

use super::files::{fault, file_entry};
use super::ground::Place;
use super::tree::{MAX_BYTES, TreeError, within};
use crate::locked;
use atoll_core::provider::{ByteStream, Download, Error, FileError, FileFault, Range, Transfer, Uploaded, Worked};
use atoll_core::sandbox::ProviderKind;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;

const CHUNK: usize = 64 << 10;

/// Trees as tar are not for a fake.
pub(super) fn file(transfer: &Transfer) -> Result<(&str, Option<Range>), Error> {
    match transfer {
        Transfer::File { path, range, .. } => Ok((path, *range)),
        Transfer::Tar { .. } => {
            Err(Error::Unsupported { provider: ProviderKind::Fake, ability: "move trees of files" })
        }
    }
}

/// With a range, what is there from its offset on is overwritten, and the file grows as needed.
pub(super) async fn upload(
    place: &Place,
    path: &str,
    range: Option<Range>,
    mut data: ByteStream,
) -> Result<Worked<Uploaded>, Error> {
    if let Err(error) = within(path) {
        return Ok(Err(fault(error)));
    }
    let mut given = BytesMut::new();
    while let Some(chunk) = data.next().await {
        let chunk = chunk?;
        if given.len() + chunk.len() > MAX_BYTES {
            return Ok(Err(fault(TreeError::Full)));
        }
        given.extend_from_slice(&chunk);
    }
    Ok(put(place, path, range, given))
}

fn put(place: &Place, path: &str, range: Option<Range>, given: BytesMut) -> Worked<Uploaded> {
    let bytes = given.len() as u64;
    let mut tree = locked(&place.ground.tree);
    let content = match range {
        None => given.freeze(),
        Some(Range { offset, length }) => {
            if length.is_some_and(|length| length != bytes) {
                return Err(bad(format!("{bytes} bytes came for a range of another length")));
            }
            patched(&tree.read(path).unwrap_or_default(), offset, &given)?
        }
    };
    tree.write(path, content).map_err(fault)?;
    Ok(Uploaded { bytes, entries: 1, ..Uploaded::default() })
}

fn bad(detail: String) -> FileError {
    FileError::new(FileFault::BadContent, detail)
}

fn patched(old: &[u8], offset: u64, given: &[u8]) -> Worked<Bytes> {
    let start = usize::try_from(offset).ok().filter(|start| *start <= old.len());
    let start = start.ok_or_else(|| bad(format!("offset {offset} is behind the file's end")))?;
    let mut content = BytesMut::from(&old[..start]);
    content.extend_from_slice(given);
    content.extend_from_slice(old.get(content.len()..).unwrap_or_default());
    Ok(content.freeze())
}

/// A range that reaches behind the end gives what there is.
pub(super) fn download(place: &Place, path: &str, range: Option<Range>) -> Worked<Download> {
    let content = locked(&place.ground.tree).read(path).map_err(fault)?;
    let size = content.len();
    let at = |position: u64| usize::try_from(position).unwrap_or(usize::MAX).min(size);
    let Range { offset, length } = range.unwrap_or(Range { offset: 0, length: None });
    let end = length.map_or(size, |length| at(offset.saturating_add(length)));
    let mut rest = content.slice(at(offset).min(end)..end);
    let chunks = std::iter::from_fn(move || (!rest.is_empty()).then(|| Ok(rest.split_to(rest.len().min(CHUNK)))));
    let entry = file_entry(path.rsplit('/').next().unwrap_or(path), size as u64);
    Ok(Download { entry, data: Box::pin(futures_util::stream::iter(chunks)) })
}
