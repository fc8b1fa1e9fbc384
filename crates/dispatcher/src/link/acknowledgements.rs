//! Sends acknowledgements of messages until the server has accepted or rejected them.

use crate::Exit;
use crate::link::{LinkReport, LinkRequest, Reply, RequestSender, SandboxPhase, ServerLink};
use atoll_core::id::{LeaseId, MessageId};
use atoll_protocol::{Ack, Nack};
use atoll_spool::journal::{Acknowledgement, DeliveryOutcome};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

#[derive(Debug, PartialEq, Eq)]
pub enum AckReport {
    /// The server has accepted or rejected the acknowledgement.
    Settled {
        id: MessageId,
        lease: LeaseId,
    },
    Ended(Exit),
}

pub struct AckSender {
    pub stream: Uuid,
    pub link: Arc<dyn ServerLink>,
    pub queue: mpsc::UnboundedReceiver<Acknowledgement>,
    pub phase: watch::Receiver<SandboxPhase>,
    pub reports: mpsc::Sender<LinkReport>,
}

impl AckSender {
    pub async fn run(mut self) {
        // The server rejects acknowledgements of a stream that it does not know.
        if self.phase.wait_for(|phase| phase.registered).await.is_err() {
            return;
        }
        let (mut client, mut waiting) = (self.link.open_client(), VecDeque::new());
        loop {
            if waiting.is_empty() {
                match self.queue.recv().await {
                    Some(acknowledgement) => enqueue(&mut waiting, acknowledgement),
                    None => return,
                }
            }
            while let Ok(acknowledgement) = self.queue.try_recv() {
                enqueue(&mut waiting, acknowledgement);
            }
            let Some(acknowledgement) = waiting.pop_front() else { continue };
            let report = match self.send_until_settled(&mut *client, &acknowledgement).await {
                Ok(()) => AckReport::Settled { id: acknowledgement.id, lease: acknowledgement.lease },
                Err(exit) => AckReport::Ended(exit),
            };
            if self.reports.send(LinkReport::Acknowledgements(report)).await.is_err() {
                return;
            }
        }
    }

    async fn send_until_settled(
        &self,
        client: &mut dyn RequestSender,
        acknowledgement: &Acknowledgement,
    ) -> Result<(), Exit> {
        let mut backoff = self.link.new_backoff();
        let Acknowledgement { id, lease, outcome } = acknowledgement;
        loop {
            let reply = match outcome.clone() {
                DeliveryOutcome::Ack { how, turn } => {
                    let ack = Ack { stream: self.stream, lease: *lease, how, turn };
                    client.send(LinkRequest::Ack(*id, &ack)).await
                }
                DeliveryOutcome::Nack { handed, reason, retry } => {
                    let nack = Nack { stream: self.stream, lease: *lease, handed, reason, retry };
                    client.send(LinkRequest::Nack(*id, &nack)).await
                }
            };
            match reply {
                Reply::Ok(_) => return Ok(()),
                Reply::Fenced(problem) => return Err(Exit::Fenced { detail: problem.to_string() }),
                Reply::Refused(problem) | Reply::TooLarge(problem) => {
                    tracing::info!(message = %id, %problem, "the server rejected an acknowledgement");
                    return Ok(());
                }
                // The server accepts no acknowledgements for an ended sandbox.
                Reply::Unauthorized(problem) if self.phase.borrow().ended => {
                    tracing::info!(message = %id, %problem, "the sandbox ended before an acknowledgement");
                    return Ok(());
                }
                Reply::Unauthorized(problem) => {
                    // The heartbeat finds out whether the sandbox has ended or the token is bad.
                    tracing::warn!(message = %id, %problem, "the server did not accept an acknowledgement; retrying");
                    backoff.wait(None).await;
                }
                Reply::Later { why, after } => {
                    tracing::warn!(message = %id, why, "failed to send an acknowledgement; retrying");
                    backoff.wait(after).await;
                }
                Reply::KeyGap { .. } => backoff.wait(None).await,
            }
        }
    }
}

/// Adds an acknowledgement, replacing an older one of the same message.
///
/// A message that comes again while its acknowledgement waits needs only the newer lease. With a slow server and short
/// leases the queue would grow without end.
fn enqueue(waiting: &mut VecDeque<Acknowledgement>, acknowledgement: Acknowledgement) {
    match waiting.iter_mut().find(|older| older.id == acknowledgement.id) {
        Some(older) => *older = acknowledgement,
        None => waiting.push_back(acknowledgement),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::message::DeliveryMethod;

    #[test]
    fn a_newer_acknowledgement_replaces_an_older_one() {
        let acknowledge = |id| Acknowledgement {
            id,
            lease: LeaseId::new(),
            outcome: DeliveryOutcome::Ack { how: DeliveryMethod::Injected, turn: None },
        };
        let (first, second) = (acknowledge(MessageId::new()), acknowledge(MessageId::new()));
        let again = acknowledge(first.id);
        let mut waiting = VecDeque::new();
        for acknowledgement in [&first, &second, &again] {
            enqueue(&mut waiting, acknowledgement.clone());
        }
        assert_eq!(waiting, [again, second]);
    }
}
