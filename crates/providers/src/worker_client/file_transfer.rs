//! File operations in a sandbox, each over its own connection to the worker, which passes it to a helper with the
//! agent's rights. Responses are hostile: every frame has a size limit and is only forwarded.

use super::link;
use super::pauses::PauseAwareTimeout;
use atoll_core::provider::{
    ByteStream, Download, Error, FileError, FileInfo, FileOperation, FileOperationOutput, FileResult, ReadScope,
    Transfer, UploadSummary,
};
use atoll_protocol::exec::{ConnectionKind, FrameError};
use atoll_protocol::files::{
    FileClientFrame, FileOperationSummary, FileRequest, FileWorkerFrame, HEADER_BYTES, MAX_PAYLOAD_BYTES, decode_entry,
    decode_failure, decode_header, encode_header,
};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long the helper may send or accept nothing.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for jobs that report only their end, such as deleting a large tree.
const SLOW_JOB_TIMEOUT: Duration = Duration::from_secs(600);
const READ_BUFFER_BYTES: usize = 256 << 10;
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// The largest accepted listing.
const MAX_LISTED_ENTRIES: usize = 1000;

fn helper_error(detail: impl std::fmt::Display) -> Error {
    Error::Unreachable { detail: format!("the worker's file helper {detail}") }
}

fn connection_error(error: &io::Error) -> Error {
    helper_error(format!("does not respond: {error}"))
}

/// Replaces a connection error by "not running" if the worker no longer listens.
async fn explain_unreachable<T>(socket: &Path, worked: Result<T, Error>) -> Result<T, Error> {
    match worked {
        Err(Error::Unreachable { .. }) if !link::is_listening(socket).await => {
            let detail = "the sandbox is not running, so its files are not accessible";
            Err(Error::Refused { detail: detail.into() })
        }
        worked => worked,
    }
}

fn frame_error(error: &FrameError) -> Error {
    helper_error(format!("sent a malformed frame: {error}"))
}

const TIMED_OUT: &str = "timed out";
const UNEXPECTED_RESPONSE: &str = "sent an unexpected response";

enum HelperMessage {
    Entry(FileInfo),
    Data(Bytes),
    Done(FileOperationSummary),
    Failed(FileError),
}

/// Parses the helper's messages.
#[derive(Default)]
struct MessageReader {
    buffer: BytesMut,
    /// Remaining bytes of the current data frame, which is forwarded as it arrives.
    left: usize,
}

impl MessageReader {
    /// Cancel-safe.
    async fn next_message(&mut self, from: &mut (impl AsyncRead + Unpin)) -> Result<HelperMessage, Error> {
        loop {
            if let Some(message) = self.take_message().map_err(|error| frame_error(&error))? {
                return Ok(message);
            }
            if self.buffer.capacity() - self.buffer.len() < READ_BUFFER_BYTES / 4 {
                self.buffer.reserve(READ_BUFFER_BYTES);
            }
            match from.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(helper_error("ended without a response; the sandbox may be out of memory")),
                Ok(_) => {}
                Err(error) => return Err(connection_error(&error)),
            }
        }
    }

    async fn next_message_within(
        &mut self,
        (patience, longest): (&PauseAwareTimeout, Duration),
        from: &mut (impl AsyncRead + Unpin),
    ) -> Result<HelperMessage, Error> {
        patience.run_within(longest, self.next_message(from)).await.unwrap_or_else(|| Err(helper_error(TIMED_OUT)))
    }

    fn take_message(&mut self) -> Result<Option<HelperMessage>, FrameError> {
        loop {
            if self.left > 0 {
                let length = self.left.min(self.buffer.len());
                self.left -= length;
                return Ok((length > 0).then(|| HelperMessage::Data(self.buffer.split_to(length).freeze())));
            }
            let Some(head) = self.buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
            let (kind, length) = decode_header(*head)?;
            let kind = FileWorkerFrame::from_byte(kind)?;
            if kind == FileWorkerFrame::Data {
                self.buffer.advance(HEADER_BYTES);
                self.left = length;
                continue;
            }
            if self.buffer.len() < HEADER_BYTES + length {
                return Ok(None);
            }
            self.buffer.advance(HEADER_BYTES);
            let payload = self.buffer.split_to(length);
            return Ok(Some(match kind {
                FileWorkerFrame::Entry => HelperMessage::Entry(decode_entry(&payload)?),
                FileWorkerFrame::Done => HelperMessage::Done(FileOperationSummary::from_payload(&payload)?),
                FileWorkerFrame::Failed => HelperMessage::Failed(decode_failure(&payload)?),
                FileWorkerFrame::Data => HelperMessage::Data(payload.freeze()),
            }));
        }
    }
}

