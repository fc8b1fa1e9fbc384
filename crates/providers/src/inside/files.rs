//! Files in a sandbox, each request over a connection of its own to the worker, which gives it to a helper with the
//! agent's rights. What comes back is hostile: every frame is bounded, and only passed on.

use super::link;
use super::standing::Patience;
use atoll_core::provider::{
    ByteStream, Download, Error, FileDone, FileEntry, FileError, FileJob, Transfer, Uploaded, Worked,
};
use atoll_protocol::exec::{BadFrame, Opening};
use atoll_protocol::files::{Ask, Done, HEAD, Job, LONGEST, Tell, head, read_entry, read_failed, read_head};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long the helper may be silent, or take nothing.
const PATIENCE: Duration = Duration::from_secs(60);
/// For what says nothing until it is done, like the deletion of a large tree.
const LONG_PATIENCE: Duration = Duration::from_secs(600);
/// What is read at once.
const ROOM: usize = 256 << 10;
/// What may wait in the socket.
const ON_THE_WAY: usize = 1 << 20;
/// More entries than a page has are not listened to.
const MOST_ENTRIES: usize = 1000;

fn unreachable(detail: impl std::fmt::Display) -> Error {
    Error::Unreachable { detail: format!("the worker's helper for files {detail}") }
}

fn lost(error: &io::Error) -> Error {
    unreachable(format!("does not answer: {error}"))
}

/// A connection that can't be had or breaks off does not say why. Where nobody listens, the sandbox has ended, perhaps
/// in this very moment.
async fn explained<T>(socket: &Path, worked: Result<T, Error>) -> Result<T, Error> {
    match worked {
        Err(Error::Unreachable { .. }) if !link::listens(socket).await => {
            let detail = "nothing runs in this sandbox any more, so its files can't be reached";
            Err(Error::Refused { detail: detail.into() })
        }
        worked => worked,
    }
}

fn bad(error: &BadFrame) -> Error {
    unreachable(format!("can't be understood: {error}"))
}

const SILENT: &str = "has been silent for too long";
const UNEXPECTED: &str = "answers something else";

enum Told {
    Entry(FileEntry),
    Data(Bytes),
    Done(Done),
    Failed(FileError),
}

/// What the helper says.
#[derive(Default)]
struct Answers {
    buffer: BytesMut,
    /// Of a frame of data that has begun; it is passed on as it comes.
    left: usize,
}

impl Answers {
    /// Nothing is lost when this is dropped.
    async fn next(&mut self, from: &mut (impl AsyncRead + Unpin)) -> Result<Told, Error> {
        loop {
            if let Some(told) = self.take().map_err(|error| bad(&error))? {
                return Ok(told);
            }
            if self.buffer.capacity() - self.buffer.len() < ROOM / 4 {
                self.buffer.reserve(ROOM);
            }
            match from.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(unreachable("ended without a word; perhaps the sandbox has no memory left")),
                Ok(_) => {}
                Err(error) => return Err(lost(&error)),
            }
        }
    }

    async fn within(
        &mut self,
        (patience, longest): (&Patience, Duration),
        from: &mut (impl AsyncRead + Unpin),
    ) -> Result<Told, Error> {
        patience.within(longest, self.next(from)).await.unwrap_or_else(|| Err(unreachable(SILENT)))
    }

    fn take(&mut self) -> Result<Option<Told>, BadFrame> {
        loop {
            if self.left > 0 {
                let length = self.left.min(self.buffer.len());
                self.left -= length;
                return Ok((length > 0).then(|| Told::Data(self.buffer.split_to(length).freeze())));
            }
            let Some(head) = self.buffer.first_chunk::<HEAD>() else { return Ok(None) };
            let (kind, length) = read_head(*head)?;
            let kind = Tell::from_byte(kind)?;
            if kind == Tell::Data {
                self.buffer.advance(HEAD);
                self.left = length;
                continue;
            }
            if self.buffer.len() < HEAD + length {
                return Ok(None);
            }
            self.buffer.advance(HEAD);
            let payload = self.buffer.split_to(length);
            return Ok(Some(match kind {
                Tell::Entry => Told::Entry(read_entry(&payload)?),
                Tell::Done => Told::Done(Done::read(&payload)?),
                Tell::Failed => Told::Failed(read_failed(&payload)?),
                Tell::Data => Told::Data(payload.freeze()),
            }));
        }
    }
}

