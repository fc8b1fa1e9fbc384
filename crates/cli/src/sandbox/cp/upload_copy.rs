//! Copies into a sandbox.

use super::copy_progress::TransferProgress;
use super::{CopyReport, SandboxPath};
use crate::chunk_channel::{ChunkWriter, chunk_channel};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::stdin_stream::{chunk_body, read_chunks, stdin_body};
use atoll_api::WriteFileQuery;
use atoll_client::Body;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn read_failure(path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!("cannot read {}: {error}", path.display()))
}

/// Reads a file on a blocking thread, as the body of a request.
fn file_body(file: File, count: impl Fn(u64) + Send + 'static) -> Body {
    let (sender, chunks) = chunk_channel();
    tokio::task::spawn_blocking(move || read_chunks(file, &sender, count));
    chunk_body(chunks)
}

/// `name` in the destination if that is a directory, otherwise the destination itself.
async fn destination(to: &SandboxPath<'_>, name: Option<&str>) -> Result<String> {
    let Some(name) = name else { return Ok(to.path.to_owned()) };
    if to.path.ends_with('/') || to.is_directory().await? {
        return Ok(format!("{}/{name}", to.path.trim_end_matches('/')));
    }
    Ok(to.path.to_owned())
}

fn file_name_of(path: &Path) -> Result<Option<&str>> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let name = name.to_str();
    name.map(Some).ok_or_else(|| Failure::input("the file name is not UTF-8; give the destination a name"))
}

pub(super) async fn copy_stdin(to: &SandboxPath<'_>) -> Result<CopyReport> {
    if to.path.ends_with('/') || to.path == "." {
        return Err(Failure::input("a copy from stdin needs a file name: ID:PATH"));
    }
    let query = WriteFileQuery { path: to.path.to_owned(), mode: None, parents: true };
    Ok(to.client.upload_file(to.id, &query, stdin_body()).await?.into())
}

pub(super) async fn copy_local(from: &Path, to: &SandboxPath<'_>, output: &Output) -> Result<CopyReport> {
    let found = std::fs::metadata(from).map_err(|error| read_failure(from, &error))?;
    if found.is_dir() {
        return copy_tree(from, to, output).await;
    }
    let path = destination(to, file_name_of(from)?).await?;
    let file = File::open(from).map_err(|error| read_failure(from, &error))?;
    let total = found.is_file().then_some(found.len());
    let mode = found.is_file().then(|| format!("{:o}", found.permissions().mode() & 0o777));
    let query = WriteFileQuery { path, mode, parents: true };
    let progress = TransferProgress::start(output, total);
    Ok(to.client.upload_file(to.id, &query, file_body(file, progress.counter())).await?.into())
}

async fn copy_tree(from: &Path, to: &SandboxPath<'_>, output: &Output) -> Result<CopyReport> {
    // `.` and `..` have no name: copy their content into the destination itself.
    let path = destination(to, file_name_of(from)?).await?;
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root: OwnedFd =
        rustix::fs::open(from, how, Mode::empty()).map_err(|error| read_failure(from, &error.into()))?;
    let progress = TransferProgress::start(output, None);
    let (sender, chunks) = chunk_channel();
    let count = progress.counter();
    let packing = tokio::task::spawn_blocking(move || {
        let mut left_out = Vec::new();
        let tell = |path: &[u8], why: &str| {
            if left_out.len() < 20 {
                left_out.push((atoll_trees::display_path(path), why.to_owned()));
            }
        };
        let packed = atoll_trees::pack_tree(&root, ChunkWriter(sender.clone()), tell, count);
        if let Err(error) = &packed {
            // Fail the request, so that the server does not see a complete archive.
            drop(sender.blocking_send(Err(std::io::Error::other(error.to_string()))));
        }
        packed.map(|packed| (packed.omitted, left_out))
    });
    let sent = to.client.upload_directory(to.id, &path, chunk_body(chunks)).await;
    let packed = packing.await.map_err(|error| Failure::work("io", error))?;
    match (sent, packed) {
        (Ok(uploaded), Ok((left_out, named))) => {
            let mut copied = CopyReport::from(uploaded);
            copied.skipped += left_out;
            copied.named.extend(named);
            Ok(copied)
        }
        // The server's error is the cause; the closed channel is its consequence.
        (Err(error), Ok(_) | Err(atoll_trees::Error::Stream(_))) => Err(error.into()),
        (_, Err(error)) => Err(Failure::work("io", format!("cannot read {}: {error}", from.display()))),
    }
}
