//! Packets between the worker and the spawner: JSON with descriptors.
//!
//! A packet that is too long for the socket (an environment may have megabytes) goes into a memory file, whose
//! descriptor comes last.

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Size that fits into the socket's buffer.
const MAX_INLINE_BYTES: usize = 32 * 1024;
/// Larger than any request.
const MAX_PACKET_BYTES: u64 = 16 * 1024 * 1024;
/// Input, two outputs and the packet itself.
const MAX_DESCRIPTORS: usize = 4;

const KIND_INLINE: u8 = 0;
const KIND_FILE: u8 = 1;

pub(super) fn send_packet(
    socket: impl AsFd,
    packet: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let json = serde_json::to_vec(packet)?;
    let mut all = descriptors.to_vec();
    let file;
    let (kind, inline): (u8, &[u8]) = if json.len() <= MAX_INLINE_BYTES {
        (KIND_INLINE, &json)
    } else {
        file = to_memory_file(&json)?;
        all.push(file.as_fd());
        (KIND_FILE, &[])
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !all.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&all)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one packet"));
    }
    sendmsg(socket, &[IoSlice::new(&[kind]), IoSlice::new(inline)], &mut ancillary, flags | SendFlags::NOSIGNAL)?;
    Ok(())
}

fn to_memory_file(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("request", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// Receives a packet of an untrusted peer, with at most one descriptor, which the caller must check; `None` at the end.
pub(super) fn receive_untrusted<T: DeserializeOwned>(
    socket: impl AsFd,
    flags: RecvFlags,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut buffer = vec![0; MAX_INLINE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptor = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptor = rights.last();
        }
    }
    match buffer.get(..received.bytes).and_then(<[u8]>::split_first) {
        None => Ok(None),
        Some((&KIND_INLINE, json)) => Ok(Some((serde_json::from_slice(json)?, descriptor))),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a packet of unknown kind")),
    }
}

/// Receives a packet; `None` when the peer is gone.
pub(super) fn receive_packet<T: DeserializeOwned>(
    socket: impl AsFd,
    flags: RecvFlags,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; MAX_INLINE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    match buffer.get(..received.bytes).and_then(<[u8]>::split_first) {
        None => Ok(None),
        Some((&KIND_INLINE, json)) => Ok(Some((serde_json::from_slice(json)?, descriptors))),
        Some(_) => {
            let missing = || io::Error::new(io::ErrorKind::InvalidData, "a packet without its file");
            let mut file = File::from(descriptors.pop().ok_or_else(missing)?);
            file.rewind()?;
            let mut json = Vec::new();
            file.take(MAX_PACKET_BYTES).read_to_end(&mut json)?;
            Ok(Some((serde_json::from_slice(&json)?, descriptors)))
        }
    }
}
