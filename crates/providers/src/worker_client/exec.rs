//! Commands in a sandbox, each over its own connection to the worker. Output is buffered for a while, so that clients
//! can re-attach and several can read at once. A slow reader slows the command down; a departed one does not. A
//! terminal never waits for readers.

use super::command_deadline::CommandDeadline;
use super::command_input::{CommandInput, InputQueue};
use super::link;
use super::output_buffer::OutputBuffer;
use super::pauses::{PauseAwareTimeout, PausedSandboxes};
use crate::lock_state;
use atoll_core::provider::{
    CommandExit, Error, ExecCommand, ExecEvent, ExecInfo, ExecRef, ExecSpec, ExecStream, OutputStream, ProviderId,
    PtySize,
};
use atoll_protocol::exec::{
    ConnectionKind, ExecClientFrame, ExecExit, ExecStart, ExecWorkerFrame, MAX_FRAME_BYTES, TerminalSize,
};
use bytes::Bytes;
use futures_util::stream;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::watch;

/// How long clients can still attach to an ended command.
const ENDED_RETENTION: Duration = Duration::from_secs(600);
/// Memory limit of all ended commands; beyond it, the oldest ones without readers are evicted.
const MAX_ENDED_BYTES: usize = 64 << 20;
/// Estimated memory of a command beside its output and arguments.
const COMMAND_OVERHEAD_BYTES: usize = 1 << 10;
const READ_BYTES: usize = 64 << 10;
/// The shell's exit code for an unknown program.
const EXIT_NOT_FOUND: i32 = 127;

#[derive(Default)]
pub(crate) struct Commands {
    registry: Mutex<CommandRegistry>,
    pauses: PausedSandboxes,
}

#[derive(Default)]
struct CommandRegistry {
    /// By exec id; ids sort by start time.
    all: BTreeMap<String, Arc<RegisteredCommand>>,
    /// Memory of the ended commands. A running sum, so that a new command does not visit all old ones.
    retained_bytes: usize,
}

struct RegisteredCommand {
    sandbox: ProviderId,
    argv: Vec<String>,
    began: Instant,
    /// The size of its terminal, if it has one.
    size: Mutex<Option<PtySize>>,
    output: Mutex<OutputBuffer>,
    /// Counts the changes of `output`.
    changed: watch::Sender<u64>,
    input: CommandInput,
    deadline: CommandDeadline,
    /// Its memory use, set when it ends.
    retained_bytes: OnceLock<usize>,
}

fn command_argv(command: &ExecCommand) -> Vec<String> {
    match command {
        ExecCommand::Argv(argv) => argv.clone(),
        ExecCommand::Shell(text) => vec!["/bin/sh".into(), "-c".into(), text.clone()],
    }
}

fn exit_of_end(end: &ExecExit) -> CommandExit {
    match end {
        ExecExit::Exited { code } => CommandExit::Exited { code: *code },
        ExecExit::Signalled { signal } => CommandExit::Signalled { signal: *signal },
        ExecExit::OutOfMemory => CommandExit::OutOfMemory,
        ExecExit::NotStarted { .. } => CommandExit::Exited { code: EXIT_NOT_FOUND },
        ExecExit::Unknown => CommandExit::Unknown,
    }
}

/// Encodes the start request.
fn encode_start(spec: &ExecSpec) -> Result<Vec<u8>, Error> {
    let start = ExecStart {
        argv: command_argv(&spec.command),
        cwd: spec.cwd.clone(),
        env: spec.env.clone(),
        stdin: spec.has_stdin,
        terminal: spec.terminal.map(|size| TerminalSize { columns: size.columns, rows: size.rows }),
    };
    let first = ExecClientFrame::Start(start).encode();
    if first.len() > MAX_FRAME_BYTES {
        return Err(Error::Refused { detail: "the command line and environment exceed 1 MiB".into() });
    }
    Ok(first)
}

fn worker_unreachable(error: std::io::Error) -> Error {
    Error::Unreachable { detail: format!("the worker does not respond: {error}") }
}

impl Commands {
    pub(crate) async fn start_command(
        self: &Arc<Self>,
        id: &ProviderId,
        socket: &Path,
        spec: &ExecSpec,
    ) -> Result<ExecRef, Error> {
        let connection = link::dial_and_send(socket, ConnectionKind::Exec, &encode_start(spec)?)
            .await
            .map_err(worker_unreachable)?;
        Ok(self.register_command(id, connection, spec))
    }

