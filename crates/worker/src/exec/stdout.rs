//! Forwards the output of a command or its terminal to the connection. A slow reader blocks the command.

use super::terminal::Terminal;
use atoll_protocol::exec::ExecWorkerFrame;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::WriteHalf;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

/// Maximum size of a frame's data.
const MAX_FRAME_DATA: usize = 64 * 1024;
/// Poll interval for a terminal that no process has open.
const TERMINAL_POLL: Duration = Duration::from_millis(50);

/// Creates a pipe: the worker's end and the command's.
pub(super) fn make_pipe() -> io::Result<(Receiver, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Receiver::from_owned_fd(reader)?, writer))
}

/// The command's outputs; each is `None` at its end.
pub(super) struct OutputForwarder {
    stdout: Option<Source>,
    stderr: Option<Source>,
}

enum Source {
    Pipe(Receiver),
    Terminal(Arc<Terminal>),
}

impl Source {
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.try_read(buffer),
            Self::Terminal(terminal) => terminal.try_read(buffer),
        }
    }

    fn read_available(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut *buffer)).map_err(Into::into),
            Self::Terminal(terminal) => terminal.read_available(buffer),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputKind {
    Stdout,
    Stderr,
}

impl OutputForwarder {
    pub(super) const fn from_pipes(stdout: Receiver, stderr: Receiver) -> Self {
        Self { stdout: Some(Source::Pipe(stdout)), stderr: Some(Source::Pipe(stderr)) }
    }

    pub(super) const fn from_terminal(terminal: Arc<Terminal>) -> Self {
        Self { stdout: Some(Source::Terminal(terminal)), stderr: None }
    }

    /// Forwards output until the command has exited (`ended` resolves) and all of it is sent. Also sends the amounts of
    /// input that the command has read.
    pub(super) async fn forward_output(
        mut self,
        writer: &mut WriteHalf<'_>,
        mut ended: oneshot::Receiver<()>,
        mut consumed: mpsc::UnboundedReceiver<usize>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; MAX_FRAME_DATA];
        loop {
            let kind = tokio::select! {
                () = wait_readable(self.stdout.as_ref()) => OutputKind::Stdout,
                () = wait_readable(self.stderr.as_ref()) => OutputKind::Stderr,
                Some(count) = consumed.recv() => {
                    let count = u32::try_from(count).unwrap_or(u32::MAX);
                    writer.write_all(&ExecWorkerFrame::StdinConsumed(count).encode()).await?;
                    continue;
                }
                _ = &mut ended => break,
            };
            let source = self.source_of(kind);
            match source.as_ref().map(|open| open.try_read(&mut buffer)) {
                // Another process may open it again by its name while the command runs.
                Some(Ok(0)) if matches!(source, Some(Source::Terminal(_))) => tokio::select! {
                    () = sleep(TERMINAL_POLL) => {}
                    _ = &mut ended => break,
                },
                Some(Ok(0)) => *source = None,
                Some(Ok(length)) => send_output(writer, kind, &buffer[..length]).await?,
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
        // The command's output is in the pipes. Its children may keep them open forever, so read what is there and do not
        // wait for their end.
        for kind in [OutputKind::Stdout, OutputKind::Stderr] {
            let Some(source) = self.source_of(kind).take() else { continue };
            loop {
                match source.read_available(&mut buffer) {
                    Ok(0) => break,
                    Ok(length) => send_output(writer, kind, &buffer[..length]).await?,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    const fn source_of(&mut self, kind: OutputKind) -> &mut Option<Source> {
        match kind {
            OutputKind::Stdout => &mut self.stdout,
            OutputKind::Stderr => &mut self.stderr,
        }
    }
}

async fn send_output(writer: &mut WriteHalf<'_>, kind: OutputKind, piece: &[u8]) -> io::Result<()> {
    let frame = match kind {
        OutputKind::Stdout => ExecWorkerFrame::Stdout(piece.to_vec()),
        OutputKind::Stderr => ExecWorkerFrame::Stderr(piece.to_vec()),
    };
    writer.write_all(&frame.encode()).await
}

async fn wait_readable(source: Option<&Source>) {
    match source {
        // Errors show up when it is read.
        Some(Source::Pipe(pipe)) => drop(pipe.readable().await),
        Some(Source::Terminal(terminal)) => terminal.readable().await,
        None => std::future::pending().await,
    }
}