async fn ask(socket: &Path, job: &Job) -> Result<UnixStream, Error> {
    let asked = async {
        // In one breath: a worker that refuses more of these has closed before it would be asked for something.
        let connection = link::dial_with(socket, Opening::Files, &job.frame()).await?;
        // Only for speed: each side is woken less often.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&connection, ON_THE_WAY);
        Ok(connection)
    };
    match timeout(PATIENCE, asked).await {
        Ok(asked) => asked.map_err(|error: io::Error| lost(&error)),
        Err(_) => Err(unreachable(SILENT)),
    }
}

fn job(job: &FileJob) -> Job {
    match job.clone() {
        FileJob::List { path, after, limit } => Job::List { path, after, limit },
        FileJob::Stat { path } => Job::Stat { path },
        FileJob::MakeDirectory { path } => Job::MakeDirectory { path },
        FileJob::Move { from, to, replace } => Job::Move { from, to, replace },
        FileJob::Delete { path, recursive } => Job::Delete { path, recursive },
    }
}

pub(crate) async fn run(socket: &Path, patience: &Patience, wanted: &FileJob) -> Result<Worked<FileDone>, Error> {
    explained(socket, work(socket, patience, wanted).await).await
}

async fn work(socket: &Path, patience: &Patience, wanted: &FileJob) -> Result<Worked<FileDone>, Error> {
    let mut connection = ask(socket, &job(wanted)).await?;
    let mut answers = Answers::default();
    let mut entries = Vec::new();
    let done = loop {
        match answers.within((patience, LONG_PATIENCE), &mut connection).await? {
            Told::Entry(entry) if entries.len() < MOST_ENTRIES => entries.push(entry),
            Told::Done(done) => break done,
            Told::Failed(error) => return Ok(Err(error)),
            Told::Entry(_) | Told::Data(_) => return Err(unreachable(UNEXPECTED)),
        }
    };
    Ok(Ok(match wanted {
        FileJob::List { .. } => FileDone::Listed { entries, next: done.next },
        FileJob::Stat { .. } => FileDone::Seen(entries.pop().ok_or_else(|| unreachable(UNEXPECTED))?),
        FileJob::MakeDirectory { .. } | FileJob::Move { .. } | FileJob::Delete { .. } => FileDone::Done,
    }))
}

pub(crate) async fn download(
    socket: &Path,
    patience: Patience,
    transfer: &Transfer,
) -> Result<Worked<Download>, Error> {
    explained(socket, begin(socket, patience, transfer).await).await
}

