//! The files of a stream: what they are called, and which ones there are.

use super::{Context, Error, Stream, record};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

const NEW_POSITION: &str = "ack-new";

/// The records of a stream from `first` up to where the next segment begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub first: i64,
    pub path: PathBuf,
}

pub(super) fn segment_path(dir: &Path, stream: Stream, first: i64) -> PathBuf {
    dir.join(format!("{stream}.{first:012}.log"))
}

fn position_path(dir: &Path, stream: Stream) -> PathBuf {
    dir.join(format!("{stream}.ack"))
}

fn names(dir: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).context("list", dir)? {
        names.extend(entry.context("list", dir)?.file_name().into_string());
    }
    Ok(names)
}

/// The streams that left something, in the order of their boots.
pub(super) fn streams(dir: &Path) -> Result<Vec<Stream>, Error> {
    let names = names(dir)?;
    let streams = names.iter().filter_map(|name| Stream::parse(name.split_once('.')?.0));
    Ok(streams.collect::<BTreeSet<_>>().into_iter().collect())
}

/// The segments of a stream in the order of their keys.
pub(super) fn segments(dir: &Path, stream: Stream) -> Result<Vec<Segment>, Error> {
    let prefix = format!("{stream}.");
    let mut segments = Vec::new();
    for name in names(dir)? {
        let first = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".log"));
        if let Some(first) = first.and_then(|first| first.parse().ok()) {
            segments.push(Segment { first, path: dir.join(&name) });
        }
    }
    segments.sort_by_key(|segment| segment.first);
    Ok(segments)
}

/// What all segments take, of whatever stream.
pub(super) fn bytes(dir: &Path) -> Result<u64, Error> {
    let paths = names(dir)?.into_iter().filter(|name| name.ends_with(".log")).map(|name| dir.join(name));
    // One that was sent meanwhile takes nothing.
    Ok(paths.filter_map(|path| fs::symlink_metadata(path).ok()).map(|found| found.len()).sum())
}

/// The key of the last whole record of a stream.
pub(super) fn last_key(dir: &Path, stream: Stream) -> Result<i64, Error> {
    let Some(last) = segments(dir, stream)?.pop() else { return Ok(0) };
    let file = File::open(&last.path).context("open", &last.path)?;
    let (mut offset, mut key) = (0, last.first - 1);
    while let Some(record) = record::read_at(&file, offset).context("read", &last.path)? {
        offset += record.stored_bytes();
        key = record.key;
    }
    Ok(key)
}

/// The last key that the server has stored, as far as it was written down.
pub(super) fn read_position(dir: &Path, stream: Stream) -> i64 {
    fs::read_to_string(position_path(dir, stream)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Not synced: an older position only means to send again what the server then knows already.
pub(super) fn write_position(dir: &Path, stream: Stream, key: i64) -> Result<(), Error> {
    let path = position_path(dir, stream);
    let new = path.with_extension(NEW_POSITION);
    fs::write(&new, format!("{key}\n")).context("write", &new)?;
    fs::rename(&new, &path).context("rename", &new)
}

pub(super) fn remove_position(dir: &Path, stream: Stream) -> Result<(), Error> {
    let path = position_path(dir, stream);
    remove(&path.with_extension(NEW_POSITION))?;
    remove(&path)
}

pub(super) fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).context("remove", path),
        Ok(()) | Err(_) => Ok(()),
    }
}