async fn send_job(socket: &Path, job: &FileRequest) -> Result<UnixStream, Error> {
    let sending = async {
        // One write: a worker that refuses the connection closes it before a second one.
        let connection = link::dial_and_send(socket, ConnectionKind::Files, &job.to_frame()).await?;
        // An optimization: fewer wake-ups on each side.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&connection, SEND_BUFFER_BYTES);
        Ok(connection)
    };
    match timeout(RESPONSE_TIMEOUT, sending).await {
        Ok(result) => result.map_err(|error: io::Error| connection_error(&error)),
        Err(_) => Err(helper_error(TIMED_OUT)),
    }
}

/// Wraps a request that may read only the workspace. A worker that does not know the wrapper refuses the request.
fn confine_request(request: FileRequest, scope: ReadScope) -> FileRequest {
    match scope {
        ReadScope::WholeSandbox => request,
        ReadScope::Workspace => FileRequest::InWorkspace { request: Box::new(request) },
    }
}

fn wire_job(job: &FileOperation) -> FileRequest {
    match job.clone() {
        FileOperation::List { path, after, limit, scope } => {
            confine_request(FileRequest::List { path, after, limit }, scope)
        }
        FileOperation::Stat { path, scope } => confine_request(FileRequest::Stat { path }, scope),
        FileOperation::MakeDirectory { path } => FileRequest::MakeDirectory { path },
        FileOperation::Move { from, to, replace } => FileRequest::Move { from, to, replace },
        FileOperation::Delete { path, recursive } => FileRequest::Delete { path, recursive },
    }
}

pub(crate) async fn run_job(
    socket: &Path,
    patience: &PauseAwareTimeout,
    operation: &FileOperation,
) -> Result<FileResult<FileOperationOutput>, Error> {
    explain_unreachable(socket, request_job(socket, patience, operation).await).await
}

async fn request_job(
    socket: &Path,
    patience: &PauseAwareTimeout,
    operation: &FileOperation,
) -> Result<FileResult<FileOperationOutput>, Error> {
    let mut connection = send_job(socket, &wire_job(operation)).await?;
    let mut answers = MessageReader::default();
    let mut entries = Vec::new();
    let done = loop {
        match answers.next_message_within((patience, SLOW_JOB_TIMEOUT), &mut connection).await? {
            HelperMessage::Entry(entry) if entries.len() < MAX_LISTED_ENTRIES => entries.push(entry),
            HelperMessage::Done(done) => break done,
            HelperMessage::Failed(error) => return Ok(Err(error)),
            HelperMessage::Entry(_) | HelperMessage::Data(_) => return Err(helper_error(UNEXPECTED_RESPONSE)),
        }
    };
    Ok(Ok(match operation {
        FileOperation::List { .. } => FileOperationOutput::Listed { entries, next: done.next },
        FileOperation::Stat { .. } => {
            FileOperationOutput::Info(entries.pop().ok_or_else(|| helper_error(UNEXPECTED_RESPONSE))?)
        }
        FileOperation::MakeDirectory { .. } | FileOperation::Move { .. } | FileOperation::Delete { .. } => {
            FileOperationOutput::Completed
        }
    }))
}

