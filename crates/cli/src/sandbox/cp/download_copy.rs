//! Copies out of a sandbox. The content is hostile: an unpacked tree cannot leave its destination.

use super::copy_progress::TransferProgress;
use super::{CopyReport, SandboxPath};
use crate::chunk_channel::{ChunkReader, chunk_channel};
use crate::failure::{Failure, Result};
use crate::output::Output;
use atoll_api::{ErrorCode, SandboxFile};
use atoll_core::provider::files::FileKind;
use atoll_trees::{SymlinkPolicy, UnpackSummary};
use reqwest::Response;
use rustix::fs::{Mode, OFlags};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

fn write_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::work("io", format!("cannot write {}: {error}", path.display()))
}

/// The name of the copy in a local directory.
fn copy_name(path: &str) -> Result<&str> {
    match Path::new(path).file_name().and_then(|name| name.to_str()) {
        Some(name) => Ok(name),
        None if matches!(path, "." | "./") => Ok("workspace"),
        None => Err(Failure::input(format!("`{path}` has no file name; give the destination a name"))),
    }
}

/// The source of a copy: a file, or the tree of a directory.
enum OpenSource {
    File(Response, Option<u32>),
    Tree(Response),
}

async fn open_source(from: &SandboxPath<'_>) -> Result<OpenSource> {
    let found = from.client.stat_file(from.id, from.path).await?;
    if found.kind == FileKind::Directory {
        return Ok(OpenSource::Tree(from.client.download_directory(from.id, from.path).await?));
    }
    match from.client.download_file(from.id, from.path).await {
        // A link to a directory.
        Err(error) if error.code() == Some(ErrorCode::FileIsDirectory) => {
            Ok(OpenSource::Tree(from.client.download_directory(from.id, from.path).await?))
        }
        opened => Ok(OpenSource::File(opened?, file_mode(&found))),
    }
}

fn file_mode(found: &SandboxFile) -> Option<u32> {
    let mode = u32::from_str_radix(&found.mode, 8).ok()?;
    (found.kind == FileKind::File).then_some(mode & 0o777)
}

pub(super) async fn copy_to_stdout(from: &SandboxPath<'_>, output: &Output) -> Result<CopyReport> {
    let (OpenSource::File(mut response, _) | OpenSource::Tree(mut response)) = open_source(from).await?;
    let mut bytes = 0;
    while let Some(chunk) = from.client.read_chunk(&mut response).await? {
        bytes += chunk.len() as u64;
        output.write_bytes(&chunk)?;
    }
    output.flush()?;
    Ok(CopyReport { bytes, entries: 1, ..CopyReport::default() })
}

pub(super) async fn copy_to_local(from: &SandboxPath<'_>, to: &Path, output: &Output) -> Result<CopyReport> {
    match open_source(from).await? {
        OpenSource::File(response, mode) => copy_file(from, response, mode, to, output).await,
        OpenSource::Tree(response) => copy_tree(from, response, to, output).await,
    }
}

async fn copy_file(
    from: &SandboxPath<'_>,
    mut response: Response,
    mode: Option<u32>,
    to: &Path,
    output: &Output,
) -> Result<CopyReport> {
    let to = if to.is_dir() { to.join(copy_name(from.path)?) } else { to.to_owned() };
    let progress = TransferProgress::start(output, response.content_length());
    let count = progress.counter();
    let mut target = TargetFile::create(&to, mode.unwrap_or(0o644)).map_err(|error| write_failure(&to, &error))?;
    let mut bytes = 0;
    while let Some(chunk) = from.client.read_chunk(&mut response).await? {
        bytes += chunk.len() as u64;
        count(chunk.len() as u64);
        target.write_all(&chunk).map_err(|error| write_failure(&to, &error))?;
    }
    target.finish().map_err(|error| write_failure(&to, &error))?;
    Ok(CopyReport { bytes, entries: 1, ..CopyReport::default() })
}

/// A file that is renamed to its destination when it is complete. Devices and pipes are written directly.
enum TargetFile {
    Device(File),
    Temporary { file: NamedTempFile, destination: PathBuf },
}

impl TargetFile {
    fn create(to: &Path, mode: u32) -> io::Result<Self> {
        let destination = match std::fs::metadata(to) {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if !found.is_file() => return OpenOptions::new().write(true).open(to).map(Self::Device),
            // Follow a link of the user.
            Ok(_) => to.canonicalize()?,
            Err(_) => to.to_owned(),
        };
        let directory = destination.parent().unwrap_or(Path::new(""));
        let permissions = Permissions::from_mode(mode);
        let file = tempfile::Builder::new().prefix(".atoll-").permissions(permissions).tempfile_in(directory)?;
        Ok(Self::Temporary { file, destination })
    }

    fn write_all(&mut self, chunk: &[u8]) -> io::Result<()> {
        match self {
            Self::Device(file) => file.write_all(chunk),
            Self::Temporary { file, .. } => file.write_all(chunk),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Device(mut file) => file.flush(),
            Self::Temporary { file, destination } => file.persist(destination).map(drop).map_err(|error| error.error),
        }
    }
}

async fn copy_tree(from: &SandboxPath<'_>, mut response: Response, to: &Path, output: &Output) -> Result<CopyReport> {
    let to = if to.is_dir() { to.join(copy_name(from.path)?) } else { to.to_owned() };
    let created = match std::fs::create_dir(&to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created,
    };
    created.map_err(|error| write_failure(&to, &error))?;
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let root = rustix::fs::open(&to, how, Mode::empty()).map_err(|error| write_failure(&to, &error.into()))?;
    let progress = TransferProgress::start(output, None);
    let count = progress.counter();
    let (sender, chunks) = chunk_channel();
    let unpacking = tokio::task::spawn_blocking(move || {
        atoll_trees::unpack_tree(ChunkReader::new(chunks), root, SymlinkPolicy::Inside, count)
    });
    let mut failure = None;
    loop {
        match from.client.read_chunk(&mut response).await {
            Ok(Some(chunk)) => {
                // Unpacking has failed; its result below has the error.
                if sender.send(Ok(chunk)).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                failure = Some(error);
                drop(sender.send(Err(io::ErrorKind::UnexpectedEof.into())).await);
                break;
            }
        }
    }
    drop(sender);
    let unpacked = unpacking.await.map_err(|error| Failure::work("io", error))?;
    match (unpacked, failure) {
        (Err(error @ atoll_trees::Error::File { .. }), _) | (Err(error), None) => {
            Err(Failure::work("io", format!("cannot copy to {}: {error}", to.display())))
        }
        (_, Some(error)) => Err(error.into()),
        (Ok(tally), None) => Ok(report_of(tally)),
    }
}

fn report_of(tally: UnpackSummary) -> CopyReport {
    let mut named: Vec<_> = tally.named.into_iter().map(|one| (one.path, one.reason)).collect();
    if tally.left_out > 0 {
        let why = format!("{} sockets, FIFOs, devices or unreadable files are not part of the archive", tally.left_out);
        named.push(("some entries".to_owned(), why));
    }
    CopyReport { bytes: tally.bytes, entries: tally.entries, skipped: tally.skipped + tally.left_out, named }
}
