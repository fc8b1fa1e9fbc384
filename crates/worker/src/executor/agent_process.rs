//! The agent's process: its stdin, stdout lines, the tail of stderr, and its exit status.

use super::shutdown::Interrupt;
use super::sleep_until_deadline;
use crate::output_tail::OutputTail;
use crate::spawner::{self, ExitStatus, ProgramSpec, SpawnedProcess, Spawner, StdStreams};
use atoll_dispatcher::program::input::{Line, LineSplitter};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::time::Duration;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::Instant;

const CHUNK_BYTES: usize = 64 * 1024;
/// Back-pressure limit: stop reading the agent's output at this much input that it has not read.
const MAX_UNREAD_BYTES: usize = 4 << 20;
/// Time to wait for the end of stdout after the exit: the agent's children may keep it open.
const OUTPUT_GRACE: Duration = Duration::from_millis(300);

/// A line of the agent's stdout, with bounded length.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AgentLine {
    Complete(Vec<u8>),
    TooLong { head: Vec<u8>, bytes: usize },
}

/// The running agent, and how it is being stopped.
#[derive(Debug, Default)]
pub(super) struct AgentState {
    pub process: Option<AgentProcess>,
    pub interrupt: Option<Interrupt>,
    /// The fatal error that the agent reported, and the deadline for its exit.
    pub failed: Option<(String, Instant)>,
}

#[derive(Debug)]
pub(super) struct AgentProcess {
    process: SpawnedProcess,
    input: Option<Sender>,
    /// Input that the agent has not read yet.
    unread: Vec<u8>,
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
    lines: LineSplitter,
    tail: OutputTail,
    ended: Option<(ExitStatus, Instant)>,
    /// Number of out-of-memory kills when the process started.
    pub kills_before: Option<u64>,
    /// The same at its last output.
    pub kills_at_output: Option<u64>,
    buffer: Vec<u8>,
}

enum Ready {
    Stdout,
    Stderr,
    Input,
    Ended(ExitStatus),
    OutputExpired,
}

