//! Files in and out of the sandbox: a process for each request, with the agent's rights, which has the server's
//! connection itself. The first process only reads what the connection is for and gives it away: no data passes
//! through it, and no path that somebody names is ever opened with its rights.

mod content;
mod fault;
mod jobs;
mod wire;

use crate::exec::Exec;
use crate::hands::{Program, Streams};
use crate::link::Connection;
use atoll_core::provider::files::{FileError, FileFault, bad_path};
use atoll_protocol::files::{Done, Job, failed_frame};
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

/// How many helpers may run beside each other. Whoever reads slowly must not take the connections that the worker
/// itself needs, nor the processes that the agent may have.
const AT_ONCE: usize = 32;
static FREE: Semaphore = Semaphore::const_new(AT_ONCE);

/// What may wait in the socket.
const ON_THE_WAY: usize = 1 << 20;

/// Why a request did not end well.
enum Stop {
    /// To be told.
    Failed(FileError),
    /// There is nobody to tell.
    Lost,
}

impl From<FileError> for Stop {
    fn from(error: FileError) -> Self {
        Self::Failed(error)
    }
}

type Result<T, E = Stop> = std::result::Result<T, E>;

/// The first process's part.
pub async fn serve(connection: Connection, exec: Exec) {
    // It counts as one until the helper has ended.
    let (stream, _counted) = match connection.into_std() {
        Ok(taken) => taken,
        Err(error) => return tracing::warn!(%error, "a connection for files can't be used"),
    };
    let Ok(_free) = FREE.try_acquire() else {
        let detail = format!("{AT_ONCE} requests for files are under way in this sandbox; try again later");
        return refuse(&stream, detail);
    };
    let started = async {
        stream.set_nonblocking(false)?;
        let input = OwnedFd::from(stream.try_clone()?);
        let nowhere = || File::options().write(true).open("/dev/null").map(OwnedFd::from);
        let streams = Streams { input: Some(input), stdout: nowhere()?, stderr: nowhere()? };
        let program = Program {
            argv: vec!["/proc/self/exe".to_owned(), "files".to_owned()],
            cwd: exec.cwd.clone(),
            env: Vec::new(),
            whole: true,
            terminal: None,
            files: Vec::new(),
        };
        exec.hands.spawn(program, streams).await.map_err(io::Error::other)
    };
    match started.await {
        Ok(mut process) => {
            // From here on only the helper has it, so that its end is the connection's.
            drop(stream);
            let _ = process.ended().await;
        }
        Err(error) => refuse(&stream, format!("failed to start the helper for files: {error}")),
    }
}

fn refuse(stream: &UnixStream, detail: String) {
    let failed = FileError::new(FileFault::Failed, detail);
    // A few bytes into an empty socket; if they have no room, its end says enough.
    let _ = rustix::net::send(stream, &failed_frame(&failed), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// The helper: one request from the connection at standard input. It runs in the workspace.
pub fn main() -> ExitCode {
    // Nothing that runs as the same user may look into it. It is no boundary: what it may do, the agent may.
    drop(atoll_jail::inside::prepare_init());
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    // Only for speed: each side is woken less often.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, ON_THE_WAY);
    if answer(&UnixStream::from(socket)).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn answer(socket: &UnixStream) -> io::Result<()> {
    let mut incoming = Incoming::new(socket);
    let job = incoming.job()?;
    let mut writer = socket;
    match check(&job).and_then(|()| run(&job, socket, &mut incoming)) {
        Ok(done) => writer.write_all(&done.frame()),
        Err(Stop::Failed(error)) => writer.write_all(&failed_frame(&error)),
        Err(Stop::Lost) => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

fn check(job: &Job) -> Result<()> {
    let paths: &[&String] = match job {
        Job::Read { path, .. }
        | Job::Write { path, .. }
        | Job::List { path, .. }
        | Job::Stat { path }
        | Job::MakeDirectory { path }
        | Job::Delete { path, .. }
        | Job::Pack { path }
        | Job::Unpack { path } => &[path],
        Job::Move { from, to, .. } => &[from, to],
    };
    match paths.iter().find_map(|path| bad_path(path)) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

fn run(job: &Job, socket: &UnixStream, incoming: &mut Incoming<'_>) -> Result<Done> {
    match job {
        // What comes in is read from the connection all the time, so its end is seen, and half a file cleaned up.
        Job::Write { path, mode, make_parents, offset, length } => {
            let how = content::Write { mode: *mode, make_parents: *make_parents, offset: *offset, length: *length };
            content::write(path, how, incoming)
        }
        Job::Unpack { path } => content::unpack(path, incoming),
        Job::Read { path, offset, length } => {
            end_with(socket);
            content::read(path, *offset, *length, socket)
        }
        Job::Pack { path } => {
            end_with(socket);
            content::pack(path, socket)
        }
        Job::List { path, after, limit } => {
            end_with(socket);
            jobs::list(path, after.as_deref(), *limit, socket)
        }
        Job::Delete { path, recursive } => {
            end_with(socket);
            jobs::delete(path, *recursive)
        }
        Job::Stat { path } => jobs::stat(path, socket),
        Job::MakeDirectory { path } => jobs::make_directory(path),
        Job::Move { from, to, replace } => jobs::rename(from, to, *replace),
    }
}

/// Ends this process when nobody is at the other end any more: it may be busy with something else for long.
fn end_with(socket: &UnixStream) {
    let Ok(socket) = socket.try_clone() else { return };
    let watch = move || loop {
        // Without a wish it returns only for an end.
        let mut wanted = [PollFd::new(&socket, PollFlags::empty())];
        match poll(&mut wanted, None) {
            Ok(_) => std::process::exit(1),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    };
    // Without it the end is seen at the next write.
    drop(std::thread::Builder::new().stack_size(64 * 1024).spawn(watch));
}
