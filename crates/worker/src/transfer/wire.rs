//! Frames of a transfer connection, without copies of the data.

use super::{Result, TransferError};
use atoll_protocol::files::{
    FileClientFrame, FileRequest, FileWorkerFrame, HEADER_BYTES, MAX_CHUNK_BYTES, MAX_PAYLOAD_BYTES, decode_header,
    encode_header,
};
use std::io::{self, BufRead, ErrorKind, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;

fn invalid_data(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error.to_string())
}

/// Reads the server's frames: a job, then optional data, which reads like a file.
pub(super) struct Incoming<'a> {
    socket: &'a UnixStream,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes left in the current frame.
    left: usize,
    is_complete: bool,
}

impl<'a> Incoming<'a> {
    pub(super) fn new(socket: &'a UnixStream) -> Self {
        Self { socket, buffer: vec![0; MAX_CHUNK_BYTES], start: 0, end: 0, left: 0, is_complete: false }
    }

    /// Reads until the buffer has `count` bytes.
    fn fill_to(&mut self, count: usize) -> io::Result<()> {
        if self.buffer.len() < count {
            self.buffer.resize(count, 0);
        }
        if self.buffer.len() - self.start < count {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end - self.start < count {
            match self.socket.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.end += length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read_header(&mut self) -> io::Result<(FileClientFrame, usize)> {
        self.fill_to(HEADER_BYTES)?;
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(&self.buffer[self.start..self.start + HEADER_BYTES]);
        self.start += HEADER_BYTES;
        let (kind, length) = decode_header(bytes).map_err(invalid_data)?;
        Ok((FileClientFrame::from_byte(kind).map_err(invalid_data)?, length))
    }

    pub(super) fn read_job(&mut self) -> io::Result<FileRequest> {
        let (FileClientFrame::Operation, length) = self.read_header()? else {
            return Err(invalid_data("the first frame must be a request"));
        };
        debug_assert!(length <= MAX_PAYLOAD_BYTES);
        self.fill_to(length)?;
        let job = FileRequest::from_payload(&self.buffer[self.start..self.start + length]).map_err(invalid_data)?;
        self.start += length;
        Ok(job)
    }
}

impl BufRead for Incoming<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.left == 0 && !self.is_complete {
            match self.read_header()? {
                (FileClientFrame::Data, length) => self.left = length,
                (FileClientFrame::EndOfData, _) => self.is_complete = true,
                (FileClientFrame::Operation, _) => return Err(invalid_data("a second request on one connection")),
            }
        }
        if self.is_complete {
            return Ok(&[]);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.fill_to(1)?;
        }
        Ok(&self.buffer[self.start..self.end.min(self.start + self.left)])
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
        self.left -= count;
    }
}

impl Read for Incoming<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let length = available.len().min(into.len());
        into[..length].copy_from_slice(&available[..length]);
        self.consume(length);
        Ok(length)
    }
}

/// Writes each chunk as a data frame.
pub(super) struct Outgoing<'a>(pub(super) &'a UnixStream);

impl Write for Outgoing<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let piece = &data[..data.len().min(MAX_CHUNK_BYTES)];
        let head = encode_header(FileWorkerFrame::Data.to_byte(), piece.len());
        let mut parts = [IoSlice::new(&head), IoSlice::new(piece)];
        let mut rest = &mut parts[..];
        while !rest.is_empty() {
            match self.0.write_vectored(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(length) => IoSlice::advance_slices(&mut rest, length),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends a frame that is not data.
pub(super) fn send_frame(mut socket: &UnixStream, frame: &[u8]) -> Result<()> {
    socket.write_all(frame).map_err(|_| TransferError::Lost)
}
