//! The waits between attempts to reconnect.

use crate::error::{Error, Result};
use std::time::Duration;

const FIRST_WAIT: Duration = Duration::from_millis(250);
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Doubles the wait with each failed attempt. Before the first connection, failures are errors.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    was_connected: bool,
    wait: Option<Duration>,
}

impl Backoff {
    pub(crate) const fn was_connected(&self) -> bool {
        self.was_connected
    }

    pub(crate) async fn sleep(&self) {
        if let Some(wait) = self.wait {
            tokio::time::sleep(wait).await;
        }
    }

    pub(crate) const fn record_connection(&mut self) {
        self.was_connected = true;
    }

    /// The server sent data: the next reconnect starts with the shortest wait.
    pub(crate) const fn record_data(&mut self) {
        self.wait = None;
    }

    pub(crate) fn record_disconnect(&mut self) {
        self.wait.get_or_insert(FIRST_WAIT);
    }

    /// Returns whether this is the first failure since the connection was lost, or the error if a retry can't help.
    pub(crate) fn record_failure(&mut self, error: Error) -> Result<bool> {
        if !self.was_connected || !error.is_transient() {
            return Err(error);
        }
        let is_first = self.wait.is_none_or(|wait| wait <= FIRST_WAIT);
        self.wait = Some(self.wait.map_or(FIRST_WAIT, |wait| (wait * 2).min(MAX_WAIT)));
        Ok(is_first)
    }
}
