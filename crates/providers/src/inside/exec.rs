//! Commands in a sandbox, each over a connection of its own to the worker. What they print is
//! kept for a while, so that one can attach again; a reader that is slow slows the command down,
//! and one that is gone does not.

use super::link;
use crate::locked;
use atoll_core::provider::{Command, Error, ExecEvent, ExecRef, ExecSpec, ExecStream, Exit, OutputStream, ProviderId};
use atoll_protocol::exec::{Ask, End, Opening, Start, Tell, Terminal};
use bytes::Bytes;
use futures_util::stream;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};

/// How much output is kept for each command.
const KEPT: usize = 4 << 20;
/// How long an ended command can still be asked for.
const REMEMBERED: Duration = Duration::from_secs(600);
const PIECE: usize = 64 << 10;
/// What a shell answers when there is no such program.
const NOT_FOUND: i32 = 127;

#[derive(Default)]
pub(crate) struct Commands {
    running: Mutex<HashMap<String, Arc<Running>>>,
}

struct Running {
    sandbox: ProviderId,
    kept: Mutex<Kept>,
    /// Counts every change of `kept`.
    changed: watch::Sender<u64>,
    asks: mpsc::UnboundedSender<Ask>,
}

#[derive(Default)]
struct Kept {
    pieces: VecDeque<(u64, OutputStream, Bytes)>,
    bytes: usize,
    /// Where the next piece begins.
    next: u64,
    ended: Option<Exit>,
    /// How far the reader is that attached last; `None`: nobody reads.
    reader: Option<u64>,
}

impl Kept {
    fn push(&mut self, stream: OutputStream, data: Bytes) {
        let cursor = self.next;
        self.next += data.len() as u64;
        self.bytes += data.len();
        self.pieces.push_back((cursor, stream, data));
    }

    /// Room for more, made by forgetting only what nobody is waiting for.
    fn has_room(&mut self) -> bool {
        let read = self.reader.unwrap_or(u64::MAX);
        while self.bytes > KEPT {
            match self.pieces.front() {
                Some((cursor, _, data)) if cursor + data.len() as u64 <= read => {
                    self.bytes -= data.len();
                    self.pieces.pop_front();
                }
                Some(_) => return false,
                None => break,
            }
        }
        true
    }

    /// What follows at `cursor`.
    fn after(&self, cursor: u64) -> Option<ExecEvent> {
        let first = self.pieces.front().map_or(self.next, |(first, ..)| *first);
        if cursor < first {
            return Some(ExecEvent::Gap { cursor: first });
        }
        let found = self.pieces.iter().find(|(start, _, data)| cursor < start + data.len() as u64);
        if let Some((start, stream, data)) = found {
            let skip = usize::try_from(cursor.saturating_sub(*start)).unwrap_or(0);
            let data = data.slice(skip.min(data.len())..);
            let cursor = start + skip as u64 + data.len() as u64;
            return Some(ExecEvent::Output { stream: *stream, cursor, data });
        }
        self.ended.map(ExecEvent::Ended)
    }
}

fn argv(command: &Command) -> Vec<String> {
    match command {
        Command::Argv(argv) => argv.clone(),
        Command::Shell(text) => vec!["/bin/sh".into(), "-c".into(), text.clone()],
    }
}

fn exit(end: &End) -> Exit {
    match end {
        End::Exited { code } => Exit::Exited { code: *code },
        End::Signalled { signal } => Exit::Signalled { signal: *signal },
        End::OutOfMemory => Exit::OutOfMemory,
        End::TimedOut => Exit::TimedOut,
        End::NotStarted { .. } => Exit::Exited { code: NOT_FOUND },
        End::Unknown => Exit::Unknown,
    }
}

fn lost(error: std::io::Error) -> Error {
    Error::Unreachable { detail: format!("its worker does not answer: {error}") }
}

impl Commands {
    pub(crate) async fn start(
        self: &Arc<Self>,
        id: &ProviderId,
        epoch: u64,
        socket: &Path,
        spec: &ExecSpec,
    ) -> Result<ExecRef, Error> {
        let connection = link::dial(socket, Opening::Exec).await.map_err(lost)?;
        self.start_over(id, epoch, connection, spec).await
    }

    /// The same over a connection at whose other end somebody does what a worker does.
    pub(crate) async fn start_over(
        self: &Arc<Self>,
        id: &ProviderId,
        epoch: u64,
        mut connection: UnixStream,
        spec: &ExecSpec,
    ) -> Result<ExecRef, Error> {
        let start = Start {
            argv: argv(&spec.command),
            cwd: spec.cwd.clone(),
            env: spec.env.clone(),
            stdin: spec.stdin,
            terminal: spec.terminal.map(|size| Terminal { columns: size.columns, rows: size.rows }),
            timeout_ms: spec.timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
        };
        let first = Ask::Start(start).encode();
        if first.len() > atoll_protocol::exec::LONGEST {
            return Err(Error::Refused { detail: "the command line and its environment are longer than 1 MB".into() });
        }
        connection.write_all(&first).await.map_err(lost)?;
        let (asks, asked) = mpsc::unbounded_channel();
        let running =
            Arc::new(Running { sandbox: id.clone(), kept: Mutex::default(), changed: watch::Sender::new(0), asks });
        let exec = uuid::Uuid::now_v7().simple().to_string();
        locked(&self.running).insert(exec.clone(), Arc::clone(&running));
        tokio::spawn(Arc::clone(self).carry(exec.clone(), running, connection, asked));
        Ok(ExecRef { sandbox: id.clone(), exec, epoch })
    }

