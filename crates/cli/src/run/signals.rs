//! The signals that interrupt or terminate a command.

use crate::failure::{Failure, Result};
use std::fs::File;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaughtSignal {
    /// SIGINT. Only a terminal whose foreground process group includes this process can have sent it by Ctrl-C.
    Interrupt { from_terminal: bool },
    /// SIGTERM.
    Terminate,
    /// SIGHUP: the terminal is gone.
    Hangup,
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
            _ = self.interrupt.recv() => CaughtSignal::Interrupt { from_terminal: is_in_foreground() },
            _ = self.terminate.recv() => CaughtSignal::Terminate,
            _ = self.hangup.recv() => CaughtSignal::Hangup,
        }
    }
}

/// This process is in the foreground process group of its controlling terminal.
fn is_in_foreground() -> bool {
    let group = File::open("/dev/tty").ok().and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    group == Some(rustix::process::getpgrp())
}
