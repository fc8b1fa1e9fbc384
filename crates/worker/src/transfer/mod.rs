//! Transfers files in and out of the sandbox: one helper process per request, with the agent's rights.
//! The worker passes the server's connection to the helper: no data passes through the worker, and it opens no path
//! with its own rights.

mod content;
mod fault;
mod jobs;
mod scope;
mod wire;

use crate::exec::Exec;
use crate::link::Connection;
use crate::spawner::{ProgramSpec, StdStreams};
use atoll_core::provider::files::{FileError, FileErrorCode, ReadScope, path_error};
use atoll_protocol::files::{FileOperationSummary, FileRequest, encode_failure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::net::SendFlags;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use tokio::sync::Semaphore;
use wire::Incoming;

/// Maximum number of helpers. Slow readers must not use up the worker's connections or the agent's processes.
const MAX_HELPERS: usize = 32;
static FREE: Semaphore = Semaphore::const_new(MAX_HELPERS);

/// Socket buffer size.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// Why a request failed.
enum TransferError {
    /// An error to send to the server.
    Failed(FileError),
    /// The connection is gone.
    Lost,
}

impl From<FileError> for TransferError {
    fn from(error: FileError) -> Self {
        Self::Failed(error)
    }
}

type Result<T, E = TransferError> = std::result::Result<T, E>;

/// Starts a helper for a connection.
pub async fn serve_transfer(connection: Connection, exec: Exec) {
    // The permit counts until the helper exits.
    let (stream, _counted) = match connection.into_std() {
        Ok(parts) => parts,
        Err(error) => return tracing::warn!(%error, "failed to use a file transfer connection"),
    };
    let Ok(_free) = FREE.try_acquire() else {
        let detail = format!("{MAX_HELPERS} file requests are already running in this sandbox: try again later");
        return send_refusal(&stream, detail);
    };
    let started = async {
        stream.set_nonblocking(false)?;
        let input = OwnedFd::from(stream.try_clone()?);
        let open_null = || File::options().write(true).open("/dev/null").map(OwnedFd::from);
        let streams = StdStreams { input: Some(input), stdout: open_null()?, stderr: open_null()? };
        let program = ProgramSpec {
            argv: vec!["/proc/self/exe".to_owned(), "files".to_owned()],
            cwd: exec.cwd.clone(),
            env: Vec::new(),
            kill_group_on_exit: true,
            terminal: None,
            files: Vec::new(),
        };
        exec.spawner.spawn(program, streams).await.map_err(io::Error::other)
    };
    match started.await {
        Ok(mut process) => {
            // From here on only the helper has the connection, so that it closes with the helper.
            drop(stream);
            let _ = process.wait_for_exit().await;
        }
        Err(error) => send_refusal(&stream, format!("failed to start the file helper: {error}")),
    }
}

fn send_refusal(stream: &UnixStream, detail: String) {
    let failed = FileError::new(FileErrorCode::Failed, detail);
    // Best effort: the peer also sees the closed connection.
    let _ = rustix::net::send(stream, &encode_failure(&failed), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// The helper process: serves one request from the connection at stdin, in the workspace.
pub fn main() -> ExitCode {
    // Hides this process from others of the same user. This is no security boundary: it has the agent's rights.
    drop(atoll_jail::init_process::harden_process());
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    // For speed: fewer wake-ups on each side.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER_BYTES);
    if serve_request(&UnixStream::from(socket)).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn serve_request(socket: &UnixStream) -> io::Result<()> {
    let mut incoming = Incoming::new(socket);
    let job = incoming.read_job()?;
    let mut writer = socket;
    match check_paths(&job).and_then(|()| run_job(&job, socket, &mut incoming)) {
        Ok(done) => writer.write_all(&done.to_frame()),
        Err(TransferError::Failed(error)) => writer.write_all(&encode_failure(&error)),
        Err(TransferError::Lost) => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

fn check_paths(job: &FileRequest) -> Result<()> {
    let paths: &[&String] = match job {
        FileRequest::InWorkspace { request } => match &**request {
            // Only one level, so that a request cannot nest without bound.
            FileRequest::InWorkspace { .. } => return Err(scope::unconfined_request().into()),
            request => return check_paths(request),
        },
        FileRequest::Read { path, .. }
        | FileRequest::Write { path, .. }
        | FileRequest::List { path, .. }
        | FileRequest::Stat { path }
        | FileRequest::MakeDirectory { path }
        | FileRequest::Delete { path, .. }
        | FileRequest::Pack { path }
        | FileRequest::Unpack { path } => &[path],
        FileRequest::Move { from, to, .. } => &[from, to],
    };
    match paths.iter().find_map(|path| path_error(path)) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

fn run_job(job: &FileRequest, socket: &UnixStream, incoming: &mut Incoming<'_>) -> Result<FileOperationSummary> {
    match job {
        FileRequest::InWorkspace { request } => run_read(request, ReadScope::Workspace, socket),
        // An upload reads the connection all the time, sees its end, and cleans up by itself.
        FileRequest::Write { path, mode, make_parents, offset, length } => {
            let how = content::Write { mode: *mode, make_parents: *make_parents, offset: *offset, length: *length };
            content::write(path, how, incoming)
        }
        FileRequest::Unpack { path } => content::unpack(path, incoming),
        FileRequest::Read { .. } | FileRequest::Pack { .. } | FileRequest::List { .. } | FileRequest::Stat { .. } => {
            run_read(job, ReadScope::WholeSandbox, socket)
        }
        FileRequest::Delete { path, recursive } => {
            exit_with_peer(socket);
            jobs::delete(path, *recursive)
        }
        FileRequest::MakeDirectory { path } => jobs::make_directory(path),
        FileRequest::Move { from, to, replace } => jobs::rename(from, to, *replace),
    }
}

/// Runs a request that reads. Other requests have no scope.
fn run_read(job: &FileRequest, scope: ReadScope, socket: &UnixStream) -> Result<FileOperationSummary> {
    match job {
        FileRequest::Read { path, offset, length } => {
            exit_with_peer(socket);
            content::read(path, *offset, *length, scope, socket)
        }
        FileRequest::Pack { path } => {
            exit_with_peer(socket);
            content::pack(path, scope, socket)
        }
        FileRequest::List { path, after, limit } => {
            exit_with_peer(socket);
            jobs::list(path, after.as_deref(), *limit, scope, socket)
        }
        FileRequest::Stat { path } => jobs::stat(path, scope, socket),
        FileRequest::Write { .. }
        | FileRequest::MakeDirectory { .. }
        | FileRequest::Move { .. }
        | FileRequest::Delete { .. }
        | FileRequest::Unpack { .. }
        | FileRequest::InWorkspace { .. } => Err(scope::unconfined_request().into()),
    }
}

/// Ends this process when the peer closes the connection: a job may not notice for long.
fn exit_with_peer(socket: &UnixStream) {
    let Ok(socket) = socket.try_clone() else { return };
    let watch = move || loop {
        // Without requested events, poll returns only at the end.
        let mut polled = [PollFd::new(&socket, PollFlags::empty())];
        match poll(&mut polled, None) {
            Ok(_) => std::process::exit(1),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    };
    // Without the thread the next write notices the end.
    drop(std::thread::Builder::new().stack_size(64 * 1024).spawn(watch));
}
