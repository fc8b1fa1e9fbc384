//! Packets between the worker and its hands: JSON, and descriptors beside it.
//!
//! A packet that would be too long for the socket (an environment may have megabytes) goes into a memory file, whose
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

/// What a socket certainly takes at once.
const INLINE: usize = 32 * 1024;
/// More than any request that is sent.
const LONGEST: u64 = 16 * 1024 * 1024;
/// Input, two outputs and the packet itself.
const DESCRIPTORS: usize = 4;

const HERE: u8 = 0;
const IN_FILE: u8 = 1;

pub(super) fn send(
    socket: impl AsFd,
    packet: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let json = serde_json::to_vec(packet)?;
    let mut all = descriptors.to_vec();
    let file;
    let (kind, inline): (u8, &[u8]) = if json.len() <= INLINE {
        (HERE, &json)
    } else {
        file = in_memory(&json)?;
        all.push(file.as_fd());
        (IN_FILE, &[])
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !all.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(&all)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one packet"));
    }
    sendmsg(socket, &[IoSlice::new(&[kind]), IoSlice::new(inline)], &mut beside, flags | SendFlags::NOSIGNAL)?;
    Ok(())
}

fn in_memory(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("request", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// The next packet of somebody who is not to be trusted with more than one descriptor, which must be looked at before
/// it is used; nothing when the other side is gone.
pub(super) fn receive_untrusted<T: DeserializeOwned>(
    socket: impl AsFd,
    flags: RecvFlags,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut buffer = vec![0; INLINE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut beside, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptor = None;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptor = rights.last();
        }
    }
    match buffer.get(..received.bytes).and_then(<[u8]>::split_first) {
        None => Ok(None),
        Some((&HERE, json)) => Ok(Some((serde_json::from_slice(json)?, descriptor))),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a packet of unknown kind")),
    }
}

/// The next packet; nothing when the other side is gone.
pub(super) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
    flags: RecvFlags,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; INLINE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut beside, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    match buffer.get(..received.bytes).and_then(<[u8]>::split_first) {
        None => Ok(None),
        Some((&HERE, json)) => Ok(Some((serde_json::from_slice(json)?, descriptors))),
        Some(_) => {
            let missing = || io::Error::new(io::ErrorKind::InvalidData, "a packet without its file");
            let mut file = File::from(descriptors.pop().ok_or_else(missing)?);
            file.rewind()?;
            let mut json = Vec::new();
            file.take(LONGEST).read_to_end(&mut json)?;
            Ok(Some((serde_json::from_slice(&json)?, descriptors)))
        }
    }
}
