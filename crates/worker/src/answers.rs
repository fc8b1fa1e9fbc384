//! What became of messages, told to the server until it has taken or refused it.

use crate::Exit;
use crate::backoff::Backoff;
use crate::dispatcher::{Phase, Report as Outward};
use crate::journal::{Answer, Verdict};
use crate::link::{Client, Reply};
use atoll_core::id::{LeaseId, MessageId};
use atoll_protocol::{Ack, Nack};
use std::collections::VecDeque;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

#[derive(Debug, PartialEq, Eq)]
pub enum Report {
    /// The server knows, or does not want to.
    Settled {
        id: MessageId,
        lease: LeaseId,
    },
    Ended(Exit),
}

pub struct Answers {
    pub stream: Uuid,
    pub client: Client,
    pub queue: mpsc::UnboundedReceiver<Answer>,
    pub phase: watch::Receiver<Phase>,
    pub reports: mpsc::Sender<Outward>,
}

impl Answers {
    pub async fn run(mut self) {
        // The server has to know this stream before it takes its word.
        if self.phase.wait_for(|phase| phase.registered).await.is_err() {
            return;
        }
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                match self.queue.recv().await {
                    Some(answer) => put(&mut waiting, answer),
                    None => return,
                }
            }
            while let Ok(answer) = self.queue.try_recv() {
                put(&mut waiting, answer);
            }
            let Some(answer) = waiting.pop_front() else { continue };
            let report = match self.tell(&answer).await {
                Ok(()) => Report::Settled { id: answer.id, lease: answer.lease },
                Err(exit) => Report::Ended(exit),
            };
            if self.reports.send(Outward::Answers(report)).await.is_err() {
                return;
            }
        }
    }

    async fn tell(&mut self, answer: &Answer) -> Result<(), Exit> {
        let mut backoff = Backoff::default();
        let Answer { id, lease, verdict } = answer;
        loop {
            let reply = match verdict.clone() {
                Verdict::Ack { how, turn } => {
                    let ack = Ack { stream: self.stream, lease: *lease, how, turn };
                    self.client.post(&format!("messages/{id}/ack"), &ack).await
                }
                Verdict::Nack { handed, reason, retry } => {
                    let nack = Nack { stream: self.stream, lease: *lease, handed, reason, retry };
                    self.client.post(&format!("messages/{id}/nack"), &nack).await
                }
            };
            match reply {
                Reply::Ok(_) => return Ok(()),
                Reply::Fenced(problem) => return Err(Exit::Fenced { detail: problem.to_string() }),
                Reply::Refused(problem) | Reply::TooLarge(problem) => {
                    tracing::info!(message = %id, %problem, "the server did not take an answer to a message");
                    return Ok(());
                }
                // A worker whose sandbox has ended may not speak of messages any more.
                Reply::Unauthorized(problem) if self.phase.borrow().ended => {
                    tracing::info!(message = %id, %problem, "the sandbox ended before an answer to a message");
                    return Ok(());
                }
                Reply::Unauthorized(problem) => {
                    // The heartbeat finds out whether the sandbox has ended or the token is bad.
                    tracing::warn!(message = %id, %problem, "the server did not take an answer to a message yet");
                    backoff.wait(None).await;
                }
                Reply::Later { why, after } => {
                    tracing::warn!(message = %id, why, "an answer to a message did not reach the server");
                    backoff.wait(after).await;
                }
                Reply::KeyGap { .. } => backoff.wait(None).await,
            }
        }
    }
}

/// A message that comes again while its answer waits is answered once, under the newer lease: with a slow
/// server and short leases there would be ever more to tell.
fn put(waiting: &mut VecDeque<Answer>, answer: Answer) {
    match waiting.iter_mut().find(|older| older.id == answer.id) {
        Some(older) => *older = answer,
        None => waiting.push_back(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::message::How;

    #[test]
    fn a_newer_answer_takes_the_place_of_an_older_one() {
        let answer =
            |id| Answer { id, lease: LeaseId::new(), verdict: Verdict::Ack { how: How::Injected, turn: None } };
        let (first, second) = (answer(MessageId::new()), answer(MessageId::new()));
        let again = answer(first.id);
        let mut waiting = VecDeque::new();
        for answer in [&first, &second, &again] {
            put(&mut waiting, answer.clone());
        }
        assert_eq!(waiting, [again, second]);
    }
}
