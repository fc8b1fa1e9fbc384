//! The agent's login files: written anew before each prompt, and taken away before anybody keeps the sandbox's files.

use super::Executor;
use crate::input::{Event, Item};
use crate::logins::{Held, Logins};
use atoll_core::event::kind;
use atoll_core::time::Clock;
use atoll_protocol::LeasedMessage;
use serde_json::json;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// For what is being written when the worker goes.
const UNDER_WAY: Duration = Duration::from_secs(2);

type Outcome = (Held, Option<String>);

#[derive(Debug, Default)]
pub(super) struct Login {
    /// None where there is no server to ask.
    logins: Option<Logins>,
    held: Held,
    /// The message that begins a turn once they are there.
    waiting: Option<LeasedMessage>,
    running: Option<oneshot::Receiver<Outcome>>,
    /// What the last failure was.
    said: Option<String>,
}

impl Login {
    pub(super) fn new(logins: Option<Logins>) -> Self {
        Self { logins, ..Self::default() }
    }

    pub(super) const fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether the agent finds this file below its home.
    pub(super) fn has(&self, path: &str) -> bool {
        self.held.has(path)
    }

    /// The message whose files are there.
    pub(super) fn ready(&mut self) -> Option<LeasedMessage> {
        if self.is_running() { None } else { self.waiting.take() }
    }

    /// What would have begun a turn was not told yet.
    pub(super) fn take_back(&mut self) -> Option<LeasedMessage> {
        self.waiting.take()
    }

    pub(super) async fn done(&mut self) -> Outcome {
        match &mut self.running {
            Some(running) => {
                let outcome = running.await;
                self.running = None;
                outcome.unwrap_or_else(|_| (self.held.clone(), Some("it was given up".to_owned())))
            }
            None => std::future::pending().await,
        }
    }

    /// Gives the message back where there is nothing to wait for.
    pub(super) fn begin(&mut self, message: LeasedMessage, wanted: bool) -> Option<LeasedMessage> {
        let Some(logins) = self.logins.clone().filter(|_| wanted) else { return Some(message) };
        let (done, running) = oneshot::channel();
        let held = self.held.clone();
        (self.waiting, self.running) = (Some(message), Some(running));
        tokio::spawn(async move { drop(done.send(logins.renew(held).await)) });
        None
    }

    /// Takes them away; the next prompt brings them back.
    pub(super) async fn remove(&mut self) {
        // Only where the worker goes: a prompt that waits keeps everybody else away.
        if let Some(running) = self.running.take()
            && let Ok(Ok((held, _))) = timeout(UNDER_WAY, running).await
        {
            self.held = held;
        }
        if let Some(logins) = &self.logins {
            logins.remove(&mut self.held).await;
        }
    }
}

impl Executor {
    /// Better with what is there than not at all; but it is said, once.
    pub(super) fn logged_in(&mut self, (held, failed): Outcome) {
        self.login.held = held;
        if failed.is_some() && self.login.said != failed {
            let why = failed.as_deref().unwrap_or_default();
            let text = format!("The agent's login files could not be written anew: {why}.");
            let data = json!({"subtype": "login_failed", "error": why, "text": text});
            let event = Event::of_worker(kind::AGENT_SYSTEM_MESSAGE, self.clock.now(), &data);
            self.outgoing.extend(event.map(|event| Item::Event(Event { turn: self.turn(), ..event })));
        }
        self.login.said = failed;
    }
}