    async fn carry(
        self: Arc<Self>,
        exec: String,
        running: Arc<Running>,
        connection: UnixStream,
        asked: mpsc::UnboundedReceiver<Ask>,
    ) {
        let (read, write) = connection.into_split();
        let exit = tokio::select! {
            exit = listen(&running, read) => exit,
            never = speak(asked, write) => match never {},
        };
        locked(&running.kept).ended = Some(exit);
        running.changed.send_modify(|count| *count += 1);
        tokio::time::sleep(REMEMBERED).await;
        locked(&self.running).remove(&exec);
    }

    fn get(&self, exec: &ExecRef) -> Result<Arc<Running>, Error> {
        let found = locked(&self.running).get(&exec.exec).cloned();
        found.filter(|running| running.sandbox == exec.sandbox).ok_or(Error::Gone)
    }

    /// To one that has ended there is nothing to say, and that is no fault.
    pub(crate) fn ask(&self, exec: &ExecRef, ask: Ask) -> Result<(), Error> {
        drop(self.get(exec)?.asks.send(ask));
        Ok(())
    }

    pub(crate) fn attach(&self, exec: &ExecRef, cursor: u64) -> Result<ExecStream, Error> {
        let running = self.get(exec)?;
        locked(&running.kept).reader = Some(cursor);
        let changed = running.changed.subscribe();
        let reader = Reader { running, changed, cursor, over: false };
        Ok(Box::pin(stream::unfold(reader, |mut reader| async move { Some((reader.next().await?, reader)) })))
    }
}

struct Reader {
    running: Arc<Running>,
    changed: watch::Receiver<u64>,
    cursor: u64,
    over: bool,
}

impl Reader {
    async fn next(&mut self) -> Option<Result<ExecEvent, Error>> {
        loop {
            if self.over {
                return None;
            }
            self.changed.mark_unchanged();
            let event = locked(&self.running.kept).after(self.cursor);
            match event {
                Some(event) => {
                    match &event {
                        ExecEvent::Output { cursor, .. } | ExecEvent::Gap { cursor } => self.cursor = *cursor,
                        ExecEvent::Ended(_) => self.over = true,
                    }
                    locked(&self.running.kept).reader = Some(self.cursor);
                    self.running.changed.send_modify(|count| *count += 1);
                    return Some(Ok(event));
                }
                None => drop(self.changed.changed().await),
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        locked(&self.running.kept).reader = None;
        self.running.changed.send_modify(|count| *count += 1);
    }
}

/// Takes in what the command prints, until it ends. A connection that breaks says nothing of the end.
async fn listen(running: &Running, mut read: OwnedReadHalf) -> Exit {
    let mut changed = running.changed.subscribe();
    let mut buffer = Vec::new();
    let mut piece = vec![0; PIECE];
    loop {
        loop {
            let told = match Tell::decode(&mut buffer) {
                Ok(Some(told)) => told,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "a worker's words about a command can't be read");
                    return Exit::Unknown;
                }
            };
            let (stream, data) = match told {
                Tell::Stdout(data) => (OutputStream::Stdout, data),
                Tell::Stderr(data) => (OutputStream::Stderr, data),
                Tell::Ended(end) => {
                    if let End::NotStarted { error } = &end {
                        let text = format!("can't be run: {error}\n");
                        locked(&running.kept).push(OutputStream::Stderr, text.into());
                    }
                    return exit(&end);
                }
            };
            locked(&running.kept).push(stream, data.into());
            running.changed.send_modify(|count| *count += 1);
        }
        loop {
            changed.mark_unchanged();
            if locked(&running.kept).has_room() {
                break;
            }
            drop(changed.changed().await);
        }
        match read.read(&mut piece).await {
            Ok(0) | Err(_) => return Exit::Unknown,
            Ok(count) => buffer.extend_from_slice(piece.get(..count).unwrap_or_default()),
        }
    }
}

async fn speak(mut asked: mpsc::UnboundedReceiver<Ask>, mut write: OwnedWriteHalf) -> std::convert::Infallible {
    while let Some(ask) = asked.recv().await {
        if write.write_all(&ask.encode()).await.is_err() {
            break;
        }
    }
    // The end is the other half's to tell; this half stays open for it.
    std::future::pending().await
}
