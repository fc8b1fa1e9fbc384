//! Bytes between the requests, which wait in tasks, and files, which wait on a thread.

use bytes::{Buf, Bytes};
use std::io::{self, BufRead, ErrorKind, Read, Write};
use tokio::sync::mpsc;

/// Pieces on their way: enough that neither side waits for the other, and no more.
const PIECES: usize = 8;

pub(super) type Piece = io::Result<Bytes>;

pub(super) fn channel() -> (mpsc::Sender<Piece>, mpsc::Receiver<Piece>) {
    mpsc::channel(PIECES)
}

/// What is sent, read like a file. An end that nobody said is an error.
pub(super) struct Reader {
    pieces: mpsc::Receiver<Piece>,
    current: Bytes,
}

impl Reader {
    pub(super) const fn new(pieces: mpsc::Receiver<Piece>) -> Self {
        Self { pieces, current: Bytes::new() }
    }
}

impl BufRead for Reader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.current = piece?,
                None => return Ok(&[]),
            }
        }
        Ok(&self.current)
    }

    fn consume(&mut self, count: usize) {
        self.current.advance(count);
    }
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let here = self.fill_buf()?;
        let length = here.len().min(into.len());
        into[..length].copy_from_slice(&here[..length]);
        self.consume(length);
        Ok(length)
    }
}

/// What is written, sent piece by piece.
pub(super) struct Writer(pub(super) mpsc::Sender<Piece>);

impl Write for Writer {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(data)));
        sent.map(|()| data.len()).map_err(|_| ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
