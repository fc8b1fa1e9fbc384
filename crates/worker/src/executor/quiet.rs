//! Quiet: for a moment nothing runs as the agent, so that the files below can be exchanged. Only between turns: what
//! an agent is in the middle of is not cut off.

use super::Executor;
use crate::driver::Standing;
use rustix::process::Signal;
use tokio::sync::oneshot;

/// Somebody wants it quiet.
#[derive(Debug)]
pub struct Quiet {
    /// Told when the agent is gone, or why it can't go.
    pub ready: oneshot::Sender<Result<(), String>>,
    /// Ends when it need not be quiet any more.
    pub over: oneshot::Receiver<()>,
}

/// How far it is.
#[derive(Debug, Default)]
pub(super) enum Stillness {
    #[default]
    No,
    /// The agent was killed and is not gone yet.
    Coming(Quiet),
    /// Until this ends.
    Held(oneshot::Receiver<()>),
}

impl Stillness {
    pub(super) const fn is_asked(&self) -> bool {
        match self {
            Self::No => false,
            Self::Coming(_) | Self::Held(_) => true,
        }
    }

    /// It need not be quiet any more.
    pub(super) async fn over(&mut self) {
        match self {
            // However it ends, it has.
            Self::Held(over) => drop(over.await),
            Self::No | Self::Coming(_) => std::future::pending().await,
        }
    }
}

impl Executor {
    pub(super) fn be_quiet(&mut self, quiet: Quiet) {
        let busy = if self.stillness.is_asked() {
            Some("its files are being exchanged already")
        } else if self.talk.standing() == Standing::InTurn || self.opening.is_some() {
            Some("the agent is in the middle of a turn; try again when it waits for a message")
        } else {
            None
        };
        match busy {
            Some(why) => drop(quiet.ready.send(Err(why.to_owned()))),
            None => {
                if let Some(agent) = &self.agent {
                    agent.signal(Signal::KILL);
                }
                self.stillness = Stillness::Coming(quiet);
            }
        }
    }

    /// Says so once the agent is gone. The next message starts it again.
    pub(super) async fn settle_stillness(&mut self) {
        if self.agent.is_some() {
            return;
        }
        if matches!(self.stillness, Stillness::Coming(_)) {
            // What is kept of its files has no login.
            self.login.remove().await;
        }
        self.stillness = match std::mem::take(&mut self.stillness) {
            Stillness::Coming(quiet) => {
                drop(quiet.ready.send(Ok(())));
                Stillness::Held(quiet.over)
            }
            other => other,
        };
    }
}
