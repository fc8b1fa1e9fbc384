//! Channels of bytes between async requests and blocking file I/O.

use crate::stdin_stream::Chunk;
use bytes::{Buf, Bytes};
use std::io::{self, BufRead, ErrorKind, Read, Write};
use tokio::sync::mpsc;

/// Limit on buffered chunks.
const MAX_BUFFERED_CHUNKS: usize = 8;

pub fn chunk_channel() -> (mpsc::Sender<Chunk>, mpsc::Receiver<Chunk>) {
    mpsc::channel(MAX_BUFFERED_CHUNKS)
}

/// Reads the chunks of a channel like a file.
pub struct ChunkReader {
    chunks: mpsc::Receiver<Chunk>,
    current: Bytes,
}

impl ChunkReader {
    pub const fn new(chunks: mpsc::Receiver<Chunk>) -> Self {
        Self { chunks, current: Bytes::new() }
    }
}

impl BufRead for ChunkReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.is_empty() {
            match self.chunks.blocking_recv() {
                Some(chunk) => self.current = chunk?,
                None => return Ok(&[]),
            }
        }
        Ok(&self.current)
    }

    fn consume(&mut self, count: usize) {
        self.current.advance(count);
    }
}

impl Read for ChunkReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let here = self.fill_buf()?;
        let length = here.len().min(into.len());
        into[..length].copy_from_slice(&here[..length]);
        self.consume(length);
        Ok(length)
    }
}

/// Sends each write as a chunk.
pub struct ChunkWriter(pub mpsc::Sender<Chunk>);

impl Write for ChunkWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(data)));
        sent.map(|()| data.len()).map_err(|_| ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