pub(crate) async fn download_files(
    socket: &Path,
    patience: PauseAwareTimeout,
    transfer: &Transfer,
    scope: ReadScope,
) -> Result<FileResult<Download>, Error> {
    explain_unreachable(socket, start_download(socket, patience, transfer, scope).await).await
}

async fn start_download(
    socket: &Path,
    patience: PauseAwareTimeout,
    transfer: &Transfer,
    scope: ReadScope,
) -> Result<FileResult<Download>, Error> {
    let job = match transfer.clone() {
        Transfer::File { path, range, .. } => FileRequest::Read {
            path,
            offset: range.map_or(0, |range| range.offset),
            length: range.and_then(|range| range.length),
        },
        Transfer::Tar { root } => FileRequest::Pack { path: root },
    };
    let mut connection = send_job(socket, &confine_request(job, scope)).await?;
    let mut answers = MessageReader::default();
    let entry = match answers.next_message_within((&patience, RESPONSE_TIMEOUT), &mut connection).await? {
        HelperMessage::Entry(entry) => entry,
        HelperMessage::Failed(error) => return Ok(Err(error)),
        HelperMessage::Data(_) | HelperMessage::Done(_) => return Err(helper_error(UNEXPECTED_RESPONSE)),
    };
    let state = Some((connection, answers, patience));
    let data = stream::unfold(state, |state| async move {
        let (mut connection, mut answers, patience) = state?;
        match answers.next_message_within((&patience, RESPONSE_TIMEOUT), &mut connection).await {
            Ok(HelperMessage::Data(data)) => Some((Ok(data), Some((connection, answers, patience)))),
            Ok(HelperMessage::Done(_)) => None,
            Ok(HelperMessage::Failed(error)) => Some((Err(Error::Refused { detail: error.detail }), None)),
            Ok(HelperMessage::Entry(_)) => Some((Err(helper_error(UNEXPECTED_RESPONSE)), None)),
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(Ok(Download { entry, data: Box::pin(data) }))
}

/// The reason why an upload stopped.
enum UploadFailure {
    /// The data source failed.
    Source(Error),
    /// The helper stopped reading; it may have sent a reason.
    Helper(Error),
}

pub(crate) async fn upload_files(
    socket: &Path,
    patience: &PauseAwareTimeout,
    transfer: &Transfer,
    data: ByteStream,
) -> Result<FileResult<UploadSummary>, Error> {
    explain_unreachable(socket, send_upload(socket, patience, transfer, data).await).await
}

async fn send_upload(
    socket: &Path,
    patience: &PauseAwareTimeout,
    transfer: &Transfer,
    mut data: ByteStream,
) -> Result<FileResult<UploadSummary>, Error> {
    let job = match transfer.clone() {
        Transfer::File { path, range, write } => FileRequest::Write {
            path,
            mode: write.mode,
            make_parents: !write.parents_exist,
            offset: range.map(|range| range.offset),
            length: range.and_then(|range| range.length),
        },
        Transfer::Tar { root } => FileRequest::Unpack { path: root },
    };
    let mut connection = send_job(socket, &job).await?;
    let (mut reader, mut writer) = connection.split();
    let mut answers = MessageReader::default();
    let early = tokio::select! {
        message = answers.next_message(&mut reader) => Some(message?),
        sent = send_data(patience, &mut data, &mut writer) => match sent {
            Ok(()) => None,
            Err(UploadFailure::Source(error)) => return Err(error),
            Err(UploadFailure::Helper(error)) => match answers.next_message_within((patience, RESPONSE_TIMEOUT), &mut reader).await {
                Ok(message @ HelperMessage::Failed(_)) => Some(message),
                Ok(_) | Err(_) => return Err(error),
            },
        },
    };
    let message = match early {
        Some(message) => message,
        None => answers.next_message_within((patience, SLOW_JOB_TIMEOUT), &mut reader).await?,
    };
    match message {
        HelperMessage::Done(FileOperationSummary { bytes, entries, skipped, named, .. }) => {
            Ok(Ok(UploadSummary { bytes, entries, skipped, named }))
        }
        HelperMessage::Failed(error) => Ok(Err(error)),
        HelperMessage::Entry(_) | HelperMessage::Data(_) => Err(helper_error(UNEXPECTED_RESPONSE)),
    }
}

async fn send_data(
    patience: &PauseAwareTimeout,
    data: &mut ByteStream,
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<(), UploadFailure> {
    while let Some(piece) = data.next().await {
        let mut piece = piece.map_err(UploadFailure::Source)?;
        while !piece.is_empty() {
            let part = piece.split_to(piece.len().min(MAX_PAYLOAD_BYTES));
            send_frame(patience, writer, FileClientFrame::Data, part).await?;
        }
    }
    send_frame(patience, writer, FileClientFrame::EndOfData, Bytes::new()).await
}

async fn send_frame(
    patience: &PauseAwareTimeout,
    writer: &mut (impl AsyncWrite + Unpin),
    kind: FileClientFrame,
    part: Bytes,
) -> Result<(), UploadFailure> {
    let head = encode_header(kind.to_byte(), part.len());
    match patience.run_within(RESPONSE_TIMEOUT, writer.write_all_buf(&mut Buf::chain(&head[..], part))).await {
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => Err(UploadFailure::Helper(connection_error(&error))),
        None => Err(UploadFailure::Helper(helper_error(TIMED_OUT))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::provider::FileErrorCode;

    #[tokio::test]
    async fn reads_messages_split_at_any_byte() {
        let mut wire = Vec::new();
        wire.extend(encode_header(FileWorkerFrame::Data.to_byte(), 5));
        wire.extend(b"hello");
        wire.extend(encode_header(FileWorkerFrame::Data.to_byte(), 0));
        wire.extend(atoll_protocol::files::encode_failure(&FileError::new(FileErrorCode::Changed, "it changed")));
        for size in [1, 2, 7, 100] {
            let (mut near, mut far) = tokio::io::duplex(size);
            let sent = wire.clone();
            tokio::spawn(async move { far.write_all(&sent).await });
            let mut answers = MessageReader::default();
            let mut data = Vec::new();
            let failed = loop {
                match answers.next_message(&mut near).await.unwrap() {
                    HelperMessage::Data(piece) => data.extend(piece),
                    HelperMessage::Failed(error) => break error,
                    HelperMessage::Entry(_) | HelperMessage::Done(_) => panic!("not sent"),
                }
            };
            assert_eq!((&data[..], failed.fault), (&b"hello"[..], FileErrorCode::Changed));
            assert!(answers.next_message(&mut near).await.is_err(), "a closed connection is an error");
        }
    }

    /// The worker dies during a request.
    #[tokio::test]
    async fn a_broken_connection_reports_that_the_sandbox_ended() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("worker");
        let patience = super::super::pauses::PausedSandboxes::default()
            .timeout_for(&atoll_core::provider::ProviderId("one".into()));
        let stat = FileOperation::Stat { path: "file".into(), scope: ReadScope::WholeSandbox };
        let ended = |result: Result<FileResult<FileOperationOutput>, Error>| matches!(result, Err(Error::Refused { detail }) if detail.contains("is not running"));
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
            let result =
                tokio::select! { result = run_job(&socket, &patience, &stat) => result, () = worker => unreachable!() };
            assert_eq!(ended(result), !lives_on);
            std::fs::remove_file(&socket).unwrap();
        }
        assert!(ended(run_job(&socket, &patience, &stat).await));
    }

    #[tokio::test]
    async fn rejects_malformed_frames() {
        for wire in [&[0, 0, 0, 0, 1][..], &[255, 255, 255, 255, 2], &[2, 0, 0, 0, 9, 1], &[3, 0, 0, 0, 3, b'{', b'x']]
        {
            let mut from = wire;
            assert!(
                matches!(MessageReader::default().next_message(&mut from).await, Err(Error::Unreachable { .. })),
                "{wire:?}"
            );
        }
    }
}