    /// Like `start`, over a connection whose peer acts as a worker.
    pub(crate) async fn start_on_connection(
        self: &Arc<Self>,
        id: &ProviderId,
        mut connection: UnixStream,
        spec: &ExecSpec,
    ) -> Result<ExecRef, Error> {
        connection.write_all(&encode_start(spec)?).await.map_err(worker_unreachable)?;
        Ok(self.register_command(id, connection, spec))
    }

    /// Registers a started command and reads its output in a task.
    fn register_command(self: &Arc<Self>, id: &ProviderId, connection: UnixStream, spec: &ExecSpec) -> ExecRef {
        let (input, queue) = CommandInput::new(spec.has_stdin, spec.terminal.is_some());
        let running = Arc::new(RegisteredCommand {
            sandbox: id.clone(),
            argv: command_argv(&spec.command),
            began: Instant::now(),
            size: Mutex::new(spec.terminal),
            output: Mutex::new(OutputBuffer::new(spec.terminal.is_some())),
            changed: watch::Sender::new(0),
            input,
            deadline: CommandDeadline::new(spec.timeout),
            retained_bytes: OnceLock::new(),
        });
        let exec = uuid::Uuid::now_v7().simple().to_string();
        lock_state(&self.registry).all.insert(exec.clone(), Arc::clone(&running));
        tokio::spawn(Arc::clone(self).run_to_end(exec.clone(), running, connection, queue));
        ExecRef { sandbox: id.clone(), exec }
    }

    async fn run_to_end(
        self: Arc<Self>,
        exec: String,
        running: Arc<RegisteredCommand>,
        connection: UnixStream,
        queue: InputQueue,
    ) {
        let exit = drive_command(&running, connection, queue).await;
        running.input.discard_input();
        lock_state(&running.output).set_exit(exit);
        lock_state(&self.registry).record_end(&running);
        running.changed.send_modify(|count| *count += 1);
        // From here on only the registry holds it and may evict it sooner.
        drop(running);
        self.evict_oldest(MAX_ENDED_BYTES);
        tokio::time::sleep(ENDED_RETENTION).await;
        lock_state(&self.registry).forget_command(&exec);
    }

    /// Evicts the oldest ended commands until all take at most `most` bytes.
    fn evict_oldest(&self, most: usize) {
        let mut known = lock_state(&self.registry);
        if known.retained_bytes <= most {
            return;
        }
        let CommandRegistry { all, retained_bytes } = &mut *known;
        // By start time, which approximates the order of their ends.
        all.retain(|_, running| {
            let left = running.retained_bytes.get().filter(|_| *retained_bytes > most);
            let left = left.filter(|_| lock_state(&running.output).reader_count() == 0);
            *retained_bytes -= left.unwrap_or(&0);
            left.is_none()
        });
    }

    fn find_command(&self, exec: &ExecRef) -> Result<Arc<RegisteredCommand>, Error> {
        let found = lock_state(&self.registry).all.get(&exec.exec).cloned();
        found.filter(|running| running.sandbox == exec.sandbox).ok_or(Error::Gone)
    }

    pub(crate) fn signal_command(&self, exec: &ExecRef, signal: i32) -> Result<(), Error> {
        self.find_command(exec)?.input.send_control(ExecClientFrame::Signal(signal));
        Ok(())
    }

    /// Writes to stdin, no faster than the command reads.
    pub(crate) async fn write_stdin(&self, exec: &ExecRef, data: &Bytes) -> Result<(), Error> {
        self.find_command(exec)?.input.write(data).await
    }

    pub(crate) fn close_stdin(&self, exec: &ExecRef) -> Result<(), Error> {
        self.find_command(exec)?.input.close()
    }

    pub(crate) fn resize_terminal(&self, exec: &ExecRef, size: PtySize) -> Result<(), Error> {
        let running = self.find_command(exec)?;
        {
            let mut known = lock_state(&running.size);
            if known.is_none() {
                return Err(Error::Refused { detail: "the command has no terminal".into() });
            }
            if size.columns == 0 || size.rows == 0 {
                return Err(Error::Refused { detail: "a terminal needs at least one column and one row".into() });
            }
            *known = Some(size);
        }
        running.input.send_control(ExecClientFrame::Resize(TerminalSize { columns: size.columns, rows: size.rows }));
        Ok(())
    }

