//! Frames from the connection: input goes to the command as it reads it, signals at once. The connection is always
//! read; how much input waits here is bounded by who sends it, who hears how much was taken.

use super::terminal::Terminal;
use atoll_protocol::exec::{Ask, BadFrame, Terminal as Size};
use std::io;
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use tokio::net::unix::ReadHalf;
use tokio::net::unix::pipe::Sender;
use tokio::sync::mpsc;

const CHUNK: usize = 16 * 1024;
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Frame(#[from] BadFrame),
    #[error("failed to read the connection: {0}")]
    Io(#[from] io::Error),
}

/// The frames of a connection.
#[derive(Default)]
pub(super) struct Frames {
    buffer: Vec<u8>,
}

impl Frames {
    /// The next one; nothing when the connection has ended. What was read is kept if this is dropped.
    pub(super) async fn next(&mut self, reader: &mut ReadHalf<'_>) -> Result<Option<Ask>, Error> {
        loop {
            if let Some(ask) = Ask::decode(&mut self.buffer)? {
                return Ok(Some(ask));
            }
            self.buffer.reserve(CHUNK);
            if reader.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }
}

/// Passes on what comes until the connection ends.
pub(super) async fn feed(
    mut frames: Frames,
    reader: &mut ReadHalf<'_>,
    input: Option<Input>,
    signals: mpsc::UnboundedSender<i32>,
    taken: mpsc::UnboundedSender<usize>,
) {
    let mut feeder = Feeder { input, unread: Vec::new(), closing: false, taken };
    loop {
        tokio::select! {
            asked = frames.next(reader) => match asked {
                Ok(Some(Ask::Stdin(data))) => feeder.take(&data),
                Ok(Some(Ask::CloseStdin)) => feeder.close(),
                Ok(Some(Ask::Signal(signal))) => drop(signals.send(signal)),
                Ok(Some(Ask::Resize(size))) => feeder.resize(size),
                Ok(Some(Ask::Start(_))) => tracing::warn!("a second command on one connection is not run"),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "an exec's connection can't be read");
                    return;
                }
            },
            () = feeder.writable(), if !feeder.unread.is_empty() => feeder.write(),
        }
    }
}

/// Where input goes.
pub(super) enum Input {
    Pipe(Sender),
    Terminal(Arc<Terminal>),
}

impl Input {
    async fn writable(&self) {
        match self {
            // A failure shows when it is written to.
            Self::Pipe(pipe) => drop(pipe.writable().await),
            Self::Terminal(terminal) => terminal.writable().await,
        }
    }

    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.try_write(data),
            Self::Terminal(terminal) => terminal.try_write(data),
        }
    }
}

/// The command's input, and what it has not read.
struct Feeder {
    input: Option<Input>,
    unread: Vec<u8>,
    closing: bool,
    /// Hears of every byte that no longer waits.
    taken: mpsc::UnboundedSender<usize>,
}

impl Feeder {
    fn take(&mut self, data: &[u8]) {
        if self.input.is_some() && !self.closing {
            self.unread.extend_from_slice(data);
            self.write();
        } else {
            self.tell(data.len());
        }
    }

    fn tell(&self, count: usize) {
        if count > 0 {
            // With the output ends what would be said of the input.
            let _ = self.taken.send(count);
        }
    }

    /// A terminal stays open: its program is told in the terminal's way that no more comes.
    fn close(&mut self) {
        match &self.input {
            Some(Input::Terminal(terminal)) => self.unread.push(terminal.end_of_input()),
            Some(Input::Pipe(_)) | None => self.closing = true,
        }
        self.write();
    }

    fn resize(&self, size: Size) {
        match &self.input {
            Some(Input::Terminal(terminal)) if size.columns > 0 && size.rows > 0 => terminal.resize(size),
            // Without a terminal there is nothing to resize.
            Some(Input::Terminal(_) | Input::Pipe(_)) | None => {}
        }
    }

    async fn writable(&self) {
        match &self.input {
            Some(input) => input.writable().await,
            None => std::future::pending().await,
        }
    }

    fn write(&mut self) {
        let Some(input) = &self.input else { return };
        let mut written = 0;
        while written < self.unread.len() {
            match input.try_write(&self.unread[written..]) {
                Ok(length) => written += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    // The command does not want its input.
                    self.input = None;
                    written = self.unread.len();
                    break;
                }
            }
        }
        self.unread.drain(..written);
        self.tell(written);
        if self.unread.is_empty() && self.closing {
            self.input = None;
        }
    }
}
