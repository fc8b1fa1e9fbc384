//! A local socket that registers for write readiness only while a write would block.
//!
//! Tokio's own sockets always register for both, so that each read of the peer wakes the worker: one extra wake-up per
//! request.

use crate::readiness;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

#[derive(Debug)]
pub(super) struct LocalSocket {
    socket: AsyncFd<OwnedFd>,
    /// A duplicate that waits for write readiness while the send buffer is full.
    full: Option<AsyncFd<OwnedFd>>,
}

impl LocalSocket {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: readiness::register(socket, Interest::READABLE)?, full: None })
    }
}

impl AsFd for LocalSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}

fn try_send(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
}

impl AsyncRead for LocalSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            let room = buffer.initialize_unfilled();
            match ready.try_io(|socket| Ok(recv(socket, &mut *room, RecvFlags::DONTWAIT)?)) {
                Ok(Ok((length, _))) => {
                    buffer.advance(length);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_) => {}
            }
        }
    }
}

impl AsyncWrite for LocalSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let Some(full) = &self.full else {
                match try_send(&*self, bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        let again = self.as_fd().try_clone_to_owned()?;
                        self.full = Some(readiness::register(again, Interest::WRITABLE)?);
                        continue;
                    }
                    written => return Poll::Ready(written),
                }
            };
            let mut ready = ready!(full.poll_write_ready(cx))?;
            if let Ok(written) = ready.try_io(|socket| try_send(socket, bytes)) {
                drop(ready);
                self.full = None;
                return Poll::Ready(written);
            }
        }
    }

    /// Writes are not buffered.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match shutdown(&*self, Shutdown::Write) {
            // The peer is gone already.
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn transfers_more_than_the_socket_buffer() {
        let (local, peer) = std::os::unix::net::UnixStream::pair().unwrap();
        peer.set_nonblocking(true).unwrap();
        let (mut local, mut peer) =
            (LocalSocket::new(local.into()).unwrap(), tokio::net::UnixStream::from_std(peer).unwrap());
        let sent: Vec<u8> = (0..2_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        let (text, reading) = (sent.clone(), async {
            let mut received = Vec::new();
            peer.read_to_end(&mut received).await.unwrap();
            peer.write_all(&received[..10]).await.unwrap();
            drop(peer);
            received
        });
        let writing = async {
            local.write_all(&text).await.unwrap();
            local.shutdown().await.unwrap();
            let mut back = Vec::new();
            local.read_to_end(&mut back).await.unwrap();
            back
        };
        let (received, back) = tokio::join!(reading, writing);
        assert!(received == sent && back == sent[..10]);
    }
}
