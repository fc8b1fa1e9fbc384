//! Sends acknowledgements of messages until the server has accepted or rejected them.

use crate::link::backoff::Backoff;
use crate::link::{LinkReport, LinkRequest, Reply, RequestSender, SandboxPhase, ServerLink};
use crate::{Exit, sleep_until_deadline};
use atoll_core::id::{LeaseId, MessageId};
use atoll_protocol::{Ack, Nack};
use atoll_spool::journal::{Acknowledgement, DeliveryOutcome};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
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

/// An acknowledgement that the server has not accepted yet.
struct PendingAck {
    acknowledgement: Acknowledgement,
    backoff: Backoff,
    /// Time of the next attempt.
    due: Instant,
}

/// The result of one attempt.
enum Attempt {
    Settled,
    Retry(Option<Duration>),
    Ended(Exit),
}

impl AckSender {
    /// Sends one request at a time. An acknowledgement that fails waits for its next attempt and holds up no other.
    pub async fn run(mut self) {
        // The server rejects acknowledgements of a stream that it does not know.
        if self.phase.wait_for(|phase| phase.registered).await.is_err() {
            return;
        }
        let (mut client, mut waiting) = (self.link.open_client(), VecDeque::new());
        loop {
            let next_due = waiting.iter().map(|pending: &PendingAck| pending.due).min();
            tokio::select! {
                biased;
                received = self.queue.recv() => match received {
                    Some(acknowledgement) => {
                        enqueue(&mut waiting, acknowledgement, || self.link.new_backoff());
                        continue;
                    }
                    None => return,
                },
                () = sleep_until_deadline(next_due) => {}
            }
            let due = waiting.iter().position(|pending| Some(pending.due) == next_due);
            let Some(mut pending) = due.and_then(|index| waiting.remove(index)) else { continue };
            let report = match self.try_send(&mut *client, &pending.acknowledgement).await {
                Attempt::Settled => {
                    let Acknowledgement { id, lease, .. } = pending.acknowledgement;
                    AckReport::Settled { id, lease }
                }
                Attempt::Retry(minimum) => {
                    pending.due = Instant::now() + pending.backoff.next_wait().max(minimum.unwrap_or_default());
                    waiting.push_back(pending);
                    continue;
                }
                Attempt::Ended(exit) => AckReport::Ended(exit),
            };
            if self.reports.send(LinkReport::Acknowledgements(report)).await.is_err() {
                return;
            }
        }
    }

    async fn try_send(&self, client: &mut dyn RequestSender, acknowledgement: &Acknowledgement) -> Attempt {
        let Acknowledgement { id, lease, outcome } = acknowledgement;
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
            Reply::Ok(_) => Attempt::Settled,
            Reply::Fenced(problem) => Attempt::Ended(Exit::Fenced { detail: problem.to_string() }),
            Reply::Refused(problem) | Reply::TooLarge(problem) => {
                tracing::info!(message = %id, %problem, "the server rejected an acknowledgement");
                Attempt::Settled
            }
            // The server accepts no acknowledgements for an ended sandbox.
            Reply::Unauthorized(problem) if self.phase.borrow().ended => {
                tracing::info!(message = %id, %problem, "the sandbox ended before an acknowledgement");
                Attempt::Settled
            }
            Reply::Unauthorized(problem) => {
                // The heartbeat finds out whether the sandbox has ended or the token is bad.
                tracing::warn!(message = %id, %problem, "the server did not accept an acknowledgement; retrying");
                Attempt::Retry(None)
            }
            Reply::Later { why, after } => {
                tracing::warn!(message = %id, why, "failed to send an acknowledgement; retrying");
                Attempt::Retry(after)
            }
            Reply::KeyGap { .. } => Attempt::Retry(None),
        }
    }
}

/// Adds an acknowledgement, replacing an older one of the same message.
///
/// A message that comes again while its acknowledgement waits needs only the newer lease. With a slow server and short
/// leases the queue would grow without end.
fn enqueue(
    waiting: &mut VecDeque<PendingAck>,
    acknowledgement: Acknowledgement,
    new_backoff: impl FnOnce() -> Backoff,
) {
    match waiting.iter_mut().find(|older| older.acknowledgement.id == acknowledgement.id) {
        Some(older) => older.acknowledgement = acknowledgement,
        None => waiting.push_back(PendingAck { acknowledgement, backoff: new_backoff(), due: Instant::now() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Resources;
    use crate::link::downlink::DownlinkChannels;
    use atoll_core::BoxFuture;
    use atoll_core::message::DeliveryMethod;
    use bytes::Bytes;

    fn acknowledge(id: MessageId) -> Acknowledgement {
        let outcome = DeliveryOutcome::Ack { how: DeliveryMethod::Injected, turn: None };
        Acknowledgement { id, lease: LeaseId::new(), outcome }
    }

    #[test]
    fn a_newer_acknowledgement_replaces_an_older_one() {
        let (first, second) = (acknowledge(MessageId::new()), acknowledge(MessageId::new()));
        let again = acknowledge(first.id);
        let mut waiting = VecDeque::new();
        for acknowledgement in [&first, &second, &again] {
            enqueue(&mut waiting, acknowledgement.clone(), Backoff::default);
        }
        let waiting: Vec<_> = waiting.into_iter().map(|pending| pending.acknowledgement).collect();
        assert_eq!(waiting, [again, second]);
    }

    /// A server that cannot store the acknowledgement of one message.
    #[derive(Clone, Copy)]
    struct FailingServer(MessageId);

    impl ServerLink for FailingServer {
        fn open_client(&self) -> Box<dyn RequestSender> {
            Box::new(*self)
        }

        fn run_downlink(&self, _: DownlinkChannels) -> BoxFuture<'static, ()> {
            Box::pin(async {})
        }

        fn read_resources(&self) -> Resources {
            Resources::default()
        }
    }

    impl RequestSender for FailingServer {
        fn send<'a>(&'a mut self, request: LinkRequest<'a>) -> BoxFuture<'a, Reply> {
            let fails = matches!(request, LinkRequest::Ack(id, _) if id == self.0);
            let reply = if fails { Reply::later("no room".to_owned()) } else { Reply::Ok(Bytes::new()) };
            Box::pin(async move { reply })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_acknowledgement_holds_up_no_other() {
        let (failing, other) = (acknowledge(MessageId::new()), acknowledge(MessageId::new()));
        let (queue, acknowledgements) = mpsc::unbounded_channel();
        let (_phase, registered) = watch::channel(SandboxPhase { registered: true, ..SandboxPhase::default() });
        let (reports, mut reported) = mpsc::channel(8);
        let sender = AckSender {
            stream: Uuid::now_v7(),
            link: Arc::new(FailingServer(failing.id)),
            queue: acknowledgements,
            phase: registered,
            reports,
        };
        let sending = tokio::spawn(sender.run());
        queue.send(failing).unwrap();
        queue.send(other.clone()).unwrap();
        let report = tokio::time::timeout(Duration::from_secs(3600), reported.recv()).await.unwrap();
        let settled = AckReport::Settled { id: other.id, lease: other.lease };
        assert!(matches!(report, Some(LinkReport::Acknowledgements(report)) if report == settled));
        sending.abort();
    }
}
