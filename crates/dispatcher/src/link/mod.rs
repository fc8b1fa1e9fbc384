//! The links to the server: events (`uplink`), heartbeats and acknowledgements go up as requests, each link with a client
//! of its own; messages, answers and commands come down the `downlink`.
//!
//! `ServerLink` is the way to the server: the worker in a sandbox uses HTTP and a WebSocket, the fake provider calls the
//! server in its own process.

use atoll_core::BoxFuture;
use atoll_core::id::MessageId;
use atoll_protocol::{Ack, Batch, Heartbeat, Nack};
use backoff::Backoff;
use bytes::Bytes;
use downlink::{DownlinkChannels, DownlinkReport};

pub mod acknowledgements;
pub mod backoff;
pub mod downlink;
pub mod heartbeat;
mod reply;
pub mod uplink;

pub use reply::{Problem, Reply};

/// The way to the server.
pub trait ServerLink: Send + Sync {
    /// Creates a client with a connection of its own.
    fn open_client(&self) -> Box<dyn RequestSender>;
    /// Runs the downlink until the worker leaves or the server rejects it.
    fn run_downlink(&self, channels: DownlinkChannels) -> BoxFuture<'static, ()>;
    fn read_resources(&self) -> Resources;
    fn new_backoff(&self) -> Backoff {
        Backoff::default()
    }
}

/// Sends one request at a time. An unreachable server is `Reply::Later`.
pub trait RequestSender: Send {
    fn send<'a>(&'a mut self, request: LinkRequest<'a>) -> BoxFuture<'a, Reply>;
}

#[derive(Debug, Clone, Copy)]
pub enum LinkRequest<'a> {
    Heartbeat(&'a Heartbeat),
    Events(&'a Batch),
    /// A content that an event of the next batch names.
    Blob {
        sha256: &'a str,
        content: &'a Bytes,
    },
    Ack(MessageId, &'a Ack),
    Nack(MessageId, &'a Nack),
}

/// Resource usage of the sandbox for heartbeats. Values that cannot be read are `None`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resources {
    /// Processors in use since the last heartbeat: 1.5 is one and a half.
    pub cpu: Option<f64>,
    /// Memory in use, in bytes.
    pub memory: Option<f64>,
    /// Disk space in use, in bytes.
    pub disk: Option<f64>,
}

/// A report of a link's task to the dispatcher.
#[derive(Debug)]
pub enum LinkReport {
    Uplink(uplink::UplinkReport),
    Heartbeat(heartbeat::HeartbeatReport),
    Downlink(DownlinkReport),
    Acknowledgements(acknowledgements::AckReport),
}

/// The sandbox's phase, as the links need it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SandboxPhase {
    /// The server has answered a heartbeat: it knows this worker's stream.
    pub registered: bool,
    /// The sandbox is ending or has ended.
    pub ended: bool,
    /// The worker accepts no more messages.
    pub leaving: bool,
}

/// Formats an error with all its sources.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