    /// Runs `pause` and stops the deadlines of the sandbox's commands from its start.
    pub(crate) async fn pause_with<T>(
        &self,
        sandbox: &ProviderId,
        pause: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.for_each_deadline(sandbox, CommandDeadline::pause);
        self.pauses.mark_paused(sandbox);
        let paused = pause.await;
        match &paused {
            // Also those of commands that started meanwhile.
            Ok(_) => self.for_each_deadline(sandbox, CommandDeadline::pause),
            Err(_) => self.mark_resumed(sandbox),
        }
        paused
    }

    pub(crate) fn mark_resumed(&self, sandbox: &ProviderId) {
        self.for_each_deadline(sandbox, CommandDeadline::resume);
        self.pauses.mark_resumed(sandbox);
    }

    /// Records a sandbox that an earlier server paused.
    pub(crate) fn mark_paused(&self, sandbox: &ProviderId) {
        self.pauses.mark_paused(sandbox);
    }

    pub(crate) fn is_paused(&self, sandbox: &ProviderId) -> bool {
        self.pauses.is_paused(sandbox)
    }

    /// The time-out for file transfers, which stops while the sandbox is paused.
    pub(crate) fn timeout_for(&self, sandbox: &ProviderId) -> PauseAwareTimeout {
        self.pauses.timeout_for(sandbox)
    }

    pub(crate) fn forget_sandbox(&self, sandbox: &ProviderId) {
        self.pauses.forget_sandbox(sandbox);
    }

    fn for_each_deadline(&self, sandbox: &ProviderId, change: fn(&CommandDeadline)) {
        let known = lock_state(&self.registry);
        known.all.values().filter(|running| running.sandbox == *sandbox).for_each(|running| change(&running.deadline));
    }

    /// Lists a sandbox's commands that clients can attach to, oldest first.
    pub(crate) fn list_commands(&self, sandbox: &ProviderId) -> Vec<ExecInfo> {
        let known = lock_state(&self.registry);
        let of_it = known.all.iter().filter(|(_, running)| running.sandbox == *sandbox);
        of_it.map(|(exec, running)| running.describe_command(exec)).collect()
    }

    pub(crate) fn attach_reader(self: &Arc<Self>, exec: &ExecRef, cursor: u64) -> Result<ExecStream, Error> {
        let running = self.find_command(exec)?;
        let number = lock_state(&running.output).add_reader(cursor);
        let changed = running.changed.subscribe();
        let reader = OutputReader { all: Arc::clone(self), running, changed, number, cursor, is_over: false };
        Ok(Box::pin(stream::unfold(reader, |mut reader| async move { Some((reader.next_event().await?, reader)) })))
    }
}

impl CommandRegistry {
    fn record_end(&mut self, running: &RegisteredCommand) {
        let words: usize = running.argv.iter().map(String::len).sum();
        let left = lock_state(&running.output).bytes() + words + COMMAND_OVERHEAD_BYTES;
        if running.retained_bytes.set(left).is_ok() {
            self.retained_bytes += left;
        }
    }

    fn forget_command(&mut self, exec: &str) {
        let left = self.all.remove(exec).and_then(|running| running.retained_bytes.get().copied());
        self.retained_bytes -= left.unwrap_or(0);
    }
}

impl RegisteredCommand {
    fn describe_command(&self, exec: &str) -> ExecInfo {
        let output = lock_state(&self.output);
        ExecInfo {
            exec: exec.to_owned(),
            argv: self.argv.clone(),
            terminal: *lock_state(&self.size),
            age: self.began.elapsed(),
            cursor: output.end_cursor(),
            readers: output.reader_count(),
            ended: output.exit(),
        }
    }
}

struct OutputReader {
    all: Arc<Commands>,
    running: Arc<RegisteredCommand>,
    changed: watch::Receiver<u64>,
    number: u64,
    cursor: u64,
    is_over: bool,
}

impl OutputReader {
    async fn next_event(&mut self) -> Option<Result<ExecEvent, Error>> {
        loop {
            if self.is_over {
                return None;
            }
            self.changed.mark_unchanged();
            let event = lock_state(&self.running.output).event_after(self.cursor);
            match event {
                Some(event) => {
                    match &event {
                        ExecEvent::Output { cursor, .. } | ExecEvent::Gap { cursor } => self.cursor = *cursor,
                        ExecEvent::Ended(_) => self.is_over = true,
                    }
                    lock_state(&self.running.output).advance_reader(self.number, self.cursor);
                    self.running.changed.send_modify(|count| *count += 1);
                    return Some(Ok(event));
                }
                None => drop(self.changed.changed().await),
            }
        }
    }
}

