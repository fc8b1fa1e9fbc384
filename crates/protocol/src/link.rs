//! The worker's side of the conversation as a trait, for workers that live in the server's own
//! process (the `fake` provider's). Real ones speak HTTP.

use crate::{Ack, Batch, BatchAnswer, Heartbeat, HeartbeatAnswer, LeaseAnswer, LeaseRequest, Nack};
use atoll_core::BoxFuture;
use atoll_core::id::{MessageId, SandboxId};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The server understood and said no, with the code that HTTP would have carried.
    #[error("{code}: {detail}")]
    Refused { code: String, detail: String },
    /// The server can't answer now; trying again is right.
    #[error("the server can't answer now: {0}")]
    Unavailable(String),
}

pub trait WorkerLink: Send + Sync {
    fn heartbeat<'a>(
        &'a self,
        sandbox: SandboxId,
        heartbeat: &'a Heartbeat,
    ) -> BoxFuture<'a, Result<HeartbeatAnswer, LinkError>>;
    fn events<'a>(&'a self, sandbox: SandboxId, batch: &'a Batch) -> BoxFuture<'a, Result<BatchAnswer, LinkError>>;
    fn lease<'a>(
        &'a self,
        sandbox: SandboxId,
        request: &'a LeaseRequest,
    ) -> BoxFuture<'a, Result<LeaseAnswer, LinkError>>;
    fn ack<'a>(&'a self, sandbox: SandboxId, id: MessageId, ack: &'a Ack) -> BoxFuture<'a, Result<(), LinkError>>;
    fn nack<'a>(&'a self, sandbox: SandboxId, id: MessageId, nack: &'a Nack) -> BoxFuture<'a, Result<(), LinkError>>;
}
