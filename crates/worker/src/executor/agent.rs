//! The agent's process: lines in, lines out, the last of what it complained about, and its end.

use super::tail::Tail;
use crate::hands::{self, Ending, Handle, Process, Program, Streams};
use crate::input::{Line, Lines};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::time::Duration;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::{Instant, sleep_until};

/// What is read at once.
const CHUNK: usize = 64 * 1024;
/// How long those that an ended agent left behind can hold its outputs open.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// A line of the agent, with a bound on its length.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    Line(Vec<u8>),
    TooLong { head: Vec<u8>, bytes: usize },
}

#[derive(Debug)]
pub(super) struct Agent {
    process: Process,
    input: Option<Sender>,
    /// What it has not read.
    unread: Vec<u8>,
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
    lines: Lines,
    tail: Tail,
    ended: Option<(Ending, Instant)>,
    /// How often the kernel had killed something for its memory when this started.
    pub kills_before: Option<u64>,
    /// The same when it last said something.
    pub kills_heard: Option<u64>,
    buffer: Vec<u8>,
}

enum Ready {
    Stdout,
    Stderr,
    Input,
    Ended(Ending),
    LastWords,
}

impl Agent {
    pub(super) async fn start(hands: &Handle, program: Program, kills: Option<u64>) -> Result<Self, hands::Error> {
        let failed = |error: io::Error| hands::Error::NotStarted(format!("failed to make its pipes: {error}"));
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()));
        let ((theirs, input), (stdout, to_stdout), (stderr, to_stderr)) = (pipe()?, pipe()?, pipe()?);
        let input = Sender::from_owned_fd(input).map_err(failed)?;
        let stdout = Receiver::from_owned_fd(stdout).map_err(failed)?;
        let stderr = Receiver::from_owned_fd(stderr).map_err(failed)?;
        let streams = Streams { input: Some(theirs), stdout: to_stdout, stderr: to_stderr };
        let process = hands.spawn(program, streams).await?;
        Ok(Self {
            process,
            input: Some(input),
            unread: Vec::new(),
            stdout: Some(stdout),
            stderr: Some(stderr),
            lines: Lines::default(),
            tail: Tail::default(),
            ended: None,
            kills_before: kills,
            kills_heard: kills,
            buffer: vec![0; CHUNK],
        })
    }

    /// Gives it a line. It may take its time to read it.
    pub(super) fn tell(&mut self, line: &[u8]) {
        if self.input.is_some() {
            self.unread.extend_from_slice(line);
            self.write();
        }
    }

    /// It has said something, when the kernel had killed so often. What is heard after its end says nothing of then.
    pub(super) fn was_heard(&mut self, kills: Option<u64>) {
        if self.ended.is_none() {
            self.kills_heard = kills;
        }
    }

    /// The end of its input.
    pub(super) fn close_input(&mut self) {
        self.input = None;
        self.unread.clear();
    }

    pub(super) fn signal(&self, signal: rustix::process::Signal) {
        self.process.signal(signal.as_raw());
    }

    /// It and all that it started stand still, or go on.
    pub(super) fn hold(&self, still: bool) {
        self.process.hold(still);
    }

    /// How it ended, if it has and nothing more is to be heard.
    pub(super) fn ending(&self) -> Option<Ending> {
        self.ended.filter(|_| self.stdout.is_none() && self.stderr.is_none()).map(|(ending, _)| ending)
    }

    pub(super) fn complaints(&self) -> String {
        self.tail.text()
    }

    /// The next that happens; lines, if there were some. With `listen` off its words stay in the pipe, and it waits
    /// when that is full. Whatever was heard is kept if this is dropped.
    pub(super) async fn next(&mut self, listen: bool) -> Vec<Spoken> {
        let last_words = self.ended.map(|(_, at)| at + LAST_WORDS).filter(|_| self.ending().is_none());
        let ready = tokio::select! {
            () = readable(self.stdout.as_ref()), if listen => Ready::Stdout,
            () = readable(self.stderr.as_ref()) => Ready::Stderr,
            () = writable(self.input.as_ref()), if !self.unread.is_empty() => Ready::Input,
            ending = self.process.ended(), if self.ended.is_none() => Ready::Ended(ending),
            () = at(last_words), if listen => Ready::LastWords,
        };
        match ready {
            Ready::Stdout => self.hear(),
            Ready::Stderr => {
                self.hear_complaints();
                Vec::new()
            }
            Ready::Input => {
                self.write();
                Vec::new()
            }
            Ready::Ended(ending) => {
                self.ended = Some((ending, Instant::now()));
                self.close_input();
                Vec::new()
            }
            Ready::LastWords => self.hear_the_rest(),
        }
    }

    fn hear(&mut self) -> Vec<Spoken> {
        let Some(stdout) = &self.stdout else { return Vec::new() };
        match stdout.try_read(&mut self.buffer) {
            Ok(length) if length > 0 => self.cut(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Vec::new(),
            Ok(_) | Err(_) => {
                self.stdout = None;
                self.last_line()
            }
        }
    }

    fn hear_complaints(&mut self) {
        let Some(stderr) = &self.stderr else { return };
        match stderr.try_read(&mut self.buffer) {
            Ok(length) if length > 0 => self.tail.push(&self.buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => self.stderr = None,
        }
    }

    /// It has ended, and somebody else holds its outputs: what is in them is all that is taken.
    fn hear_the_rest(&mut self) -> Vec<Spoken> {
        let mut spoken = Vec::new();
        while let Some(length) = read_now(self.stdout.as_ref(), &mut self.buffer) {
            spoken.extend(self.cut(length));
        }
        while let Some(length) = read_now(self.stderr.as_ref(), &mut self.buffer) {
            self.tail.push(&self.buffer[..length]);
        }
        (self.stdout, self.stderr) = (None, None);
        spoken.extend(self.last_line());
        spoken
    }

    fn cut(&mut self, length: usize) -> Vec<Spoken> {
        let mut spoken = Vec::new();
        self.lines.push(&self.buffer[..length], |line| spoken.extend(keep(&line)));
        spoken
    }

    fn last_line(&mut self) -> Vec<Spoken> {
        let mut spoken = Vec::new();
        self.lines.end(|line| spoken.extend(keep(&line)));
        spoken
    }

    fn write(&mut self) {
        let Some(input) = &self.input else { return };
        match input.try_write(&self.unread) {
            Ok(length) => drop(self.unread.drain(..length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // It reads no more: its end tells the rest.
            Err(_) => self.close_input(),
        }
    }
}

fn keep(line: &Line<'_>) -> Option<Spoken> {
    match line {
        Line::Whole(bytes) if bytes.trim_ascii().is_empty() => None,
        Line::Whole(bytes) => Some(Spoken::Line(bytes.to_vec())),
        Line::TooLong { head, bytes } => Some(Spoken::TooLong { head: head.to_vec(), bytes: *bytes }),
    }
}

fn read_now(pipe: Option<&Receiver>, buffer: &mut [u8]) -> Option<usize> {
    loop {
        match rustix::io::read(pipe?, &mut *buffer) {
            Ok(length) => return Some(length).filter(|length| *length > 0),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

// A failure shows when the pipe is used.

async fn readable(pipe: Option<&Receiver>) {
    match pipe {
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}

async fn writable(pipe: Option<&Sender>) {
    match pipe {
        Some(pipe) => drop(pipe.writable().await),
        None => std::future::pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