impl Drop for OutputReader {
    fn drop(&mut self) {
        lock_state(&self.running.output).remove_reader(self.number);
        self.running.changed.send_modify(|count| *count += 1);
        if lock_state(&self.running.output).exit().is_some() {
            self.all.evict_oldest(MAX_ENDED_BYTES);
        }
    }
}

async fn drive_command(running: &RegisteredCommand, connection: UnixStream, queue: InputQueue) -> CommandExit {
    let (read, write) = connection.into_split();
    let listening = read_output(running, read);
    tokio::pin!(listening);
    tokio::select! {
        exit = &mut listening => exit,
        never = running.input.send_queued(queue, write) => match never {},
        // Sending has stopped, so the worker ends the command and reports the rest.
        () = running.deadline.wait_until_expired() => {
            listening.await;
            CommandExit::TimedOut
        }
    }
}

/// Buffers the command's output until it ends. A broken connection leaves the exit unknown.
async fn read_output(running: &RegisteredCommand, mut read: OwnedReadHalf) -> CommandExit {
    let mut changed = running.changed.subscribe();
    let mut buffer = Vec::new();
    let mut piece = vec![0; READ_BYTES];
    loop {
        loop {
            let frame = match ExecWorkerFrame::decode(&mut buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot parse a worker's message about a command");
                    return CommandExit::Unknown;
                }
            };
            let (stream, data) = match frame {
                ExecWorkerFrame::Stdout(data) => (OutputStream::Stdout, data),
                ExecWorkerFrame::Stderr(data) => (OutputStream::Stderr, data),
                ExecWorkerFrame::StdinConsumed(count) => {
                    running.input.acknowledge_bytes(count);
                    continue;
                }
                ExecWorkerFrame::Exited(end) => {
                    if let ExecExit::NotStarted { error } = &end {
                        let text = format!(
                            "cannot run: {error}
"
                        );
                        lock_state(&running.output).push(OutputStream::Stderr, text.as_bytes());
                    }
                    return exit_of_end(&end);
                }
            };
            lock_state(&running.output).push(stream, &data);
            running.changed.send_modify(|count| *count += 1);
        }
        loop {
            changed.mark_unchanged();
            if lock_state(&running.output).make_room() {
                break;
            }
            drop(changed.changed().await);
        }
        match read.read(&mut piece).await {
            Ok(0) | Err(_) => return CommandExit::Unknown,
            Ok(count) => buffer.extend_from_slice(piece.get(..count).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_ended_command(commands: &Commands, name: &str, printed: usize) {
        let (input, _) = CommandInput::new(false, false);
        let mut output = OutputBuffer::new(false);
        output.push(OutputStream::Stdout, &vec![b'x'; printed]);
        output.set_exit(CommandExit::Exited { code: 0 });
        let running = RegisteredCommand {
            sandbox: ProviderId("one".into()),
            argv: vec!["yes".into()],
            began: Instant::now(),
            size: Mutex::new(None),
            output: Mutex::new(output),
            changed: watch::Sender::new(0),
            input,
            deadline: CommandDeadline::new(None),
            retained_bytes: OnceLock::new(),
        };
        let mut known = lock_state(&commands.registry);
        known.record_end(&running);
        known.all.insert(name.to_owned(), Arc::new(running));
    }

    #[tokio::test]
    async fn ended_commands_share_one_memory_limit() {
        let commands = Arc::new(Commands::default());
        let (id, named) = (ProviderId("one".into()), |exec: &str| ExecRef {
            sandbox: ProviderId("one".into()),
            exec: exec.to_owned(),
        });
        for name in ["a", "b", "c", "d"] {
            add_ended_command(&commands, name, 1 << 20);
        }
        let reader = commands.attach_reader(&named("a"), 0).unwrap();
        commands.evict_oldest(9 << 20);
        assert_eq!(commands.list_commands(&id).len(), 4);
        commands.evict_oldest(3 << 20);
        let left: Vec<String> = commands.list_commands(&id).into_iter().map(|info| info.exec).collect();
        assert_eq!(left, ["a", "d"], "evicts the oldest, but none with a reader");
        drop(reader);
        commands.evict_oldest(2 << 20);
        assert!(commands.find_command(&named("a")).is_err() && commands.find_command(&named("d")).is_ok());
        lock_state(&commands.registry).forget_command("a");
        lock_state(&commands.registry).forget_command("d");
        assert_eq!(lock_state(&commands.registry).retained_bytes, 0, "everything added was removed");
    }
}
