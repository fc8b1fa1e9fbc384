//! The process table: scripted commands, their output and exits.

use super::environment::{Environment, Task};
use super::script::Script;
use crate::lock_state;
use atoll_core::provider::{CommandExit, Error, ExecEvent, ExecSpec, ExecStream, OutputStream};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, watch};

/// Buffered output per command; older output becomes a gap.
const MAX_LOG_BYTES: u64 = 1 << 20;
/// Number of ended commands that clients can still attach to.
const MAX_ENDED_COMMANDS: usize = 256;
const MAX_QUEUED_INPUTS: usize = 256;

struct Chunk {
    stream: OutputStream,
    data: Bytes,
    /// The position after it, in bytes over both streams.
    end: u64,
}

/// A command's output so far. Positions count bytes over both streams; an output's cursor is the position after it.
#[derive(Default)]
pub(super) struct CommandLog {
    chunks: VecDeque<Chunk>,
    first: u64,
    end: u64,
    exit: Option<CommandExit>,
}

impl CommandLog {
    fn push(&mut self, stream: OutputStream, data: Bytes) {
        if data.is_empty() || self.exit.is_some() {
            return;
        }
        self.end += data.len() as u64;
        self.chunks.push_back(Chunk { stream, data, end: self.end });
        while self.end - self.first > MAX_LOG_BYTES && self.chunks.len() > 1 {
            if let Some(old) = self.chunks.pop_front() {
                self.first = old.end;
            }
        }
    }

    /// Returns the event after `cursor`, if there is one yet.
    fn event_after(&self, cursor: u64) -> Option<ExecEvent> {
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

/// The output and environment of a running script.
pub(super) struct ScriptOutput {
    pub(super) environment: Arc<Environment>,
    log: Arc<watch::Sender<CommandLog>>,
}

impl ScriptOutput {
    /// Writes output and returns exit code 0.
    pub(super) fn write_output(&self, stream: OutputStream, data: impl Into<Bytes>) -> i32 {
        self.log.send_modify(|log| log.push(stream, data.into()));
        0
    }
}

struct FakeProcess {
    log: Arc<watch::Sender<CommandLog>>,
    stdin: Option<mpsc::Sender<Bytes>>,
    task: Task,
}

impl FakeProcess {
    fn end_process(&mut self, exit: CommandExit) {
        record_exit(&self.log, exit);
        self.stdin = None;
        self.task.stop();
    }
}

/// Records the exit; later ones are ignored.
fn record_exit(log: &watch::Sender<CommandLog>, exit: CommandExit) {
    log.send_modify(|log| {
        log.exit.get_or_insert(exit);
    });
}

#[derive(Default)]
struct ProcessRows {
    last: u64,
    processes: BTreeMap<u64, FakeProcess>,
}

#[derive(Default)]
pub(super) struct ProcessTable(Mutex<ProcessRows>);

impl ProcessTable {
    pub(super) fn spawn_command(&self, environment: &Arc<Environment>, spec: &ExecSpec) -> u64 {
        let (stdin, input) = mpsc::channel(MAX_QUEUED_INPUTS);
        let (stdin, input) = if spec.has_stdin { (Some(stdin), Some(input)) } else { (None, None) };
        let log = Arc::new(watch::Sender::new(CommandLog::default()));
        let output = ScriptOutput { environment: environment.clone(), log: log.clone() };
        let script = Script::new(&spec.command, spec.cwd.as_deref());
        let timeout = spec.timeout;
        let task = Task::spawn(async move {
            let script = script.run(&output, input);
            let exit = match timeout {
                Some(span) => tokio::select! {
                    exit = script => exit,
                    () = output.environment.sleep_unfrozen(span) => CommandExit::TimedOut,
                },
                None => script.await,
            };
            output.environment.wait_until_thawed().await;
            record_exit(&output.log, exit);
        });
        let mut rows = lock_state(&self.0);
        rows.last += 1;
        let id = rows.last;
        rows.processes.insert(id, FakeProcess { log, stdin, task });
        rows.evict_ended();
        id
    }

    /// Streams everything after `cursor`, then the exit, which is unknown if the sandbox disappears.
    pub(super) fn attach_output(&self, id: u64, cursor: u64) -> Result<ExecStream, Error> {
        let log = lock_state(&self.0).processes.get(&id).ok_or(Error::Gone)?.log.subscribe();
        Ok(Box::pin(futures_util::stream::unfold(Some((log, cursor)), |reader| async move {
            let (mut log, cursor) = reader?;
            let event = match log.wait_for(|log| log.event_after(cursor).is_some()).await {
                Ok(log) => log.event_after(cursor).unwrap_or(ExecEvent::Ended(CommandExit::Unknown)),
                Err(_) => ExecEvent::Ended(CommandExit::Unknown),
            };
            let rest = match &event {
                ExecEvent::Output { cursor, .. } | ExecEvent::Gap { cursor } => Some((log, *cursor)),
                ExecEvent::Ended(_) => None,
            };
            Some((Ok(event), rest))
        })))
    }

    pub(super) fn write_stdin(&self, id: u64, data: Bytes) -> Result<(), Error> {
        let rows = lock_state(&self.0);
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
        lock_state(&self.0).processes.get_mut(&id).ok_or(Error::Gone)?.stdin = None;
        Ok(())
    }

    /// Ends the command unless the signal is ignored by default. An ended command is unchanged.
    pub(super) fn send_signal(&self, id: u64, signal: i32) -> Result<(), Error> {
        let mut rows = lock_state(&self.0);
        let process = rows.processes.get_mut(&id).ok_or(Error::Gone)?;
        match signal {
            0 | 17 | 18 | 23 | 28 => Ok(()),
            1..=64 => {
                process.end_process(CommandExit::Signalled { signal });
                Ok(())
            }
            _ => Err(Error::Refused { detail: format!("{signal} is not a signal") }),
        }
    }

    pub(super) fn kill_all(&self) {
        for process in lock_state(&self.0).processes.values_mut() {
            process.end_process(CommandExit::Signalled { signal: 9 });
        }
    }

    pub(super) fn count_running(&self) -> u64 {
        lock_state(&self.0).processes.values().filter(|process| process.log.borrow().exit.is_none()).count() as u64
    }
}

impl ProcessRows {
    fn evict_ended(&mut self) {
        while self.processes.len() > MAX_ENDED_COMMANDS {
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
    fn a_long_log_drops_its_start_and_reports_a_gap() {
        let mut log = CommandLog::default();
        let half = Bytes::from(vec![b'x'; MAX_LOG_BYTES as usize / 2]);
        for _ in 0..3 {
            log.push(OutputStream::Stdout, half.clone());
        }
        assert!(matches!(log.event_after(0), Some(ExecEvent::Gap { cursor }) if cursor == MAX_LOG_BYTES / 2));
        assert!(matches!(log.event_after(MAX_LOG_BYTES / 2 + 1), Some(ExecEvent::Output { data, cursor, .. })
            if data.len() as u64 == MAX_LOG_BYTES / 2 - 1 && cursor == MAX_LOG_BYTES));
        assert!(log.event_after(log.end).is_none());
        log.exit = Some(CommandExit::Exited { code: 0 });
        log.push(OutputStream::Stdout, half);
        assert!(matches!(log.event_after(log.end), Some(ExecEvent::Ended(CommandExit::Exited { code: 0 }))));
    }
}
