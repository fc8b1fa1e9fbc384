//! The process table: scripted commands, what they said, and how they ended.

use super::ground::{Ground, Task};
use super::script::Script;
use crate::locked;
use atoll_core::provider::{Error, ExecEvent, ExecSpec, ExecStream, Exit, OutputStream};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, watch};

/// Output kept per command; what is older is told as a gap.
const MAX_LOG: u64 = 1 << 20;
/// Ended commands kept for those who come back for them.
const MAX_ENDED: usize = 256;
const MAX_INPUT: usize = 256;

struct Chunk {
    stream: OutputStream,
    data: Bytes,
    /// Where it ends, counted in bytes over both streams.
    end: u64,
}

/// What a command said so far. Positions count bytes over both streams; an output's cursor is the
/// position after it.
#[derive(Default)]
pub(super) struct Log {
    chunks: VecDeque<Chunk>,
    first: u64,
    end: u64,
    exit: Option<Exit>,
}

impl Log {
    fn push(&mut self, stream: OutputStream, data: Bytes) {
        if data.is_empty() || self.exit.is_some() {
            return;
        }
        self.end += data.len() as u64;
        self.chunks.push_back(Chunk { stream, data, end: self.end });
        while self.end - self.first > MAX_LOG && self.chunks.len() > 1 {
            if let Some(old) = self.chunks.pop_front() {
                self.first = old.end;
            }
        }
    }

    /// What stands after `cursor`, if there is anything yet.
    fn after(&self, cursor: u64) -> Option<ExecEvent> {
        if cursor < self.first {
            return Some(ExecEvent::Gap { cursor: self.first });
        }
        let chunk = self.chunks.iter().find(|chunk| chunk.end > cursor);
        match (chunk, self.exit) {
            (Some(chunk), _) => {
                let start = chunk.end - chunk.data.len() as u64;
                let skip = usize::try_from(cursor.saturating_sub(start)).unwrap_or(0);
                Some(ExecEvent::Output { stream: chunk.stream, data: chunk.data.slice(skip..), cursor: chunk.end })
            }
            (None, Some(exit)) => Some(ExecEvent::Ended(exit)),
            (None, None) => None,
        }
    }
}

/// How a running script is heard.
pub(super) struct Voice {
    pub(super) ground: Arc<Ground>,
    log: Arc<watch::Sender<Log>>,
}

impl Voice {
    /// Returns the exit code of having said something: 0.
    pub(super) fn say(&self, stream: OutputStream, data: impl Into<Bytes>) -> i32 {
        self.log.send_modify(|log| log.push(stream, data.into()));
        0
    }
}

struct Process {
    log: Arc<watch::Sender<Log>>,
    stdin: Option<mpsc::Sender<Bytes>>,
    task: Task,
}

impl Process {
    fn end(&mut self, exit: Exit) {
        end(&self.log, exit);
        self.stdin = None;
        self.task.stop();
    }
}

/// Only the first end counts.
fn end(log: &watch::Sender<Log>, exit: Exit) {
    log.send_modify(|log| {
        log.exit.get_or_insert(exit);
    });
}

#[derive(Default)]
struct Rows {
    last: u64,
    processes: BTreeMap<u64, Process>,
}

#[derive(Default)]
pub(super) struct Table(Mutex<Rows>);

impl Table {
    pub(super) fn spawn(&self, ground: &Arc<Ground>, spec: &ExecSpec) -> u64 {
        let (stdin, input) = mpsc::channel(MAX_INPUT);
        let (stdin, input) = if spec.stdin { (Some(stdin), Some(input)) } else { (None, None) };
        let log = Arc::new(watch::Sender::new(Log::default()));
        let voice = Voice { ground: ground.clone(), log: log.clone() };
        let script = Script::new(&spec.command, spec.cwd.as_deref());
        let timeout = spec.timeout;
        let task = Task::spawn(async move {
            let script = script.run(&voice, input);
            let exit = match timeout {
                Some(span) => tokio::select! {
                    exit = script => exit,
                    () = voice.ground.moved_for(span) => Exit::TimedOut,
                },
                None => script.await,
            };
            voice.ground.thawed().await;
            end(&voice.log, exit);
        });
        let mut rows = locked(&self.0);
        rows.last += 1;
        let id = rows.last;
        rows.processes.insert(id, Process { log, stdin, task });
        rows.forget_old();
        id
    }

