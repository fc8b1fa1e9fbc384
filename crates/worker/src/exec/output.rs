//! Both outputs of a command on their way to the connection. A connection that is read slowly holds up the command.

use atoll_protocol::exec::Tell;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::OwnedFd;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::WriteHalf;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;

/// The longest piece in one frame, and what is read at once.
const PIECE: usize = 64 * 1024;

/// The worker's end of an output, and the command's.
pub(super) fn pipe() -> io::Result<(Receiver, OwnedFd)> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((Receiver::from_owned_fd(ours)?, theirs))
}

/// Each is `None` when it has ended.
pub(super) struct Output {
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Stdout,
    Stderr,
}

impl Output {
    pub(super) const fn new(stdout: Receiver, stderr: Receiver) -> Self {
        Self { stdout: Some(stdout), stderr: Some(stderr) }
    }

    /// Until the command has ended (`ended` then resolves in any way) and what it wrote is sent.
    pub(super) async fn pass_on(
        mut self,
        writer: &mut WriteHalf<'_>,
        mut ended: oneshot::Receiver<()>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; PIECE];
        loop {
            let which = tokio::select! {
                () = readable(self.stdout.as_ref()) => Which::Stdout,
                () = readable(self.stderr.as_ref()) => Which::Stderr,
                _ = &mut ended => break,
            };
            let pipe = self.pipe(which);
            match pipe.as_ref().map(|open| open.try_read(&mut buffer)) {
                Some(Ok(0)) => *pipe = None,
                Some(Ok(length)) => send(writer, which, &buffer[..length]).await?,
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
        // What the command wrote is in the pipes. Those that it left behind may hold them open for ever, so their end is
        // not waited for, and whether there is anything is asked of the kernel itself.
        for which in [Which::Stdout, Which::Stderr] {
            let Some(pipe) = self.pipe(which).take() else { continue };
            loop {
                match rustix::io::read(&pipe, &mut buffer[..]) {
                    Ok(0) | Err(Errno::AGAIN) => break,
                    Ok(length) => send(writer, which, &buffer[..length]).await?,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    const fn pipe(&mut self, which: Which) -> &mut Option<Receiver> {
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

async fn readable(pipe: Option<&Receiver>) {
    match pipe {
        // A failure shows when it is read.
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}
