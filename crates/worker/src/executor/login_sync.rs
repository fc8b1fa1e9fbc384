//! Updates the agent's login files before each prompt, and removes them before the sandbox's files are copied.

use super::Executor;
use crate::logins::{InstalledLogins, Logins};
use atoll_api::events::{AgentSystemMessage, EventData};
use atoll_protocol::LeasedMessage;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Time for a running update when the worker exits.
const UPDATE_GRACE: Duration = Duration::from_secs(2);

type InstallResult = (InstalledLogins, Option<String>);

#[derive(Debug, Default)]
pub(super) struct LoginSync {
    /// `None` in tests without a server.
    logins: Option<Logins>,
    installed: InstalledLogins,
    /// The message that begins a turn after the update.
    waiting: Option<LeasedMessage>,
    running: Option<oneshot::Receiver<InstallResult>>,
    /// The last reported failure.
    reported: Option<String>,
}

impl LoginSync {
    pub(super) fn new(logins: Option<Logins>) -> Self {
        Self { logins, ..Self::default() }
    }

    pub(super) const fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// True if the agent's home has this file.
    pub(super) fn has_file(&self, path: &str) -> bool {
        self.installed.contains(path)
    }

    /// Takes the message whose update is done.
    pub(super) fn take_ready(&mut self) -> Option<LeasedMessage> {
        if self.is_running() { None } else { self.waiting.take() }
    }

    /// Takes a message that still waits.
    pub(super) fn take_waiting(&mut self) -> Option<LeasedMessage> {
        self.waiting.take()
    }

    pub(super) async fn next_result(&mut self) -> InstallResult {
        match &mut self.running {
            Some(running) => {
                let outcome = running.await;
                self.running = None;
                outcome.unwrap_or_else(|_| (self.installed.clone(), Some("the task was cancelled".to_owned())))
            }
            None => std::future::pending().await,
        }
    }

    /// Starts an update before the message; returns the message if no update is needed.
    pub(super) fn begin_update(&mut self, message: LeasedMessage, is_needed: bool) -> Option<LeasedMessage> {
        let Some(logins) = self.logins.clone().filter(|_| is_needed) else { return Some(message) };
        let (done, running) = oneshot::channel();
        let installed = self.installed.clone();
        (self.waiting, self.running) = (Some(message), Some(running));
        tokio::spawn(async move { drop(done.send(logins.renew(installed).await)) });
        None
    }

    /// Removes the files; the next prompt writes them again.
    pub(super) async fn remove_files(&mut self) {
        // Only at shutdown can an update be running: a waiting prompt blocks everything else.
        if let Some(running) = self.running.take()
            && let Ok(Ok((installed, _))) = timeout(UPDATE_GRACE, running).await
        {
            self.installed = installed;
        }
        if let Some(logins) = &self.logins {
            logins.remove_all(&mut self.installed).await;
        }
    }
}

impl Executor {
    /// On failure, keeps the existing files and reports it once.
    pub(super) fn handle_login_result(&mut self, (installed, failed): InstallResult) {
        self.logins.installed = installed;
        if failed.is_some() && self.logins.reported != failed {
            let why = failed.as_deref().unwrap_or_default();
            let text = Some(format!("Failed to update the agent's login files: {why}."));
            let (subtype, error) = ("login_failed".to_owned(), Some(why.to_owned()));
            let data = AgentSystemMessage { subtype, error, text, ..AgentSystemMessage::default() };
            self.emit_worker_event(&EventData::AgentSystemMessage(data));
        }
        self.logins.reported = failed;
    }
}
