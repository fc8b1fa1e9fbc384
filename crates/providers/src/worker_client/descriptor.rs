//! Descriptors that a worker hands over.

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Receives one byte and the descriptor beside it, if there is one; others are closed. No byte means that the worker
/// closed the connection.
pub(super) async fn receive_descriptor(connection: &UnixStream) -> io::Result<(Option<u8>, Option<OwnedFd>)> {
    connection.async_io(Interest::READABLE, || receive_now(connection.as_fd())).await
}

fn receive_now(from: BorrowedFd<'_>) -> io::Result<(Option<u8>, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let received = recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = descriptors.next().and_then(|mut descriptors| descriptors.next());
    Ok(((received.bytes > 0).then_some(byte[0]), descriptor))
}
