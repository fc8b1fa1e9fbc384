//! The blobs that spooled events name: a file each, `<boot>-<stream>.<key>.<sha256>.blob`, named by its event.
//!
//! The writer syncs a blob before its event, and the reader removes it when the server has acknowledged the event.

use crate::segment::{list_names, remove_if_present};
use crate::{Context, Error, SpoolStream, sync_parent};
use atoll_core::bounds::MAX_WHOLE_TEXT_BYTES;
use atoll_protocol::{EventBlob, is_blob_name};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of blobs in a spool.
pub(crate) const MAX_BLOBS: usize = 4096;
const SUFFIX: &str = ".blob";

/// A blob that the server does not have yet.
#[derive(Debug, Clone)]
pub struct SpooledBlob {
    pub sha256: String,
    source: BlobSource,
}

#[derive(Debug, Clone)]
enum BlobSource {
    File(PathBuf),
    Memory(Arc<str>),
}

impl SpooledBlob {
    pub(crate) fn in_memory(blob: EventBlob) -> Self {
        Self { sha256: blob.sha256, source: BlobSource::Memory(blob.content.into()) }
    }

    /// Reads the content; `None` if it is gone or not a blob of a spool.
    pub fn read(&self) -> Result<Option<Vec<u8>>, Error> {
        let path = match &self.source {
            BlobSource::Memory(content) => return Ok(Some(content.as_bytes().to_vec())),
            BlobSource::File(path) => path,
        };
        // A dead worker may have left anything under this name: no link, no fifo, nothing large.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = openat(CWD, path, flags, Mode::empty()) else { return Ok(None) };
        let file = File::from(file);
        let metadata = file.metadata().context("stat", path)?;
        if !metadata.is_file() || metadata.len() > MAX_WHOLE_TEXT_BYTES as u64 {
            return Ok(None);
        }
        let mut content = Vec::new();
        file.take(MAX_WHOLE_TEXT_BYTES as u64).read_to_end(&mut content).context("read", path)?;
        Ok(Some(content))
    }
}

/// Writes a blob and returns when it is on disk.
pub(crate) fn write_blob(dir: &Path, stream: SpoolStream, key: i64, blob: &EventBlob) -> Result<(), Error> {
    let path = dir.join(format!("{stream}.{key:012}.{}{SUFFIX}", blob.sha256));
    let written = File::create(&path).and_then(|mut file| {
        file.write_all(blob.content.as_bytes())?;
        file.sync_all()
    });
    if let Err(error) = written {
        // Frees the space that the failed write used.
        remove_if_present(&path)?;
        return Err(error).context("write", &path);
    }
    sync_parent(&path)
}

/// Lists the blobs of a stream with the keys of their events, in the order of the keys.
pub(crate) fn list_blobs(dir: &Path, stream: SpoolStream) -> Result<Vec<(i64, SpooledBlob)>, Error> {
    let prefix = format!("{stream}.");
    let mut blobs = Vec::new();
    for name in list_names(dir)? {
        let rest = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(SUFFIX));
        if let Some((key, sha256)) = rest.and_then(|rest| rest.split_once('.'))
            && let Ok(key) = key.parse()
            && is_blob_name(sha256)
        {
            let source = BlobSource::File(dir.join(&name));
            blobs.push((key, SpooledBlob { sha256: sha256.to_owned(), source }));
        }
    }
    blobs.sort_by_key(|(key, _)| *key);
    Ok(blobs)
}

/// Removes the blobs of a stream's events up to `acked`.
pub(crate) fn remove_blobs(dir: &Path, stream: SpoolStream, acked: i64) -> Result<(), Error> {
    for (_, blob) in list_blobs(dir, stream)?.into_iter().filter(|(key, _)| *key <= acked) {
        if let BlobSource::File(path) = &blob.source {
            remove_if_present(path)?;
        }
    }
    Ok(())
}

pub(crate) fn is_blob_file(name: &str) -> bool {
    name.ends_with(SUFFIX)
}
