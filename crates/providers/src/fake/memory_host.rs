//! The demo agent's environment in a fake sandbox: files in memory and scripted commands.

use super::diff::{UnifiedDiff, unified_diff};
use super::environment::SandboxRuntime;
use super::tree::relative_path;
use crate::lock_state;
use atoll_api::events::{FileChangeType, FileEdited};
use atoll_core::BoxFuture;
use atoll_core::provider::{CommandExit, ExecCommand, ExecEvent, ExecSpec, ExecStream};
use atoll_drivers::demo::agent::{CommandEnd, DemoFailure, DemoHost, HostInput, MAX_OUTPUT};
use bytes::Bytes;
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

const MAX_PREVIEW_BYTES: usize = 2_000;
const SIGKILL: i32 = 9;

/// Output of the agent and of its environment, in order.
pub(super) enum HostOutput {
    /// A line of the agent.
    Line(Vec<u8>),
    /// A change, without its turn and tool.
    FileEdited(Box<FileEdited>),
    Failed(DemoFailure),
}

pub(super) struct MemoryHost {
    runtime: Arc<SandboxRuntime>,
    start: Instant,
    inputs: UnboundedReceiver<HostInput>,
    outputs: UnboundedSender<HostOutput>,
    /// The running command and its end.
    command: Option<(u64, BoxFuture<'static, CommandEnd>)>,
}

impl MemoryHost {
    /// Returns the host with the executor's ends of its channels.
    pub(super) fn new(
        runtime: Arc<SandboxRuntime>,
    ) -> (Self, UnboundedSender<HostInput>, UnboundedReceiver<HostOutput>) {
        let ((to_agent, inputs), (outputs, from_agent)) = (unbounded_channel(), unbounded_channel());
        let host = Self { runtime, start: Instant::now(), inputs, outputs, command: None };
        (host, to_agent, from_agent)
    }

    fn send(&self, output: HostOutput) {
        // Fails only while the worker exits.
        drop(self.outputs.send(output));
    }

    async fn wait_for_input(&mut self, deadline: Option<Duration>) -> Option<HostInput> {
        let start = self.start;
        let expired = async {
            match deadline {
                Some(deadline) => sleep_until(start + deadline).await,
                None => std::future::pending().await,
            }
        };
        let ended = async {
            match &mut self.command {
                Some((_, end)) => end.await,
                None => std::future::pending().await,
            }
        };
        let end = tokio::select! {
            biased;
            end = ended => end,
            Some(input) = self.inputs.recv() => return Some(input),
            () = expired => return None,
        };
        self.command = None;
        Some(HostInput::CommandEnded(end))
    }
}

impl DemoHost for MemoryHost {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    async fn next_input(&mut self, deadline: Option<Duration>) -> Option<HostInput> {
        let input = if deadline.is_some_and(|deadline| deadline <= self.now()) {
            // Lets the links run between two steps.
            tokio::task::yield_now().await;
            self.inputs.try_recv().ok()
        } else {
            self.wait_for_input(deadline).await
        };
        self.runtime.environment.wait_until_thawed().await;
        input
    }

    fn write_line(&mut self, line: &[u8]) {
        self.send(HostOutput::Line(line.to_vec()));
    }

    fn list_files(&self) -> Vec<String> {
        lock_state(&self.runtime.environment.tree).files_below("").map(|(path, _)| path.to_owned()).collect()
    }

    fn read_file(&self, path: &str) -> Option<String> {
        let content = lock_state(&self.runtime.environment.tree).read(path).ok()?;
        Some(String::from_utf8_lossy(&content).into_owned())
    }

    /// Reports the change as a file watcher would.
    fn write_file(&mut self, path: &str, content: &str) -> Result<(), String> {
        let old = self.read_file(path);
        let path = relative_path(path).map_err(|error| error.to_string())?;
        let written =
            lock_state(&self.runtime.environment.tree).write(&path, Bytes::copy_from_slice(content.as_bytes()));
        written.map_err(|error| error.to_string())?;
        let UnifiedDiff { added, removed, text } = unified_diff(&path, old.as_deref(), content);
        let preview = text[..text.floor_char_boundary(MAX_PREVIEW_BYTES)].to_owned();
        self.send(HostOutput::FileEdited(Box::new(FileEdited {
            file_path: path,
            change_type: if old.is_some() { FileChangeType::Modified } else { FileChangeType::Created },
            old_path: None,
            lines_added: added as u64,
            lines_removed: removed as u64,
            diff_preview: preview,
            full_diff: Some(text),
            full_diff_truncated: false,
            full_diff_bytes: None,
            full_diff_blob: None,
            binary: false,
            size: None,
            sha256: None,
            turn: None,
            tool_use_id: None,
        })));
        Ok(())
    }

    fn start_command(&mut self, command: &str) -> Result<(), String> {
        let spec = ExecSpec {
            command: ExecCommand::Shell(command.to_owned()),
            cwd: None,
            env: BTreeMap::new(),
            has_stdin: false,
            as_root: false,
            terminal: None,
            timeout: None,
        };
        let table = &self.runtime.processes;
        let id = table.spawn_command(&self.runtime.environment, &spec);
        let output = table.attach_output(id, 0).map_err(|error| error.to_string())?;
        self.command = Some((id, Box::pin(collect_output(output))));
        Ok(())
    }

    fn kill_command(&mut self) {
        if let Some((id, _)) = &self.command {
            // Infallible: the command is in the table.
            drop(self.runtime.processes.send_signal(*id, SIGKILL));
        }
    }

    async fn fail(&mut self, failure: DemoFailure) -> Infallible {
        self.send(HostOutput::Failed(failure));
        std::future::pending().await
    }
}

async fn collect_output(mut stream: ExecStream) -> CommandEnd {
    let mut end = CommandEnd::new(CommandExit::Unknown, String::new());
    while let Some(event) = stream.next().await {
        match event {
            Ok(ExecEvent::Output { data, .. }) => {
                let text = String::from_utf8_lossy(&data);
                end.bytes += text.len() as u64;
                if end.output.len() < MAX_OUTPUT {
                    end.output.push_str(&text);
                }
            }
            Ok(ExecEvent::Gap { .. }) => {}
            Ok(ExecEvent::Ended(exit)) => return CommandEnd { exit, ..end },
            Err(_) => break,
        }
    }
    end
}
