//! Running programs and their exits.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::{Connection, KILL_TIMEOUT};
use crate::error::Error;
use crate::sandbox::Exit;
use crate::wire::Request;

/// Delivers a program's exit. Dropping it without an exit means that the exit is unknown.
pub(super) struct ExitSender {
    // Declared before `wake`, so it drops first: the woken thread finds the exit or a closed channel.
    sender: Sender<Exit>,
    wake: WakeOnDrop,
}

/// Calls a function when it is dropped.
struct WakeOnDrop(Option<Box<dyn FnOnce() + Send>>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        if let Some(wake) = self.0.take() {
            wake();
        }
    }
}

impl ExitSender {
    pub fn new() -> (Self, Receiver<Exit>) {
        let (sender, end) = channel();
        (Self { sender, wake: WakeOnDrop(None) }, end)
    }

    pub fn deliver(self, exit: Exit) {
        // A dropped receiver no longer needs the exit.
        let _ = self.sender.send(exit);
    }
}

/// A running program. Dropping it kills the program.
#[derive(Debug)]
pub struct RunningProgram {
    shared: Arc<Connection>,
    run: u64,
    end: Receiver<Exit>,
    exit: Option<Exit>,
}

impl RunningProgram {
    pub(super) const fn new(shared: Arc<Connection>, run: u64, end: Receiver<Exit>) -> Self {
        Self { shared, run, end, exit: None }
    }

    pub fn kill_handle(&self) -> KillHandle {
        KillHandle { shared: Arc::clone(&self.shared), run: self.run }
    }

    /// Calls `wake` once [`RunningProgram::wait`] would not block: the program or the launcher has ended.
    ///
    /// For callers without a thread to block; `wake` must be quick.
    pub fn on_exit(&self, wake: impl FnOnce() + Send + 'static) {
        let wake = WakeOnDrop(Some(Box::new(wake)));
        // If the program has ended already, dropping `wake` here calls it.
        if let Some(end) = self.shared.lock_state().runs.get_mut(&self.run) {
            end.wake = wake;
        }
    }

    /// Waits for the exit; kills the program after `timeout` and returns `TimedOut`.
    pub fn wait(&mut self, timeout: Duration) -> Result<Exit, Error> {
        if let Some(exit) = self.exit {
            return Ok(exit);
        }
        let exit = match self.end.recv_timeout(timeout) {
            Ok(exit) => exit,
            Err(RecvTimeoutError::Disconnected) => return Err(Error::LauncherGone),
            Err(RecvTimeoutError::Timeout) => {
                self.kill()?;
                match self.end.recv_timeout(KILL_TIMEOUT) {
                    Ok(_) => Exit::TimedOut,
                    Err(RecvTimeoutError::Disconnected) => return Err(Error::LauncherGone),
                    Err(RecvTimeoutError::Timeout) => {
                        return Err(Error::Timeout { request: "kill run".to_owned(), seconds: KILL_TIMEOUT.as_secs() });
                    }
                }
            }
        };
        self.exit = Some(exit);
        Ok(exit)
    }

    /// Kills the program and everything it started; [`RunningProgram::wait`] returns when they are gone.
    pub fn kill(&self) -> Result<(), Error> {
        self.shared.send_request(0, Request::KillRun { run: self.run }, &[])
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if self.exit.is_none() {
            // Without a launcher the program is dead already.
            let _ = self.kill();
            self.shared.lock_state().runs.remove(&self.run);
        }
    }
}

/// Kills a program that another thread waits for.
#[derive(Debug, Clone)]
pub struct KillHandle {
    shared: Arc<Connection>,
    run: u64,
}

impl KillHandle {
    /// Kills the program; one that has ended is no error.
    pub fn kill(&self) -> Result<(), Error> {
        self.shared.send_request(0, Request::KillRun { run: self.run }, &[])
    }
}
