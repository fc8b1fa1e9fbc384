//! Into a sandbox.

use super::channel::{Piece, Writer, channel};
use super::progress::Progress;
use super::{Copied, Inside};
use crate::failure::{Failure, Result};
use crate::output::Output;
use bytes::Bytes;
use futures_util::stream;
use reqwest::Body;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tokio::sync::mpsc;

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!("can't read {}: {error}", path.display()))
}

/// What comes through the channel, as a body.
fn body(pieces: mpsc::Receiver<Piece>) -> Body {
    let pieces = stream::unfold(pieces, |mut pieces| async move { Some((pieces.recv().await?, pieces)) });
    Body::wrap_stream(pieces)
}

/// Reads all of it on a thread.
fn read(mut from: impl Read + Send + 'static, count: impl Fn(u64) + Send + 'static) -> mpsc::Receiver<Piece> {
    let (sender, pieces) = channel();
    tokio::task::spawn_blocking(move || {
        let mut buffer = vec![0; atoll_trees::CHUNK];
        loop {
            let piece = match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => Ok(Bytes::copy_from_slice(&buffer[..length])),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = piece.is_err();
            count(piece.as_ref().map_or(0, |piece| piece.len() as u64));
            if sender.blocking_send(piece).is_err() || failed {
                return;
            }
        }
    });
    pieces
}

/// `name` in the directory that the sandbox has at this path, else the path itself.
async fn destination(to: &Inside<'_>, name: Option<&str>) -> Result<String> {
    let Some(name) = name else { return Ok(to.path.to_owned()) };
    if to.path.ends_with('/') || to.is_directory().await? {
        return Ok(format!("{}/{name}", to.path.trim_end_matches('/')));
    }
    Ok(to.path.to_owned())
}

fn name_of(path: &Path) -> Result<Option<&str>> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let name = name.to_str();
    name.map(Some).ok_or_else(|| Failure::input("its name is not UTF-8; name the destination's, too, in a directory"))
}

pub(super) async fn from_stdin(to: &Inside<'_>) -> Result<Copied> {
    if to.path.ends_with('/') || to.path == "." {
        return Err(Failure::input("what comes from the standard input needs a name: ID:PATH"));
    }
    let query = [("path", to.path.to_owned()), ("parents", "true".to_owned())];
    let answer = to.client.put_stream(&to.at(""), &query, body(read(std::io::stdin(), |_| {}))).await?;
    Ok(Copied::told(&answer))
}

pub(super) async fn from_here(from: &Path, to: &Inside<'_>, output: &Output) -> Result<Copied> {
    let found = std::fs::metadata(from).map_err(|error| unreadable(from, &error))?;
    if found.is_dir() {
        return tree(from, to, output).await;
    }
    let path = destination(to, name_of(from)?).await?;
    let file = File::open(from).map_err(|error| unreadable(from, &error))?;
    let total = found.is_file().then_some(found.len());
    let mode = format!("{:o}", found.permissions().mode() & 0o777);
    let mut query = vec![("path", path), ("parents", "true".to_owned())];
    if found.is_file() {
        query.push(("mode", mode));
    }
    let progress = Progress::start(output, total);
    let answer = to.client.put_stream(&to.at(""), &query, body(read(file, progress.counter()))).await?;
    Ok(Copied::told(&answer))
}

async fn tree(from: &Path, to: &Inside<'_>, output: &Output) -> Result<Copied> {
    // `.` and `..` have no name: what is in them goes into the destination itself.
    let path = destination(to, name_of(from)?).await?;
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root: OwnedFd = rustix::fs::open(from, how, Mode::empty()).map_err(|error| unreadable(from, &error.into()))?;
    let progress = Progress::start(output, None);
    let (sender, pieces) = channel();
    let count = progress.counter();
    let packing = tokio::task::spawn_blocking(move || {
        let mut left_out = Vec::new();
        let tell = |path: &[u8], why: &str| {
            if left_out.len() < 20 {
                left_out.push((atoll_trees::shown(path), why.to_owned()));
            }
        };
        let packed = atoll_trees::pack(&root, Writer(sender.clone()), tell, count);
        if let Err(error) = &packed {
            // The request must not look whole.
            drop(sender.blocking_send(Err(std::io::Error::other(error.to_string()))));
        }
        packed.map(|packed| (packed.left_out, left_out))
    });
    let sent = to.client.put_stream(&to.at("/tar"), &Inside::query(&path), body(pieces)).await;
    let packed = packing.await.map_err(|error| Failure::work("io", error))?;
    match (sent, packed) {
        (Ok(answer), Ok((left_out, named))) => {
            let mut copied = Copied::told(&answer);
            copied.skipped += left_out;
            copied.named.extend(named);
            Ok(copied)
        }
        // What the server says is the reason; that nobody takes the tar any more only follows from it.
        (Err(failure), Ok(_) | Err(atoll_trees::Error::Stream(_))) => Err(failure),
        (_, Err(error)) => Err(Failure::work("io", format!("can't read {}: {error}", from.display()))),
    }
}
