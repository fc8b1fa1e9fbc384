//! Commands that the server itself runs in a sandbox, for checks and for set-up.

use atoll_core::provider::{
    CommandExit, Error, ExecCommand, ExecEvent, ExecRef, ExecSpec, ExecStream, Provider, ProviderId,
};
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const SIGKILL: i32 = 9;

/// The sandbox that a command runs in.
#[derive(Clone)]
pub(super) struct CommandTarget {
    pub provider: Arc<dyn Provider>,
    pub sandbox: ProviderId,
}

/// A command's exit and the tail of its output.
pub(super) struct CommandResult {
    pub exit: CommandExit,
    pub output: String,
}

/// A command without input, run as the agent in the workspace.
pub(super) const fn command_spec(command: ExecCommand, timeout: Duration) -> ExecSpec {
    ExecSpec {
        command,
        cwd: None,
        env: BTreeMap::new(),
        has_stdin: false,
        as_root: false,
        terminal: None,
        timeout: Some(timeout),
    }
}

/// A running command, which is killed when it is dropped.
pub(super) struct RunningCommand {
    provider: Arc<dyn Provider>,
    /// `None` once it has ended.
    exec: Option<ExecRef>,
    events: ExecStream,
}

impl RunningCommand {
    pub(super) async fn start(target: &CommandTarget, spec: &ExecSpec) -> Result<Self, Error> {
        let exec = target.provider.exec(&target.sandbox, spec).await?;
        let events = target.provider.attach(&exec, 0).await?;
        Ok(Self { provider: Arc::clone(&target.provider), exec: Some(exec), events })
    }

    /// The next event. An output stream that breaks leaves the exit unknown.
    pub(super) async fn next_event(&mut self) -> Result<ExecEvent, Error> {
        let event = self.events.next().await.unwrap_or(Ok(ExecEvent::Ended(CommandExit::Unknown)))?;
        if matches!(event, ExecEvent::Ended(_)) {
            self.exec = None;
        }
        Ok(event)
    }

    /// Runs to the end. Keeps the last `most_bytes` of the output.
    pub(super) async fn collect_tail(mut self, most_bytes: usize) -> Result<CommandResult, Error> {
        let mut tail: Vec<u8> = Vec::new();
        loop {
            match self.next_event().await? {
                ExecEvent::Output { data, .. } => {
                    tail.extend_from_slice(&data);
                    if tail.len() > 4 * most_bytes {
                        tail.drain(..tail.len() - most_bytes);
                    }
                }
                ExecEvent::Gap { .. } => {}
                ExecEvent::Ended(exit) => {
                    let tail = &tail[tail.len().saturating_sub(most_bytes)..];
                    return Ok(CommandResult { exit, output: String::from_utf8_lossy(tail).replace('\0', "") });
                }
            }
        }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        if let Some(exec) = self.exec.take() {
            let provider = Arc::clone(&self.provider);
            tokio::spawn(async move { drop(provider.signal(&exec, SIGKILL).await) });
        }
    }
}