impl AgentProcess {
    pub(super) async fn start(
        spawner: &Spawner,
        program: ProgramSpec,
        kills: Option<u64>,
    ) -> Result<Self, spawner::Error> {
        let failed = |error: io::Error| spawner::Error::NotStarted(format!("failed to create its pipes: {error}"));
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()));
        let ((stdin, input), (stdout, to_stdout), (stderr, to_stderr)) = (pipe()?, pipe()?, pipe()?);
        let input = Sender::from_owned_fd(input).map_err(failed)?;
        let stdout = Receiver::from_owned_fd(stdout).map_err(failed)?;
        let stderr = Receiver::from_owned_fd(stderr).map_err(failed)?;
        let streams = StdStreams { input: Some(stdin), stdout: to_stdout, stderr: to_stderr };
        let process = spawner.spawn(program, streams).await?;
        Ok(Self {
            process,
            input: Some(input),
            unread: Vec::new(),
            stdout: Some(stdout),
            stderr: Some(stderr),
            lines: LineSplitter::default(),
            tail: OutputTail::default(),
            ended: None,
            kills_before: kills,
            kills_at_output: kills,
            buffer: vec![0; CHUNK_BYTES],
        })
    }

    /// Queues a line for the agent's stdin.
    pub(super) fn write_line(&mut self, line: &[u8]) {
        if self.input.is_some() {
            self.unread.extend_from_slice(line);
            self.write_unread();
        }
    }

    /// Records the out-of-memory kills at the agent's last output before its exit.
    pub(super) fn record_output(&mut self, kills: Option<u64>) {
        if self.ended.is_none() {
            self.kills_at_output = kills;
        }
    }

    /// Closes the agent's stdin.
    pub(super) fn close_input(&mut self) {
        self.input = None;
        self.unread.clear();
    }

    pub(super) fn signal(&self, signal: rustix::process::Signal) {
        self.process.signal(signal.as_raw());
    }

    /// Pauses or resumes the agent and everything that it started.
    pub(super) fn set_paused(&self, paused: bool) {
        self.process.set_paused(paused);
    }

    /// The exit status, once all output is read.
    pub(super) fn exit_status(&self) -> Option<ExitStatus> {
        self.ended.filter(|_| self.stdout.is_none() && self.stderr.is_none()).map(|(ending, _)| ending)
    }

    pub(super) fn stderr_text(&self) -> String {
        self.tail.text()
    }

    /// Waits for the next lines, which may be none. Without `listen` the output stays in the pipe. Cancel-safe.
    pub(super) async fn next_lines(&mut self, listen: bool) -> Vec<AgentLine> {
        let listen = listen && self.unread.len() < MAX_UNREAD_BYTES;
        let output_deadline = self.ended.map(|(_, at)| at + OUTPUT_GRACE).filter(|_| self.exit_status().is_none());
        let ready = tokio::select! {
            () = wait_readable(self.stdout.as_ref()), if listen => Ready::Stdout,
            () = wait_readable(self.stderr.as_ref()) => Ready::Stderr,
            () = wait_writable(self.input.as_ref()), if !self.unread.is_empty() => Ready::Input,
            ending = self.process.wait_for_exit(), if self.ended.is_none() => Ready::Ended(ending),
            () = sleep_until_deadline(output_deadline), if listen => Ready::OutputExpired,
        };
        match ready {
            Ready::Stdout => self.read_stdout(),
            Ready::Stderr => {
                self.read_stderr();
                Vec::new()
            }
            Ready::Input => {
                self.write_unread();
                Vec::new()
            }
            Ready::Ended(ending) => {
                self.ended = Some((ending, Instant::now()));
                self.close_input();
                Vec::new()
            }
            Ready::OutputExpired => self.read_remaining(),
        }
    }

    fn read_stdout(&mut self) -> Vec<AgentLine> {
        let Some(stdout) = &self.stdout else { return Vec::new() };
        match stdout.try_read(&mut self.buffer) {
            Ok(length) if length > 0 => self.split_lines(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Vec::new(),
            Ok(_) | Err(_) => {
                self.stdout = None;
                self.take_partial_line()
            }
        }
    }

    fn read_stderr(&mut self) {
        let Some(stderr) = &self.stderr else { return };
        match stderr.try_read(&mut self.buffer) {
            Ok(length) if length > 0 => self.tail.push(&self.buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => self.stderr = None,
        }
    }

    /// Reads what is in the pipes of an exited agent whose children keep them open.
    fn read_remaining(&mut self) -> Vec<AgentLine> {
        let mut lines = Vec::new();
        while let Some(length) = read_available(self.stdout.as_ref(), &mut self.buffer) {
            lines.extend(self.split_lines(length));
        }
        while let Some(length) = read_available(self.stderr.as_ref(), &mut self.buffer) {
            self.tail.push(&self.buffer[..length]);
        }
        (self.stdout, self.stderr) = (None, None);
        lines.extend(self.take_partial_line());
        lines
    }

    fn split_lines(&mut self, length: usize) -> Vec<AgentLine> {
        let mut lines = Vec::new();
        self.lines.push(&self.buffer[..length], |line| lines.extend(to_agent_line(&line)));
        lines
    }

    fn take_partial_line(&mut self) -> Vec<AgentLine> {
        let mut lines = Vec::new();
        self.lines.finish(|line| lines.extend(to_agent_line(&line)));
        lines
    }

    fn write_unread(&mut self) {
        let Some(input) = &self.input else { return };
        match input.try_write(&self.unread) {
            Ok(length) => drop(self.unread.drain(..length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The agent has closed its stdin.
            Err(_) => self.close_input(),
        }
    }
}

fn to_agent_line(line: &Line<'_>) -> Option<AgentLine> {
    match line {
        Line::Whole(bytes) if bytes.trim_ascii().is_empty() => None,
        Line::Whole(bytes) => Some(AgentLine::Complete(bytes.to_vec())),
        Line::TooLong { head, bytes } => Some(AgentLine::TooLong { head: head.to_vec(), bytes: *bytes }),
    }
}

fn read_available(pipe: Option<&Receiver>, buffer: &mut [u8]) -> Option<usize> {
    loop {
        match rustix::io::read(pipe?, &mut *buffer) {
            Ok(length) => return Some(length).filter(|length| *length > 0),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

// Errors show up when the pipe is used.

async fn wait_readable(pipe: Option<&Receiver>) {
    match pipe {
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}

async fn wait_writable(pipe: Option<&Sender>) {
    match pipe {
        Some(pipe) => drop(pipe.writable().await),
        None => std::future::pending().await,
    }
}
