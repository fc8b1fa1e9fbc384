//! The protocol between client and launcher: one JSON value per packet, with descriptors for some requests.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::catalog::{CopyKind, Image, Snapshot};
use crate::error::Error;
use crate::host_report::HostReport;
use crate::sandbox::{CpuTimes, DiskUsage, Exit, ProgramSpec, SandboxInfo, SandboxSpec, SandboxUsage};
use crate::server_user::ServerUser;

/// Maximum packet size: a packet must fit into the socket's buffer.
pub(crate) const MAX_PACKET: usize = 128 * 1024;
/// Stdin, stdout and stderr of a program.
const MAX_DESCRIPTORS: usize = 3;

/// First packet: the launcher's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub data_dir: PathBuf,
    pub worker_binary: PathBuf,
    pub id_base: u32,
    pub home: Option<PathBuf>,
    pub tool_dirs: Vec<PathBuf>,
    pub deployment: String,
    /// Size of the disk pool in bytes.
    pub pool_bytes: Option<u64>,
    /// The future data directory, for a probe from elsewhere.
    pub probed_dir: PathBuf,
    /// The server's user, if it differs from the launcher's.
    #[serde(default)]
    pub server_user: Option<ServerUser>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RequestPacket {
    pub id: u64,
    pub request: Request,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    Probe,
    Prepare(SandboxSpec),
    StartWorker { name: String },
    Run { name: String, argv: Vec<String> },
    KillRun { run: u64 },
    Find { name: String },
    List,
    Kill { name: String },
    Destroy { name: String },
    Usage { name: String },
    Fork { parent: String, spec: SandboxSpec },
    Snapshot { kind: CopyKind, name: String, label: String },
    Snapshots { kind: CopyKind },
    ForgetSnapshot { kind: CopyKind, label: String },
    ImportImage { image: String },
    Images,
    ForgetImage { image: String },
    Exec { name: String, program: ProgramSpec },
    MeasureDisk { name: String },
    KillWriters { name: String, kill_all: bool },
    CpuTimes,
    Pause { name: String },
    Resume { name: String },
    ReleaseSpool { name: String },
}

impl Request {
    /// The request's name for error messages.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Prepare(_) => "prepare",
            Self::StartWorker { .. } => "start worker",
            Self::Run { .. } => "run",
            Self::KillRun { .. } => "kill run",
            Self::Find { .. } => "find",
            Self::List => "list",
            Self::Kill { .. } => "kill",
            Self::Destroy { .. } => "destroy",
            Self::Usage { .. } => "usage",
            Self::Fork { .. } => "fork",
            Self::Snapshot { kind: CopyKind::Snapshot, .. } => "snapshot",
            Self::Snapshot { kind: CopyKind::Cache, .. } => "seal cache",
            Self::Snapshots { kind: CopyKind::Snapshot } => "list snapshots",
            Self::Snapshots { kind: CopyKind::Cache } => "list caches",
            Self::ForgetSnapshot { kind: CopyKind::Snapshot, .. } => "forget snapshot",
            Self::ForgetSnapshot { kind: CopyKind::Cache, .. } => "forget cache",
            Self::ImportImage { .. } => "import image",
            Self::Images => "list images",
            Self::ForgetImage { .. } => "forget image",
            Self::Exec { .. } => "exec",
            Self::MeasureDisk { .. } => "measure disk",
            Self::KillWriters { .. } => "kill writers",
            Self::CpuTimes => "read CPU times",
            Self::Pause { .. } => "pause",
            Self::Resume { .. } => "resume",
            Self::ReleaseSpool { .. } => "release spool",
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LauncherMessage {
    Answer { id: u64, outcome: Result<Answer, Error> },
    WorkerEnded { name: String, exit: Exit },
    RunEnded { run: u64, exit: Exit },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Done,
    Report(Box<HostReport>),
    Sandbox(Box<SandboxInfo>),
    /// One of a list; `Done` ends it.
    SandboxItem(Box<SandboxInfo>),
    Usage(SandboxUsage),
    /// One, or one of a list that `Done` ends.
    Snapshot(Snapshot),
    Image(Image),
    Disk(DiskUsage),
    /// Number of killed processes.
    Killed(u32),
    /// Part of a list; `Done` ends it.
    CpuTimes(Vec<CpuTimes>),
}

/// Sends one packet.
pub(crate) fn send_packet<T: Serialize>(
    socket: BorrowedFd<'_>,
    value: &T,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Error> {
    let text = serde_json::to_vec(value).map_err(Error::protocol)?;
    if text.len() > MAX_PACKET {
        return Err(Error::InvalidSpec {
            reason: format!("the request has {} bytes; the maximum is {MAX_PACKET}", text.len()),
        });
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
        rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET | rustix::io::Errno::NOTCONN => Error::LauncherGone,
        error => Error::protocol(error),
    })?;
    Ok(())
}

/// Waits for one packet; `None` when the peer has closed.
pub(crate) fn receive_packet<T: DeserializeOwned>(
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
        return Err(Error::protocol("a packet was truncated"));
    }
    let value = serde_json::from_slice(&buffer[..received.bytes]).map_err(Error::protocol)?;
    Ok(Some((value, descriptors)))
}

/// Creates a connected pair of packet sockets.
pub(crate) fn socket_pair() -> Result<(OwnedFd, OwnedFd), Error> {
    let (one, other) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(Error::protocol)?;
    for end in [&one, &other] {
        // Some hosts' default is less than one packet; the kernel caps larger values.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(end.as_fd(), 4 * MAX_PACKET);
    }
    Ok((one, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_keep_their_boundaries_and_descriptors() {
        let (one, other) = socket_pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let request = |id, name: String| RequestPacket { id, request: Request::Kill { name } };
        send_packet(one.as_fd(), &request(1, "a".into()), &[read.as_fd(), write.as_fd()]).unwrap();
        send_packet(one.as_fd(), &request(2, "b".repeat(100_000)), &[]).unwrap();
        let mut buffer = vec![0; MAX_PACKET];
        let (packet, descriptors) = receive_packet::<RequestPacket>(other.as_fd(), &mut buffer).unwrap().unwrap();
        assert_eq!((packet.id, descriptors.len()), (1, 2));
        let (packet, descriptors) = receive_packet::<RequestPacket>(other.as_fd(), &mut buffer).unwrap().unwrap();
        assert_eq!((packet.id, descriptors.len()), (2, 0));
        assert!(matches!(
            send_packet(one.as_fd(), &request(3, "c".repeat(MAX_PACKET)), &[]),
            Err(Error::InvalidSpec { .. })
        ));
        drop(one);
        assert!(receive_packet::<RequestPacket>(other.as_fd(), &mut buffer).unwrap().is_none());
        assert_eq!(send_packet(other.as_fd(), &request(4, String::new()), &[]), Err(Error::LauncherGone));
    }
}
