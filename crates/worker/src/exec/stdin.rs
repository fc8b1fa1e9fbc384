//! Reads frames from the connection: forwards input to the command and signals at once.
//! It always reads the connection; the sender limits waiting input by the `Taken` frames that it gets.

use super::terminal::Terminal;
use atoll_protocol::exec::{ExecClientFrame, FrameError, TerminalSize as Size};
use std::io;
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use tokio::net::unix::ReadHalf;
use tokio::net::unix::pipe::Sender;
use tokio::sync::mpsc;

const CHUNK_BYTES: usize = 16 * 1024;
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("failed to read the connection: {0}")]
    Io(#[from] io::Error),
}

/// Splits a connection into frames.
#[derive(Default)]
pub(super) struct FrameReader {
    buffer: Vec<u8>,
}

impl FrameReader {
    /// Reads the next frame; `None` at the end. Cancel-safe.
    pub(super) async fn next_frame(&mut self, reader: &mut ReadHalf<'_>) -> Result<Option<ExecClientFrame>, Error> {
        loop {
            if let Some(ask) = ExecClientFrame::decode(&mut self.buffer)? {
                return Ok(Some(ask));
            }
            self.buffer.reserve(CHUNK_BYTES);
            if reader.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }
}

/// Forwards input and signals until the connection ends.
pub(super) async fn forward_input(
    mut frames: FrameReader,
    reader: &mut ReadHalf<'_>,
    input: Option<StdinTarget>,
    signals: mpsc::UnboundedSender<i32>,
    consumed: mpsc::UnboundedSender<usize>,
) {
    let mut feeder = StdinWriter { input, unread: Vec::new(), closing: false, consumed };
    loop {
        tokio::select! {
            frame = frames.next_frame(reader) => match frame {
                Ok(Some(ExecClientFrame::Stdin(data))) => feeder.push_input(&data),
                Ok(Some(ExecClientFrame::CloseStdin)) => feeder.close(),
                Ok(Some(ExecClientFrame::Signal(signal))) => drop(signals.send(signal)),
                Ok(Some(ExecClientFrame::Resize(size))) => feeder.resize(size),
                Ok(Some(ExecClientFrame::Start(_))) => tracing::warn!("ignoring a second command on one connection"),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "failed to read an exec connection");
                    return;
                }
            },
            () = feeder.writable(), if !feeder.unread.is_empty() => feeder.write_unread(),
        }
    }
}

/// The command's stdin.
pub(super) enum StdinTarget {
    Pipe(Sender),
    Terminal(Arc<Terminal>),
}

impl StdinTarget {
    async fn writable(&self) {
        match self {
            // Errors show up when it is written.
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

/// The command's stdin, with unread input.
struct StdinWriter {
    input: Option<StdinTarget>,
    unread: Vec<u8>,
    closing: bool,
    /// Reports the number of bytes that no longer wait.
    consumed: mpsc::UnboundedSender<usize>,
}

impl StdinWriter {
    fn push_input(&mut self, data: &[u8]) {
        if self.input.is_some() && !self.closing {
            self.unread.extend_from_slice(data);
            self.write_unread();
        } else {
            self.report_consumed(data.len());
        }
    }

    fn report_consumed(&self, count: usize) {
        if count > 0 {
            // Fails only after the output has ended.
            let _ = self.consumed.send(count);
        }
    }

    /// Closes a pipe; on a terminal it sends the end-of-input character instead.
    fn close(&mut self) {
        match &self.input {
            Some(StdinTarget::Terminal(terminal)) => self.unread.push(terminal.end_of_input()),
            Some(StdinTarget::Pipe(_)) | None => self.closing = true,
        }
        self.write_unread();
    }

    fn resize(&self, size: Size) {
        match &self.input {
            Some(StdinTarget::Terminal(terminal)) if size.columns > 0 && size.rows > 0 => terminal.resize(size),
            Some(StdinTarget::Terminal(_) | StdinTarget::Pipe(_)) | None => {}
        }
    }

    async fn writable(&self) {
        match &self.input {
            Some(input) => input.writable().await,
            None => std::future::pending().await,
        }
    }

    fn write_unread(&mut self) {
        let Some(input) = &self.input else { return };
        let mut written = 0;
        while written < self.unread.len() {
            match input.try_write(&self.unread[written..]) {
                Ok(length) => written += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    // The command has closed its stdin.
                    self.input = None;
                    written = self.unread.len();
                    break;
                }
            }
        }
        self.unread.drain(..written);
        self.report_consumed(written);
        if self.unread.is_empty() && self.closing {
            self.input = None;
        }
    }
}
