//! What client and launcher say to each other: one JSON value a packet, with descriptors where a request has them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::catalog::{Image, Snapshot};
use crate::error::Error;
use crate::owner::Owner;
use crate::place::{Clock, DiskUse, Exit, Place, Program, Spec, Usage};
use crate::report::Report;

/// No packet is longer: the kernel takes none that does not fit into a socket's buffer.
pub(crate) const MAX_PACKET: usize = 128 * 1024;
/// Standard input, output and error of a one-shot.
const MAX_DESCRIPTORS: usize = 3;

/// The first packet: what the launcher works with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub data: PathBuf,
    pub worker: PathBuf,
    pub id_base: u32,
    pub home: Option<PathBuf>,
    pub tools: Vec<PathBuf>,
    pub deployment: String,
    /// How large the pool for sandboxes' files shall be, in bytes.
    pub pool: Option<u64>,
    /// Where the data directory will be, for a probe that is made elsewhere.
    pub disk: PathBuf,
    /// Who the server is, where that isn't who the launcher is.
    #[serde(default)]
    pub owner: Option<Owner>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub id: u64,
    pub request: Request,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    Probe,
    Prepare(Spec),
    StartWorker { name: String },
    Run { name: String, argv: Vec<String> },
    EndRun { run: u64 },
    Find { name: String },
    List,
    Kill { name: String },
    Destroy { name: String },
    Usage { name: String },
    Fork { parent: String, spec: Spec },
    Snapshot { name: String, snapshot: String },
    Snapshots,
    ForgetSnapshot { snapshot: String },
    ImportImage { image: String },
    Images,
    ForgetImage { image: String },
    Enter { name: String, program: Program },
    Disk { name: String },
    StopWriters { name: String, everybody: bool },
    Clocks,
    Pause { name: String },
    Resume { name: String },
    Spool { name: String },
}

impl Request {
    /// For messages.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Prepare(_) => "prepare",
            Self::StartWorker { .. } => "start worker",
            Self::Run { .. } => "run",
            Self::EndRun { .. } => "end run",
            Self::Find { .. } => "find",
            Self::List => "list",
            Self::Kill { .. } => "kill",
            Self::Destroy { .. } => "destroy",
            Self::Usage { .. } => "usage",
            Self::Fork { .. } => "fork",
            Self::Snapshot { .. } => "snapshot",
            Self::Snapshots => "list snapshots",
            Self::ForgetSnapshot { .. } => "forget snapshot",
            Self::ImportImage { .. } => "import image",
            Self::Images => "list images",
            Self::ForgetImage { .. } => "forget image",
            Self::Enter { .. } => "enter",
            Self::Disk { .. } => "count disk",
            Self::StopWriters { .. } => "stop writers",
            Self::Clocks => "clocks",
            Self::Pause { .. } => "pause",
            Self::Resume { .. } => "resume",
            Self::Spool { .. } => "hand out the spool",
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    Answer { id: u64, outcome: Result<Answer, Error> },
    WorkerEnded { name: String, exit: Exit },
    RunEnded { run: u64, exit: Exit },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Done,
    Report(Box<Report>),
    Place(Box<Place>),
    /// One of a list, with more to come: `Done` ends it.
    Item(Box<Place>),
    Usage(Usage),
    /// One, or one of a list that `Done` ends.
    Snapshot(Snapshot),
    Image(Image),
    Disk(DiskUse),
    /// So many processes were ended.
    Stopped(u32),
    /// Some of them, with more to come: `Done` ends it.
    Clocks(Vec<Clock>),
}

/// Sends one packet.
pub(crate) fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    value: &T,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Error> {
    let text = serde_json::to_vec(value).map_err(Error::protocol)?;
    if text.len() > MAX_PACKET {
        return Err(Error::Spec { reason: format!("it takes {} bytes to say; {MAX_PACKET} is the most", text.len()) });
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Error::protocol("too many descriptors"));
    }
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL)
    })
    .map_err(|error| match error {
        rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET | rustix::io::Errno::NOTCONN => Error::Gone,
        error => Error::protocol(error),
    })?;
    Ok(())
}

/// Waits for one packet; `None` is the end.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> Result<Option<(T, Vec<OwnedFd>)>, Error> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    });
    let received = match received {
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        received => received.map_err(Error::protocol)?,
    };
    let descriptors: Vec<OwnedFd> = ancillary
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
            _ => Vec::new(),
        })
        .collect();
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Error::protocol("a packet was cut off"));
    }
    let value = serde_json::from_slice(&buffer[..received.bytes]).map_err(Error::protocol)?;
    Ok(Some((value, descriptors)))
}

/// Two ends of a connection that keeps packets apart.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Error> {
    let (one, other) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(Error::protocol)?;
    for end in [&one, &other] {
        // The default of some machines is less than a packet; more than allowed is cut to what is.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(end.as_fd(), 4 * MAX_PACKET);
    }
    Ok((one, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_keep_their_borders_and_descriptors() {
        let (one, other) = pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let request = |id, name: String| Asked { id, request: Request::Kill { name } };
        send(one.as_fd(), &request(1, "a".into()), &[read.as_fd(), write.as_fd()]).unwrap();
        send(one.as_fd(), &request(2, "b".repeat(100_000)), &[]).unwrap();
        let mut buffer = vec![0; MAX_PACKET];
        let (asked, descriptors) = receive::<Asked>(other.as_fd(), &mut buffer).unwrap().unwrap();
        assert_eq!((asked.id, descriptors.len()), (1, 2));
        let (asked, descriptors) = receive::<Asked>(other.as_fd(), &mut buffer).unwrap().unwrap();
        assert_eq!((asked.id, descriptors.len()), (2, 0));
        assert!(matches!(send(one.as_fd(), &request(3, "c".repeat(MAX_PACKET)), &[]), Err(Error::Spec { .. })));
        drop(one);
        assert!(receive::<Asked>(other.as_fd(), &mut buffer).unwrap().is_none());
        assert_eq!(send(other.as_fd(), &request(4, String::new()), &[]), Err(Error::Gone));
    }
}
