//! Out of a sandbox. Names on this machine are the ones that the user gave, and what a tree brings along stays below.

use super::channel::{Reader, channel};
use super::progress::Progress;
use super::{Copied, Inside};
use crate::failure::{Failure, Result};
use crate::output::Output;
use atoll_trees::{Links, Tally};
use reqwest::Response;
use rustix::fs::{Mode, OFlags};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::work("io", format!("can't write {}: {error}", path.display()))
}

/// The name that the copy gets in a directory of this machine.
fn name_of(path: &str) -> Result<&str> {
    match Path::new(path).file_name().and_then(|name| name.to_str()) {
        Some(name) => Ok(name),
        None if matches!(path, "." | "./") => Ok("workspace"),
        None => Err(Failure::input(format!("`{path}` has no name of its own; name what the copy is called"))),
    }
}

/// What is asked for: a file, or where the path is a directory, its tree.
enum Opened {
    File(Response, Option<u32>),
    Tree(Response),
}

async fn open(from: &Inside<'_>) -> Result<Opened> {
    let query = Inside::query(from.path);
    let found = from.client.get(&from.at("/stat"), &query).await?;
    if found["kind"] == "directory" {
        return Ok(Opened::Tree(from.client.stream(&from.at("/tar"), &query).await?));
    }
    match from.client.stream(&from.at(""), &query).await {
        // By a link.
        Err(Failure::Told(told)) if told.code == "file_is_directory" => {
            Ok(Opened::Tree(from.client.stream(&from.at("/tar"), &query).await?))
        }
        opened => Ok(Opened::File(opened?, mode(&found))),
    }
}

fn mode(found: &Value) -> Option<u32> {
    let mode = u32::from_str_radix(found["mode"].as_str()?, 8).ok()?;
    (found["kind"] == "file").then_some(mode & 0o777)
}

pub(super) async fn to_stdout(from: &Inside<'_>, output: &Output) -> Result<Copied> {
    let (Opened::File(mut answer, _) | Opened::Tree(mut answer)) = open(from).await?;
    let mut bytes = 0;
    while let Some(piece) = from.client.piece(&mut answer).await? {
        bytes += piece.len() as u64;
        output.bytes(&piece)?;
    }
    output.flush()?;
    Ok(Copied { bytes, entries: 1, ..Copied::default() })
}

pub(super) async fn to_here(from: &Inside<'_>, to: &Path, output: &Output) -> Result<Copied> {
    match open(from).await? {
        Opened::File(answer, mode) => file(from, answer, mode, to, output).await,
        Opened::Tree(answer) => tree(from, answer, to, output).await,
    }
}

async fn file(
    from: &Inside<'_>,
    mut answer: Response,
    mode: Option<u32>,
    to: &Path,
    output: &Output,
) -> Result<Copied> {
    let to = if to.is_dir() { to.join(name_of(from.path)?) } else { to.to_owned() };
    let progress = Progress::start(output, answer.content_length());
    let count = progress.counter();
    let mut target = Target::open(&to, mode.unwrap_or(0o644)).map_err(|error| unwritable(&to, &error))?;
    let mut bytes = 0;
    while let Some(piece) = from.client.piece(&mut answer).await? {
        bytes += piece.len() as u64;
        count(piece.len() as u64);
        target.file.write_all(&piece).map_err(|error| unwritable(&to, &error))?;
    }
    target.finish().map_err(|error| unwritable(&to, &error))?;
    Ok(Copied { bytes, entries: 1, ..Copied::default() })
}

/// A file that takes its place when it is whole. What is no file, such as a terminal, is written as it comes.
struct Target {
    file: File,
    /// Its name until then, and its place.
    on_the_way: Option<(PathBuf, PathBuf)>,
}

impl Target {
    fn open(to: &Path, mode: u32) -> io::Result<Self> {
        let place = match std::fs::metadata(to) {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if !found.is_file() => {
                let file = OpenOptions::new().write(true).open(to)?;
                return Ok(Self { file, on_the_way: None });
            }
            // Where a link of the user's own points to.
            Ok(_) => to.canonicalize()?,
            Err(_) => to.to_owned(),
        };
        let name = format!(".atoll-{}", uuid::Uuid::now_v7().simple());
        let temporary = place.parent().unwrap_or(Path::new("")).join(name);
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        Ok(Self { file, on_the_way: Some((temporary, place)) })
    }

    fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        if let Some((temporary, place)) = self.on_the_way.take() {
            let moved = std::fs::rename(&temporary, place);
            if moved.is_err() {
                drop(std::fs::remove_file(temporary));
            }
            return moved;
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some((temporary, _)) = &self.on_the_way {
            drop(std::fs::remove_file(temporary));
        }
    }
}

async fn tree(from: &Inside<'_>, mut answer: Response, to: &Path, output: &Output) -> Result<Copied> {
    let to = if to.is_dir() { to.join(name_of(from.path)?) } else { to.to_owned() };
    let made = match std::fs::create_dir(&to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    made.map_err(|error| unwritable(&to, &error))?;
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let root = rustix::fs::open(&to, how, Mode::empty()).map_err(|error| unwritable(&to, &error.into()))?;
    let progress = Progress::start(output, None);
    let count = progress.counter();
    let (sender, pieces) = channel();
    let unpacking =
        tokio::task::spawn_blocking(move || atoll_trees::unpack(Reader::new(pieces), root, Links::Inside, count));
    let mut broke = None;
    loop {
        match from.client.piece(&mut answer).await {
            Ok(Some(piece)) => {
                // It has failed, and says why below.
                if sender.send(Ok(piece)).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(failure) => {
                broke = Some(failure);
                drop(sender.send(Err(io::ErrorKind::UnexpectedEof.into())).await);
                break;
            }
        }
    }
    drop(sender);
    let unpacked = unpacking.await.map_err(|error| Failure::work("io", error))?;
    match (unpacked, broke) {
        (Err(error @ atoll_trees::Error::File { .. }), _) | (Err(error), None) => {
            Err(Failure::work("io", format!("can't copy to {}: {error}", to.display())))
        }
        (_, Some(failure)) => Err(failure),
        (Ok(tally), None) => Ok(copied(tally)),
    }
}

fn copied(tally: Tally) -> Copied {
    let mut named: Vec<_> = tally.named.into_iter().map(|one| (one.path, one.why)).collect();
    if tally.left_out > 0 {
        let why = format!("{} sockets, fifos, devices or unreadable files in it have no content", tally.left_out);
        named.push(("a part of it".to_owned(), why));
    }
    Copied { bytes: tally.bytes, entries: tally.entries, skipped: tally.skipped + tally.left_out, named }
}
