//! Frames on the connection: data as it comes, without a copy of it.

use super::{Result, Stop};
use atoll_protocol::files::{Ask, HEAD, Job, LONGEST, PIECE, Tell, head, read_head};
use std::io::{self, BufRead, ErrorKind, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;

fn wrong(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error.to_string())
}

/// What the server sends: a job, and then perhaps data, which is read like a file that ends where the data does.
pub(super) struct Incoming<'a> {
    socket: &'a UnixStream,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Of the frame that is being read.
    left: usize,
    over: bool,
}

impl<'a> Incoming<'a> {
    pub(super) fn new(socket: &'a UnixStream) -> Self {
        Self { socket, buffer: vec![0; PIECE], start: 0, end: 0, left: 0, over: false }
    }

    /// Reads until so many bytes are there.
    fn need(&mut self, count: usize) -> io::Result<()> {
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

    fn head(&mut self) -> io::Result<(Ask, usize)> {
        self.need(HEAD)?;
        let mut bytes = [0; HEAD];
        bytes.copy_from_slice(&self.buffer[self.start..self.start + HEAD]);
        self.start += HEAD;
        let (kind, length) = read_head(bytes).map_err(wrong)?;
        Ok((Ask::from_byte(kind).map_err(wrong)?, length))
    }

    pub(super) fn job(&mut self) -> io::Result<Job> {
        let (Ask::Job, length) = self.head()? else { return Err(wrong("the first frame must say what to do")) };
        debug_assert!(length <= LONGEST);
        self.need(length)?;
        let job = Job::read(&self.buffer[self.start..self.start + length]).map_err(wrong)?;
        self.start += length;
        Ok(job)
    }
}

impl BufRead for Incoming<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.left == 0 && !self.over {
            match self.head()? {
                (Ask::Data, length) => self.left = length,
                (Ask::End, _) => self.over = true,
                (Ask::Job, _) => return Err(wrong("a second request on one connection")),
            }
        }
        if self.over {
            return Ok(&[]);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.need(1)?;
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
        let here = self.fill_buf()?;
        let length = here.len().min(into.len());
        into[..length].copy_from_slice(&here[..length]);
        self.consume(length);
        Ok(length)
    }
}

/// What goes out: each write is a frame of data.
pub(super) struct Outgoing<'a>(pub(super) &'a UnixStream);

impl Write for Outgoing<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let piece = &data[..data.len().min(PIECE)];
        let head = head(Tell::Data.byte(), piece.len());
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

/// A frame that is not data.
pub(super) fn send(mut socket: &UnixStream, frame: &[u8]) -> Result<()> {
    socket.write_all(frame).map_err(|_| Stop::Lost)
}
