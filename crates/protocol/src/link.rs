//! The worker's side of the protocol as a trait, for workers in the server's process (of the `fake` provider).
//! Real workers use HTTP.

use crate::{Ack, Batch, BatchAnswer, Heartbeat, HeartbeatAnswer, LeaseAnswer, LeaseRequest, Nack};
use atoll_core::BoxFuture;
use atoll_core::id::{MessageId, SandboxId};
use bytes::Bytes;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The server rejected the request, with the error code of the HTTP API.
    #[error("{code}: {detail}")]
    Rejected { code: String, detail: String },
    /// The server is temporarily unavailable; retry.
    #[error("the server is unavailable: {0}")]
    Unavailable(String),
}

pub trait WorkerLink: Send + Sync {
    fn send_heartbeat<'a>(
        &'a self,
        sandbox: SandboxId,
        heartbeat: &'a Heartbeat,
    ) -> BoxFuture<'a, Result<HeartbeatAnswer, LinkError>>;
    fn send_events<'a>(&'a self, sandbox: SandboxId, batch: &'a Batch)
    -> BoxFuture<'a, Result<BatchAnswer, LinkError>>;
    /// Uploads a content that an event of a later batch names.
    fn send_blob<'a>(
        &'a self,
        sandbox: SandboxId,
        sha256: &'a str,
        content: Bytes,
    ) -> BoxFuture<'a, Result<(), LinkError>>;
    fn lease_messages<'a>(
        &'a self,
        sandbox: SandboxId,
        request: &'a LeaseRequest,
    ) -> BoxFuture<'a, Result<LeaseAnswer, LinkError>>;
    fn send_ack<'a>(&'a self, sandbox: SandboxId, id: MessageId, ack: &'a Ack) -> BoxFuture<'a, Result<(), LinkError>>;
    fn send_nack<'a>(
        &'a self,
        sandbox: SandboxId,
        id: MessageId,
        nack: &'a Nack,
    ) -> BoxFuture<'a, Result<(), LinkError>>;
}
