//! Both outputs of a command, or what its terminal shows, on their way to the connection. A connection that is read
//! slowly holds up the command.

use super::terminal::Terminal;
use atoll_protocol::exec::Tell;
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

/// The longest piece in one frame, and what is read at once.
const PIECE: usize = 64 * 1024;
/// Between two looks at a terminal that nobody has open.
const LOOK: Duration = Duration::from_millis(50);

/// The worker's end of an output, and the command's.
pub(super) fn pipe() -> io::Result<(Receiver, OwnedFd)> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Receiver::from_owned_fd(ours)?, theirs))
}

/// Each is `None` when it has ended.
pub(super) struct Output {
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

    fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut *buffer)).map_err(Into::into),
            Self::Terminal(terminal) => terminal.read_now(buffer),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Stdout,
    Stderr,
}

impl Output {
    pub(super) const fn of_pipes(stdout: Receiver, stderr: Receiver) -> Self {
        Self { stdout: Some(Source::Pipe(stdout)), stderr: Some(Source::Pipe(stderr)) }
    }

    pub(super) const fn of_terminal(terminal: Arc<Terminal>) -> Self {
        Self { stdout: Some(Source::Terminal(terminal)), stderr: None }
    }

    /// Until the command has ended (`ended` then resolves in any way) and what it wrote is sent; between that, how much of
    /// the input was taken.
    pub(super) async fn pass_on(
        mut self,
        writer: &mut WriteHalf<'_>,
        mut ended: oneshot::Receiver<()>,
        mut taken: mpsc::UnboundedReceiver<usize>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; PIECE];
        loop {
            let which = tokio::select! {
                () = readable(self.stdout.as_ref()) => Which::Stdout,
                () = readable(self.stderr.as_ref()) => Which::Stderr,
                Some(count) = taken.recv() => {
                    let count = u32::try_from(count).unwrap_or(u32::MAX);
                    writer.write_all(&Tell::Taken(count).encode()).await?;
                    continue;
                }
                _ = &mut ended => break,
            };
            let source = self.source(which);
            match source.as_ref().map(|open| open.try_read(&mut buffer)) {
                // Somebody may open it again, by its name, as long as its program runs.
                Some(Ok(0)) if matches!(source, Some(Source::Terminal(_))) => tokio::select! {
                    () = sleep(LOOK) => {}
                    _ = &mut ended => break,
                },
                Some(Ok(0)) => *source = None,
                Some(Ok(length)) => send(writer, which, &buffer[..length]).await?,
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
        // What the command wrote is in the pipes. Those that it left behind may hold them open for ever, so their end is
        // not waited for, and whether there is anything is asked of the kernel itself.
        for which in [Which::Stdout, Which::Stderr] {
            let Some(source) = self.source(which).take() else { continue };
            loop {
                match source.read_now(&mut buffer) {
                    Ok(0) => break,
                    Ok(length) => send(writer, which, &buffer[..length]).await?,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    const fn source(&mut self, which: Which) -> &mut Option<Source> {
        match which {
            Which::Stdout => &mut self.stdout,
            Which::Stderr => &mut self.stderr,
        }
    }
}

async fn send(writer: &mut WriteHalf<'_>, which: Which, piece: &[u8]) -> io::Result<()> {
    let frame = match which {
        Which::Stdout => Tell::Stdout(piece.to_vec()),
        Which::Stderr => Tell::Stderr(piece.to_vec()),
    };
    writer.write_all(&frame.encode()).await
}

async fn readable(source: Option<&Source>) {
    match source {
        // A failure shows when it is read.
        Some(Source::Pipe(pipe)) => drop(pipe.readable().await),
        Some(Source::Terminal(terminal)) => terminal.readable().await,
        None => std::future::pending().await,
    }
}
