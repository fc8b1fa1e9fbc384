//! Commands as a sandbox's root. The worker has dropped the needed privileges, so the launcher starts them, and this
//! module speaks the worker's protocol over a socket pair.

use atoll_core::provider::Error;
use atoll_jail::{Exit, KillHandle, Launcher, ProgramSpec, RunningProgram, SandboxInfo};
use atoll_protocol::exec::{ExecClientFrame, ExecExit, ExecStart, ExecWorkerFrame};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, pipe};
use tokio::sync::{mpsc, oneshot};

const READ_BYTES: usize = 64 << 10;
/// Back-pressure limit on unsent output.
const MAX_QUEUED_CHUNKS: usize = 4;
/// The egress proxy in the sandbox, the same as for the worker's own commands.
const PROXY_URL: &str = "http://127.0.0.1:7709";
const DEFAULT_ENV: &[(&str, &str)] = &[
    ("HTTP_PROXY", PROXY_URL),
    ("HTTPS_PROXY", PROXY_URL),
    ("http_proxy", PROXY_URL),
    ("https_proxy", PROXY_URL),
    ("NO_PROXY", "localhost,127.0.0.1,::1"),
    ("no_proxy", "localhost,127.0.0.1,::1"),
    ("TERM", "dumb"),
    // No one can answer a package's questions.
    ("DEBIAN_FRONTEND", "noninteractive"),
];

/// Returns a connection that carries one command, like a worker's.
pub(super) fn serve_root_command(launcher: Arc<Launcher>, info: &SandboxInfo) -> Result<UnixStream, Error> {
    if info.image.is_none() {
        let detail = "only a sandbox with an image can run commands as root; the host's files are read-only";
        return Err(Error::Refused { detail: detail.into() });
    }
    let (client_end, server_end) =
        UnixStream::pair().map_err(|error| super::git_run::io_failure("cannot create a socket pair", &error))?;
    let name = info.name.clone();
    tokio::spawn(async move {
        let (mut read, mut write) = server_end.into_split();
        let mut buffer = Vec::new();
        let end = match next_request(&mut read, &mut buffer).await {
            Some(ExecClientFrame::Start(start)) => match start_command(launcher, name, &start).await {
                Ok(command) => relay_command(command, &mut read, buffer, &mut write).await,
                Err(error) => ExecExit::NotStarted { error },
            },
            Some(_) | None => ExecExit::Unknown,
        };
        // Ignore a closed connection.
        drop(write.write_all(&ExecWorkerFrame::Exited(end).encode()).await);
    });
    Ok(client_end)
}

struct RootCommand {
    running: RunningProgram,
    input: Option<pipe::Sender>,
    output: pipe::Receiver,
    errors: pipe::Receiver,
}

fn output_pipe() -> std::io::Result<(pipe::Receiver, OwnedFd)> {
    let (read, write) = std::io::pipe()?;
    Ok((pipe::Receiver::from_owned_fd(read.into())?, write.into()))
}

async fn start_command(launcher: Arc<Launcher>, name: String, start: &ExecStart) -> Result<RootCommand, String> {
    if start.terminal.is_some() {
        return Err("commands as root have no terminal".into());
    }
    let failed = |error: std::io::Error| error.to_string();
    let (output, stdout_end) = output_pipe().map_err(failed)?;
    let (errors, stderr_end) = output_pipe().map_err(failed)?;
    let (read, write) = std::io::pipe().map_err(failed)?;
    let input = pipe::Sender::from_owned_fd(write.into()).map_err(failed)?;
    let usual = DEFAULT_ENV.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let requested = start.env.iter().map(|(name, value)| (name.clone(), value.clone()));
    let program = ProgramSpec {
        argv: start.argv.clone(),
        env: usual.chain(requested).collect(),
        working_dir: start.cwd.clone(),
        as_root: true,
    };
    let entering = move || launcher.exec_with(&name, program, [read.into(), stdout_end, stderr_end]);
    let running = match tokio::task::spawn_blocking(entering).await {
        Ok(running) => running.map_err(|error| error.to_string())?,
        Err(error) => return Err(error.to_string()),
    };
    Ok(RootCommand { running, input: start.stdin.then_some(input), output, errors })
}

