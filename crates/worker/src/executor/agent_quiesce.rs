//! Quiesces the agent between turns: stops its process and the services, so that its files can be copied or replaced consistently.

use super::Executor;
use atoll_drivers::AgentTurn;
use rustix::process::Signal;
use tokio::sync::oneshot;

/// A request to quiesce the agent.
#[derive(Debug)]
pub struct QuiesceRequest {
    /// Gets `Ok` when the agent has exited, or why it cannot.
    pub ready: oneshot::Sender<Result<(), String>>,
    /// Closes when the agent may run again.
    pub resume: oneshot::Receiver<()>,
}

/// The progress of a quiesce request.
#[derive(Debug, Default)]
pub(super) enum QuiesceState {
    #[default]
    No,
    /// The agent was killed and has not exited yet.
    Stopping(QuiesceRequest),
    /// Stopped until this channel closes.
    Stopped(oneshot::Receiver<()>),
}

impl QuiesceState {
    pub(super) const fn is_requested(&self) -> bool {
        match self {
            Self::No => false,
            Self::Stopping(_) | Self::Stopped(_) => true,
        }
    }

    /// Waits until the agent may run again.
    pub(super) async fn wait_for_resume(&mut self) {
        match self {
            Self::Stopped(resume) => drop(resume.await),
            Self::No | Self::Stopping(_) => std::future::pending().await,
        }
    }
}

impl Executor {
    pub(super) fn handle_quiesce(&mut self, request: QuiesceRequest) {
        let busy = if self.quiesce.is_requested() {
            Some("the sandbox is being quiesced already")
        } else if self.conversation.turn_state() == AgentTurn::InTurn || self.next_turn.opening.is_some() {
            Some("the agent is in a turn; try again when it waits for a message")
        } else {
            None
        };
        match busy {
            Some(why) => drop(request.ready.send(Err(why.to_owned()))),
            None => {
                if let Some(agent) = &self.agent.process {
                    agent.signal(Signal::KILL);
                }
                self.services.stop();
                self.quiesce = QuiesceState::Stopping(request);
            }
        }
    }

    /// Confirms the request once the agent has exited. The next message starts it again.
    pub(super) async fn finish_quiesce(&mut self) {
        if self.agent.process.is_some() || !self.services.are_stopped() {
            return;
        }
        if matches!(self.quiesce, QuiesceState::Stopping(_)) {
            // Copies must not contain logins.
            self.logins.remove_files().await;
        }
        self.quiesce = match std::mem::take(&mut self.quiesce) {
            QuiesceState::Stopping(request) => {
                drop(request.ready.send(Ok(())));
                QuiesceState::Stopped(request.resume)
            }
            other => other,
        };
    }
}
