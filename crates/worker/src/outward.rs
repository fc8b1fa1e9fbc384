//! The way out: a listening socket in the sandbox's own network, on which programs inside find a proxy.
//!
//! A socket belongs to the network that it was made in, whoever holds it. So this process makes it, where nothing else
//! runs yet, and hands it to the server, which takes the connections itself: nothing is copied here, nothing is decided
//! here, and an idle sandbox costs nothing. It keeps its own hold on it, for the next server.

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The same in every sandbox, so that variables can name it before anything runs.
pub const PORT: u16 = 7709;

#[derive(Debug)]
pub struct Outward(TcpListener);

impl Outward {
    /// Before anything of the agent's runs: nobody else can have the port.
    pub fn open() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }
}

impl AsFd for Outward {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Gives a hold on the socket to whoever dialled, with one byte that it travels on. Without a socket the connection is
/// closed, which says so.
pub async fn hand_over(to: &UnixStream, outward: Option<&Outward>) {
    let Some(outward) = outward else { return };
    let sent = to.async_io(Interest::WRITABLE, || send(to.as_fd(), outward.as_fd())).await;
    if let Err(error) = sent {
        tracing::warn!(%error, "the way out could not be handed to the server");
    }
}

fn send(to: BorrowedFd<'_>, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("there is no room for a descriptor"));
    }
    sendmsg(to, &[IoSlice::new(b"P")], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
