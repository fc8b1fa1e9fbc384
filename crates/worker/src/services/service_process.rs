//! A process of a service: collects the end of its output until it exits.

use super::ServiceTools;
use crate::output_tail::OutputTail;
use crate::spawner::{self, ExitStatus, ProgramSpec, SpawnedProcess, StdStreams};
use atoll_core::provider::CommandExit;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;

const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks to read after the exit: more than a pipe holds.
const MAX_LAST_CHUNKS: usize = 64;
/// Time for a service to exit after SIGTERM.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// Time for the spawner to report the exit of a killed process.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Dropping it kills the process and everything that it started.
pub(super) struct ServiceProcess {
    process: SpawnedProcess,
    /// Its stdout and stderr.
    output: Option<Receiver>,
    tail: OutputTail,
    ended: Option<ExitStatus>,
    memory: Arc<crate::memory_counters::MemoryCounters>,
    kills_before: Option<u64>,
    buffer: Vec<u8>,
}

impl ServiceProcess {
    pub(super) async fn start(tools: &ServiceTools, program: ProgramSpec) -> Result<Self, spawner::Error> {
        let failed = |error: io::Error| spawner::Error::NotStarted(format!("failed to create its pipe: {error}"));
        let (output, stdout) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let stderr = stdout.try_clone().map_err(failed)?;
        let output = Receiver::from_owned_fd(output).map_err(failed)?;
        let kills_before = tools.memory.kills();
        let process = tools.spawner.spawn(program, StdStreams { input: None, stdout, stderr }).await?;
        Ok(Self {
            process,
            output: Some(output),
            tail: OutputTail::default(),
            ended: None,
            memory: Arc::clone(&tools.memory),
            kills_before,
            buffer: vec![0; CHUNK_BYTES],
        })
    }

    /// Reads output until the process exits. Cancel-safe.
    pub(super) async fn wait_for_exit(&mut self) -> ExitStatus {
        loop {
            if let Some(ended) = self.ended {
                return ended;
            }
            tokio::select! {
                () = wait_readable(self.output.as_ref()) => drop(self.read_chunk()),
                ended = self.process.wait_for_exit() => {
                    // Its children may keep the pipe open, so read only what is there.
                    for _ in 0..MAX_LAST_CHUNKS {
                        if !self.read_chunk() {
                            break;
                        }
                    }
                    self.ended = Some(ended);
                }
            }
        }
    }

    /// Ends the process: first SIGTERM, then SIGKILL for everything that it started.
    pub(super) async fn stop(mut self) {
        self.process.signal(Signal::TERM.as_raw());
        if timeout(STOP_GRACE, self.wait_for_exit()).await.is_err() {
            self.kill().await;
        }
    }

    pub(super) async fn kill(&mut self) {
        self.process.kill();
        drop(timeout(KILL_GRACE, self.wait_for_exit()).await);
    }

    /// The exit for an event.
    pub(super) fn exit(&self) -> CommandExit {
        match self.ended.unwrap_or(ExitStatus::Lost) {
            ended if self.memory.killed_process(self.kills_before, ended) => CommandExit::OutOfMemory,
            ExitStatus::Exited(code) => CommandExit::Exited { code },
            ExitStatus::Signalled(signal) => CommandExit::Signalled { signal },
            ExitStatus::Lost => CommandExit::Unknown,
        }
    }

    /// The end of its output.
    pub(super) fn tail(&self) -> String {
        self.tail.text()
    }

    /// True if there was something to read.
    fn read_chunk(&mut self) -> bool {
        let Some(output) = &self.output else { return false };
        match output.try_read(&mut self.buffer) {
            Ok(length) if length > 0 => {
                self.tail.push(&self.buffer[..length]);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Ok(_) | Err(_) => {
                self.output = None;
                false
            }
        }
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.process.kill();
        }
    }
}

async fn wait_readable(pipe: Option<&Receiver>) {
    match pipe {
        // Errors show up when it is read.
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}