async fn relay_command(
    command: RootCommand,
    read: &mut OwnedReadHalf,
    buffer: Vec<u8>,
    write: &mut (impl tokio::io::AsyncWrite + Unpin),
) -> ExecExit {
    let RootCommand { mut running, input, output, errors } = command;
    let stopper = running.kill_handle();
    // Wait by callback: there may be more commands than blocking threads.
    let (wake, woken) = oneshot::channel();
    running.on_exit(move || {
        let _ = wake.send(());
    });
    let ended = async move {
        let _ = woken.await;
        running.wait(Duration::ZERO)
    };
    tokio::pin!(ended);
    let (sender, mut frames) = mpsc::channel(MAX_QUEUED_CHUNKS);
    let printing = [
        tokio::spawn(forward_output(output, sender.clone(), ExecWorkerFrame::Stdout)),
        tokio::spawn(forward_output(errors, sender, ExecWorkerFrame::Stderr)),
    ];
    let (consumed, mut consumed_counts) = mpsc::unbounded_channel();
    let request_handling = handle_requests(read, buffer, input, &stopper, consumed);
    tokio::pin!(request_handling);
    let mut requests_ended = false;
    let exit = loop {
        tokio::select! {
            Some(frame) = frames.recv() => if write.write_all(&frame.encode()).await.is_err() {
                // The client is gone.
                drop(stopper.kill());
            },
            Some(count) = consumed_counts.recv() => {
                let consumed = ExecWorkerFrame::StdinConsumed(u32::try_from(count).unwrap_or(u32::MAX));
                if write.write_all(&consumed.encode()).await.is_err() {
                    drop(stopper.kill());
                }
            }
            () = &mut request_handling, if !requests_ended => requests_ended = true,
            exit = &mut ended => break exit,
        }
    };
    // Background children may hold the pipes open; the command's own output is already in them.
    let rest = async {
        while let Some(frame) = frames.recv().await {
            if write.write_all(&frame.encode()).await.is_err() {
                break;
            }
        }
    };
    drop(tokio::time::timeout(Duration::from_secs(1), rest).await);
    printing.iter().for_each(tokio::task::JoinHandle::abort);
    match exit {
        Ok(Exit::Exited(code)) => ExecExit::Exited { code },
        Ok(Exit::Signalled(signal)) => ExecExit::Signalled { signal },
        Ok(Exit::OutOfMemory) => ExecExit::OutOfMemory,
        Ok(Exit::TimedOut | Exit::Unknown) | Err(_) => ExecExit::Unknown,
    }
}

async fn forward_output(
    mut pipe: pipe::Receiver,
    sender: mpsc::Sender<ExecWorkerFrame>,
    kind: fn(Vec<u8>) -> ExecWorkerFrame,
) {
    let mut piece = vec![0; READ_BYTES];
    while let Ok(count @ 1..) = pipe.read(&mut piece).await {
        if sender.send(kind(piece.get(..count).unwrap_or_default().to_vec())).await.is_err() {
            return;
        }
    }
}

/// Handles requests until the connection closes, and then kills the command. Never blocks on stdin: a command that does
/// not read its input must still get signals.
async fn handle_requests(
    read: &mut OwnedReadHalf,
    mut buffer: Vec<u8>,
    mut input: Option<pipe::Sender>,
    stopper: &KillHandle,
    consumed: mpsc::UnboundedSender<usize>,
) {
    let (mut unread, mut closing) = (Vec::new(), false);
    // The receiver ends with the command.
    let tell = |count: usize| {
        let _ = consumed.send(count);
    };
    loop {
        let ask = tokio::select! {
            ask = next_request(read, &mut buffer) => ask,
            written = write_input(&mut input, &unread), if !unread.is_empty() => {
                // A command that has closed its stdin discards the rest.
                let count = written.unwrap_or_else(|_| {
                    closing = true;
                    unread.len()
                });
                unread.drain(..count);
                tell(count);
                if closing && unread.is_empty() {
                    input = None;
                }
                continue;
            }
        };
        match ask {
            Some(ExecClientFrame::Stdin(data)) if input.is_some() && !closing => unread.extend_from_slice(&data),
            Some(ExecClientFrame::Stdin(data)) => tell(data.len()),
            Some(ExecClientFrame::CloseStdin) => {
                closing = true;
                input = input.filter(|_| !unread.is_empty());
            }
            // The launcher supports only a kill.
            Some(ExecClientFrame::Signal(_)) => drop(stopper.kill()),
            Some(ExecClientFrame::Start(_) | ExecClientFrame::Resize(_)) => {}
            None => break,
        }
    }
    drop(stopper.kill());
}

async fn write_input(input: &mut Option<pipe::Sender>, data: &[u8]) -> std::io::Result<usize> {
    match input {
        Some(pipe) => pipe.write(data).await,
        None => std::future::pending().await,
    }
}

async fn next_request(read: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> Option<ExecClientFrame> {
    let mut piece = vec![0; READ_BYTES];
    loop {
        match ExecClientFrame::decode(buffer) {
            Ok(Some(ask)) => return Some(ask),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot parse a request to a command");
                return None;
            }
        }
        match read.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => buffer.extend_from_slice(piece.get(..count).unwrap_or_default()),
        }
    }
}