async fn begin(socket: &Path, patience: Patience, transfer: &Transfer) -> Result<Worked<Download>, Error> {
    let job = match transfer.clone() {
        Transfer::File { path, range, .. } => Job::Read {
            path,
            offset: range.map_or(0, |range| range.offset),
            length: range.and_then(|range| range.length),
        },
        Transfer::Tar { root } => Job::Pack { path: root },
    };
    let mut connection = ask(socket, &job).await?;
    let mut answers = Answers::default();
    let entry = match answers.within((&patience, PATIENCE), &mut connection).await? {
        Told::Entry(entry) => entry,
        Told::Failed(error) => return Ok(Err(error)),
        Told::Data(_) | Told::Done(_) => return Err(unreachable(UNEXPECTED)),
    };
    let state = Some((connection, answers, patience));
    let data = stream::unfold(state, |state| async move {
        let (mut connection, mut answers, patience) = state?;
        match answers.within((&patience, PATIENCE), &mut connection).await {
            Ok(Told::Data(data)) => Some((Ok(data), Some((connection, answers, patience)))),
            Ok(Told::Done(_)) => None,
            Ok(Told::Failed(error)) => Some((Err(Error::Refused { detail: error.detail }), None)),
            Ok(Told::Entry(_)) => Some((Err(unreachable(UNEXPECTED)), None)),
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(Ok(Download { entry, data: Box::pin(data) }))
}

/// Why not everything was sent.
enum Unsent {
    /// Whoever has the data failed.
    Source(Error),
    /// The helper takes no more; it may have said why.
    Helper(Error),
}

pub(crate) async fn upload(
    socket: &Path,
    patience: &Patience,
    transfer: &Transfer,
    data: ByteStream,
) -> Result<Worked<Uploaded>, Error> {
    explained(socket, bring(socket, patience, transfer, data).await).await
}

async fn bring(
    socket: &Path,
    patience: &Patience,
    transfer: &Transfer,
    mut data: ByteStream,
) -> Result<Worked<Uploaded>, Error> {
    let job = match transfer.clone() {
        Transfer::File { path, range, write } => Job::Write {
            path,
            mode: write.mode,
            make_parents: !write.parents_exist,
            offset: range.map(|range| range.offset),
            length: range.and_then(|range| range.length),
        },
        Transfer::Tar { root } => Job::Unpack { path: root },
    };
    let mut connection = ask(socket, &job).await?;
    let (mut reader, mut writer) = connection.split();
    let mut answers = Answers::default();
    let early = tokio::select! {
        told = answers.next(&mut reader) => Some(told?),
        sent = send(patience, &mut data, &mut writer) => match sent {
            Ok(()) => None,
            Err(Unsent::Source(error)) => return Err(error),
            Err(Unsent::Helper(error)) => match answers.within((patience, PATIENCE), &mut reader).await {
                Ok(told @ Told::Failed(_)) => Some(told),
                Ok(_) | Err(_) => return Err(error),
            },
        },
    };
    let told = match early {
        Some(told) => told,
        None => answers.within((patience, LONG_PATIENCE), &mut reader).await?,
    };
    match told {
        Told::Done(Done { bytes, entries, skipped, named, .. }) => Ok(Ok(Uploaded { bytes, entries, skipped, named })),
        Told::Failed(error) => Ok(Err(error)),
        Told::Entry(_) | Told::Data(_) => Err(unreachable(UNEXPECTED)),
    }
}

async fn send(
    patience: &Patience,
    data: &mut ByteStream,
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<(), Unsent> {
    while let Some(piece) = data.next().await {
        let mut piece = piece.map_err(Unsent::Source)?;
        while !piece.is_empty() {
            let part = piece.split_to(piece.len().min(LONGEST));
            put(patience, writer, Ask::Data, part).await?;
        }
    }
    put(patience, writer, Ask::End, Bytes::new()).await
}

async fn put(
    patience: &Patience,
    writer: &mut (impl AsyncWrite + Unpin),
    kind: Ask,
    part: Bytes,
) -> Result<(), Unsent> {
    let head = head(kind.byte(), part.len());
    match patience.within(PATIENCE, writer.write_all_buf(&mut Buf::chain(&head[..], part))).await {
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => Err(Unsent::Helper(lost(&error))),
        None => Err(Unsent::Helper(unreachable(SILENT))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::provider::FileFault;

    #[tokio::test]
    async fn answers_are_read_in_whatever_pieces_they_come() {
        let mut wire = Vec::new();
        wire.extend(head(Tell::Data.byte(), 5));
        wire.extend(b"hello");
        wire.extend(head(Tell::Data.byte(), 0));
        wire.extend(atoll_protocol::files::failed_frame(&FileError::new(FileFault::Changed, "it changed")));
        for size in [1, 2, 7, 100] {
            let (mut near, mut far) = tokio::io::duplex(size);
            let sent = wire.clone();
            tokio::spawn(async move { far.write_all(&sent).await });
            let mut answers = Answers::default();
            let mut data = Vec::new();
            let failed = loop {
                match answers.next(&mut near).await.unwrap() {
                    Told::Data(piece) => data.extend(piece),
                    Told::Failed(error) => break error,
                    Told::Entry(_) | Told::Done(_) => panic!("nobody sent this"),
                }
            };
            assert_eq!((&data[..], failed.fault), (&b"hello"[..], FileFault::Changed));
            assert!(answers.next(&mut near).await.is_err(), "an end without a word is no success");
        }
    }

    /// A worker that is killed while it is asked.
    #[tokio::test]
    async fn a_connection_that_breaks_off_as_the_sandbox_ends_says_that() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("worker");
        let patience = super::super::standing::Standing::default().of(&atoll_core::provider::ProviderId("one".into()));
        let stat = FileJob::Stat { path: "file".into() };
        let ended = |told: Result<Worked<FileDone>, Error>| matches!(told, Err(Error::Refused { detail }) if detail.contains("nothing runs"));
        for lives_on in [true, false] {
            let listener = tokio::net::UnixListener::bind(&socket).unwrap();
            let worker = async {
                drop(listener.accept().await.unwrap());
                if lives_on {
                    std::future::pending::<()>().await;
                }
                drop(listener);
                std::future::pending().await
            };
            let told = tokio::select! { told = run(&socket, &patience, &stat) => told, () = worker => unreachable!() };
            assert_eq!(ended(told), !lives_on);
            std::fs::remove_file(&socket).unwrap();
        }
        assert!(ended(run(&socket, &patience, &stat).await));
    }

    #[tokio::test]
    async fn nonsense_is_an_error_of_the_provider() {
        for wire in [&[0, 0, 0, 0, 1][..], &[255, 255, 255, 255, 2], &[2, 0, 0, 0, 9, 1], &[3, 0, 0, 0, 3, b'{', b'x']]
        {
            let mut from = wire;
            assert!(matches!(Answers::default().next(&mut from).await, Err(Error::Unreachable { .. })), "{wire:?}");
        }
    }
}
