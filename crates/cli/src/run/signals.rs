//! The signals that interrupt or terminate a command.

use crate::failure::{Failure, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaughtSignal {
    /// SIGINT, which may address the agent.
    Interrupt,
    /// SIGTERM or SIGHUP.
    Terminate,
}

impl Signals {
    pub fn listen() -> Result<Self> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::setup("signals", format!("cannot install signal handlers: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    pub async fn next(&mut self) -> CaughtSignal {
        tokio::select! {
            _ = self.interrupt.recv() => CaughtSignal::Interrupt,
            _ = self.terminate.recv() => CaughtSignal::Terminate,
            _ = self.hangup.recv() => CaughtSignal::Terminate,
        }
    }
}
