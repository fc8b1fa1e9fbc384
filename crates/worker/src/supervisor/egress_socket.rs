//! The listening socket of the egress proxy, in the sandbox's network namespace.
//!
//! A socket stays in the namespace that created it. The worker creates it before anything else runs and passes it to
//! the server, which accepts the connections itself. The worker copies no data and keeps its descriptor for the next
//! server.

use atoll_protocol::PROXY_PORT;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use tokio::io::Interest;
use tokio::net::UnixStream;

#[derive(Debug)]
pub struct EgressSocket(TcpListener);

impl EgressSocket {
    /// Binds the port, before the agent can.
    pub fn bind() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT))?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }
}

impl AsFd for EgressSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sends the socket's descriptor with one byte. Without a socket it sends nothing, and the connection closes.
pub async fn send_socket(to: &UnixStream, socket: Option<&EgressSocket>) {
    let Some(socket) = socket else { return };
    let sent = to.async_io(Interest::WRITABLE, || send_descriptor(to.as_fd(), b'P', socket.as_fd())).await;
    if let Err(error) = sent {
        tracing::warn!(%error, "failed to send the egress socket to the server");
    }
}

/// Sends a descriptor with one byte.
pub(super) fn send_descriptor(to: BorrowedFd<'_>, byte: u8, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    sendmsg(to, &[IoSlice::new(&[byte])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
