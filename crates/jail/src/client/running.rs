//! Programs that run, and how one hears of their end.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::{ENDING, Shared};
use crate::error::Error;
use crate::place::Exit;
use crate::wire::Request;

/// Where an end is told. Dropped without that, it says that nobody knows any more.
pub(super) struct End {
    // Before the other: whoever is woken finds out why.
    sender: Sender<Exit>,
    wake: Wake,
}

/// Wakes somebody when it is dropped.
struct Wake(Option<Box<dyn FnOnce() + Send>>);

impl Drop for Wake {
    fn drop(&mut self) {
        if let Some(wake) = self.0.take() {
            wake();
        }
    }
}

impl End {
    pub fn new() -> (Self, Receiver<Exit>) {
        let (sender, end) = channel();
        (Self { sender, wake: Wake(None) }, end)
    }

    pub fn tell(self, exit: Exit) {
        // A receiver that is gone no longer wants to know.
        let _ = self.sender.send(exit);
    }
}

/// A one-shot that runs. It is killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    run: u64,
    end: Receiver<Exit>,
    exit: Option<Exit>,
}

impl Running {
    pub(super) const fn new(shared: Arc<Shared>, run: u64, end: Receiver<Exit>) -> Self {
        Self { shared, run, end, exit: None }
    }

    pub fn stopper(&self) -> Stopper {
        Stopper { shared: Arc::clone(&self.shared), run: self.run }
    }

    /// Calls `wake` once [`Running::wait`] would not have to wait: it has ended, or the launcher has. For who has no thread
    /// to spend on it; `wake` must do no more than that.
    pub fn when_ended(&self, wake: impl FnOnce() + Send + 'static) {
        let wake = Wake(Some(Box::new(wake)));
        // If it isn't there any more, it is woken here, when `wake` is dropped.
        if let Some(end) = self.shared.lock().runs.get_mut(&self.run) {
            end.wake = wake;
        }
    }

    /// Waits for its end; after `timeout` it is killed, and has `TimedOut`.
    pub fn wait(&mut self, timeout: Duration) -> Result<Exit, Error> {
        if let Some(exit) = self.exit {
            return Ok(exit);
        }
        let exit = match self.end.recv_timeout(timeout) {
            Ok(exit) => exit,
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Gone),
            Err(RecvTimeoutError::Timeout) => {
                self.kill()?;
                match self.end.recv_timeout(ENDING) {
                    Ok(_) => Exit::TimedOut,
                    Err(RecvTimeoutError::Disconnected) => return Err(Error::Gone),
                    Err(RecvTimeoutError::Timeout) => {
                        return Err(Error::Timeout { request: "end run".to_owned(), seconds: ENDING.as_secs() });
                    }
                }
            }
        };
        self.exit = Some(exit);
        Ok(exit)
    }

    /// Kills it and all it started; [`Running::wait`] tells when they are gone.
    pub fn kill(&self) -> Result<(), Error> {
        self.shared.send(0, Request::EndRun { run: self.run }, &[])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.exit.is_none() {
            // Without a launcher it is dead already.
            let _ = self.kill();
            self.shared.lock().runs.remove(&self.run);
        }
    }
}

/// Ends a program that somebody else waits for.
#[derive(Debug, Clone)]
pub struct Stopper {
    shared: Arc<Shared>,
    run: u64,
}

impl Stopper {
    /// Kills it; one that has ended is no failure.
    pub fn stop(&self) -> Result<(), Error> {
        self.shared.send(0, Request::EndRun { run: self.run }, &[])
    }
}
