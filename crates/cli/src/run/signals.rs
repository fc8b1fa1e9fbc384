//! The signals that mean this command.

use crate::failure::{Failure, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caught {
    /// Ctrl-C, which may be meant for the agent.
    Interrupt,
    /// This program is to end, or its terminal is gone.
    End,
}

impl Signals {
    pub fn listen() -> Result<Self> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::setup("signals", format!("can't listen to signals: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    pub async fn next(&mut self) -> Caught {
        tokio::select! {
            _ = self.interrupt.recv() => Caught::Interrupt,
            _ = self.terminate.recv() => Caught::End,
            _ = self.hangup.recv() => Caught::End,
        }
    }
}