    /// Everything after `cursor`, then the end. The stream of a sandbox that goes away under it
    /// ends as unknown.
    pub(super) fn attach(&self, id: u64, cursor: u64) -> Result<ExecStream, Error> {
        let log = locked(&self.0).processes.get(&id).ok_or(Error::Gone)?.log.subscribe();
        Ok(Box::pin(futures_util::stream::unfold(Some((log, cursor)), |reader| async move {
            let (mut log, cursor) = reader?;
            let event = match log.wait_for(|log| log.after(cursor).is_some()).await {
                Ok(log) => log.after(cursor).unwrap_or(ExecEvent::Ended(Exit::Unknown)),
                Err(_) => ExecEvent::Ended(Exit::Unknown),
            };
            let rest = match &event {
                ExecEvent::Output { cursor, .. } | ExecEvent::Gap { cursor } => Some((log, *cursor)),
                ExecEvent::Ended(_) => None,
            };
            Some((Ok(event), rest))
        })))
    }

    pub(super) fn write(&self, id: u64, data: Bytes) -> Result<(), Error> {
        let rows = locked(&self.0);
        let process = rows.processes.get(&id).ok_or(Error::Gone)?;
        let refused = || Error::NoInput { detail: "the command's input is closed".to_owned() };
        let sent = process.stdin.as_ref().ok_or_else(refused)?.try_send(data);
        sent.map_err(|failed| match failed {
            mpsc::error::TrySendError::Full(_) => {
                Error::Exhausted { detail: "the command doesn't read its input".to_owned(), until: None }
            }
            mpsc::error::TrySendError::Closed(_) => refused(),
        })
    }

    pub(super) fn close_stdin(&self, id: u64) -> Result<(), Error> {
        locked(&self.0).processes.get_mut(&id).ok_or(Error::Gone)?.stdin = None;
        Ok(())
    }

    /// Ends the command, unless the signal is one that is ignored by default. A command that has
    /// ended already stays as it ended.
    pub(super) fn signal(&self, id: u64, signal: i32) -> Result<(), Error> {
        let mut rows = locked(&self.0);
        let process = rows.processes.get_mut(&id).ok_or(Error::Gone)?;
        match signal {
            0 | 17 | 18 | 23 | 28 => Ok(()),
            1..=64 => {
                process.end(Exit::Signalled { signal });
                Ok(())
            }
            _ => Err(Error::Refused { detail: format!("{signal} is not a signal") }),
        }
    }

    pub(super) fn kill_all(&self) {
        for process in locked(&self.0).processes.values_mut() {
            process.end(Exit::Signalled { signal: 9 });
        }
    }

    pub(super) fn running(&self) -> u64 {
        locked(&self.0).processes.values().filter(|process| process.log.borrow().exit.is_none()).count() as u64
    }
}

impl Rows {
    fn forget_old(&mut self) {
        while self.processes.len() > MAX_ENDED {
            let ended = self.processes.iter().find(|(_, process)| process.log.borrow().exit.is_some());
            match ended.map(|(id, _)| *id) {
                Some(id) => drop(self.processes.remove(&id)),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_forgets_its_beginning_and_says_so() {
        let mut log = Log::default();
        let half = Bytes::from(vec![b'x'; MAX_LOG as usize / 2]);
        for _ in 0..3 {
            log.push(OutputStream::Stdout, half.clone());
        }
        assert!(matches!(log.after(0), Some(ExecEvent::Gap { cursor }) if cursor == MAX_LOG / 2));
        assert!(matches!(log.after(MAX_LOG / 2 + 1), Some(ExecEvent::Output { data, cursor, .. })
            if data.len() as u64 == MAX_LOG / 2 - 1 && cursor == MAX_LOG));
        assert!(log.after(log.end).is_none());
        log.exit = Some(Exit::Exited { code: 0 });
        log.push(OutputStream::Stdout, half);
        assert!(matches!(log.after(log.end), Some(ExecEvent::Ended(Exit::Exited { code: 0 }))));
    }
}
