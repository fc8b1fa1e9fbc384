//! The master end of a command's terminal.

use crate::readiness;
use atoll_protocol::exec::TerminalSize as Size;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::termios::{SpecialCodeIndex, Winsize, tcgetattr, tcsetwinsize};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Ctrl-D, the default end-of-input character.
const DEFAULT_EOF: u8 = 4;

#[derive(Debug)]
pub(super) struct Terminal {
    descriptor: AsyncFd<OwnedFd>,
}

impl Terminal {
    pub(super) fn new(descriptor: OwnedFd) -> io::Result<Arc<Self>> {
        ioctl_fionbio(&descriptor, true)?;
        let descriptor = readiness::register(descriptor, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Arc::new(Self { descriptor }))
    }

    pub(super) async fn readable(&self) {
        // Errors show up when it is read.
        drop(self.descriptor.readable().await);
    }

    pub(super) async fn writable(&self) {
        drop(self.descriptor.writable().await);
    }

    /// Fills the buffer: the kernel returns small pieces. Returns 0 while no process has the terminal open.
    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.descriptor.try_io(Interest::READABLE, |descriptor| fill_buffer(descriptor, buffer))
    }

    /// Reads what is there now, regardless of readiness.
    pub(super) fn read_available(&self, buffer: &mut [u8]) -> io::Result<usize> {
        fill_buffer(self.descriptor.get_ref(), buffer)
    }

    pub(super) fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.descriptor.try_io(Interest::WRITABLE, |descriptor| Ok(rustix::io::write(descriptor, data)?))
    }

    pub(super) fn resize(&self, size: Size) {
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = tcsetwinsize(self.descriptor.get_ref(), size) {
            tracing::warn!(%error, "failed to resize a terminal");
        }
    }

    /// The terminal's end-of-input character.
    pub(super) fn end_of_input(&self) -> u8 {
        tcgetattr(self.descriptor.get_ref()).map_or(DEFAULT_EOF, |modes| modes.special_codes[SpecialCodeIndex::VEOF])
    }
}

fn fill_buffer(descriptor: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::read(descriptor, &mut buffer[filled..]) {
            Ok(0) | Err(Errno::IO) => break,
            Ok(length) => filled += length,
            Err(Errno::INTR) => {}
            Err(_) if filled > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}
