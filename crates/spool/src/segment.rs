//! The files of a stream: their names, and functions that list and remove them.

use crate::blob_file::is_blob_file;
use crate::{Context, Error, SpoolStream, record};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The records of a stream from the key `first` to the start of the next segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub first: i64,
    pub path: PathBuf,
}

pub(super) fn segment_path(dir: &Path, stream: SpoolStream, first: i64) -> PathBuf {
    dir.join(format!("{stream}.{first:012}.log"))
}

pub(super) fn list_names(dir: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).context("list", dir)? {
        names.extend(entry.context("list", dir)?.file_name().into_string());
    }
    Ok(names)
}

/// Lists the streams that have files, in the order of their boots.
pub(super) fn list_streams(dir: &Path) -> Result<Vec<SpoolStream>, Error> {
    let names = list_names(dir)?;
    let streams = names.iter().filter_map(|name| SpoolStream::parse(name.split_once('.')?.0));
    Ok(streams.collect::<BTreeSet<_>>().into_iter().collect())
}

/// Lists the segments of a stream in the order of their keys.
pub(super) fn list_segments(dir: &Path, stream: SpoolStream) -> Result<Vec<Segment>, Error> {
    let prefix = format!("{stream}.");
    let mut segments = Vec::new();
    for name in list_names(dir)? {
        let first = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".log"));
        if let Some(first) = first.and_then(|first| first.parse().ok()) {
            segments.push(Segment { first, path: dir.join(&name) });
        }
    }
    segments.sort_by_key(|segment| segment.first);
    Ok(segments)
}

/// Adds up the sizes of all segments and blobs of all streams, and counts the blobs.
pub(super) fn measure_spool(dir: &Path) -> Result<SpoolSize, Error> {
    let mut size = SpoolSize::default();
    for name in list_names(dir)? {
        let is_blob = is_blob_file(&name);
        if is_blob || name.ends_with(".log") {
            size.blobs += usize::from(is_blob);
            // The uplink may have removed it in between.
            size.bytes += fs::symlink_metadata(dir.join(name)).map_or(0, |metadata| metadata.len());
        }
    }
    Ok(size)
}

#[derive(Debug, Default)]
pub(super) struct SpoolSize {
    pub bytes: u64,
    pub blobs: usize,
}

/// Finds the key of the last complete record of a stream.
pub(super) fn last_key(dir: &Path, stream: SpoolStream) -> Result<i64, Error> {
    let Some(last) = list_segments(dir, stream)?.pop() else { return Ok(0) };
    let file = File::open(&last.path).context("open", &last.path)?;
    let (mut offset, mut key) = (0, last.first - 1);
    while let Some(record) = record::read_record(&file, offset).context("read", &last.path)? {
        offset += record.stored_bytes();
        key = record.key;
    }
    Ok(key)
}

pub(super) fn remove_if_present(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).context("remove", path),
        Ok(()) | Err(_) => Ok(()),
    }
}
