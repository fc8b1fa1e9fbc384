//! Runs one command per connection: input and signals come in frames, output and the exit go back in frames.
//!
//! Input, output and the exit are handled concurrently, so that none delays another. A closed connection kills the
//! command.

use crate::environment::Environment;
use crate::link::Connection;
use crate::memory_counters::MemoryCounters;
use crate::spawner::{ExitStatus, ProgramSpec, SpawnedProcess, Spawner, StdStreams};
use atoll_protocol::exec::{ExecClientFrame, ExecExit, ExecStart, ExecWorkerFrame};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

mod stdin;
mod stdout;
mod terminal;

use stdin::{FrameReader, StdinTarget};
use stdout::OutputForwarder;
use terminal::Terminal;

/// Default working directory of a command.
pub const WORKSPACE: &str = "/workspace";
/// Time limit for the `Start` frame.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// The services that commands use.
#[derive(Debug, Clone)]
pub struct Exec {
    pub spawner: Spawner,
    pub environment: Arc<Environment>,
    pub memory: Arc<MemoryCounters>,
    pub cwd: PathBuf,
}

pub async fn serve_exec(mut connection: Connection, exec: Exec) {
    let (mut reader, mut writer) = connection.stream.split();
    let mut frames = FrameReader::default();
    let start = match timeout(START_TIMEOUT, frames.next_frame(&mut reader)).await {
        Ok(Ok(Some(ExecClientFrame::Start(start)))) => start,
        Ok(Ok(Some(
            ExecClientFrame::Stdin(_)
            | ExecClientFrame::CloseStdin
            | ExecClientFrame::Signal(_)
            | ExecClientFrame::Resize(_),
        ))) => {
            return send_end(&mut writer, ExecExit::NotStarted { error: "the first frame must be `start`".to_owned() })
                .await;
        }
        Ok(Err(error)) => return send_end(&mut writer, ExecExit::NotStarted { error: error.to_string() }).await,
        // The connection is closed, or nothing came in time.
        Ok(Ok(None)) | Err(_) => return,
    };
    let running = match RunningCommand::start(&exec, start).await {
        Ok(running) => running,
        Err(error) => return send_end(&mut writer, ExecExit::NotStarted { error }).await,
    };
    if let Some(ended) = running.serve_until_exit(frames, &mut reader, &mut writer).await {
        send_end(&mut writer, ended).await;
    }
}

async fn send_end(writer: &mut WriteHalf<'_>, ended: ExecExit) {
    // A failed send means that the server is gone.
    drop(writer.write_all(&ExecWorkerFrame::Exited(ended).encode()).await);
    drop(writer.shutdown().await);
}

struct RunningCommand {
    process: SpawnedProcess,
    input: Option<StdinTarget>,
    output: OutputForwarder,
    memory: Arc<MemoryCounters>,
    kills_before: Option<u64>,
}

impl RunningCommand {
    async fn start(exec: &Exec, start: ExecStart) -> Result<Self, String> {
        let kills_before = exec.memory.kills();
        let (process, input, output) = match start.terminal {
            Some(_) => start_on_terminal(exec, start).await?,
            None => start_with_pipes(exec, start).await?,
        };
        Ok(Self { process, input, output, memory: exec.memory.clone(), kills_before })
    }

    /// Serves the command until its exit; `None` if the connection is lost.
    async fn serve_until_exit(
        mut self,
        frames: FrameReader,
        reader: &mut ReadHalf<'_>,
        writer: &mut WriteHalf<'_>,
    ) -> Option<ExecExit> {
        let (signals, mut requested_signals) = mpsc::unbounded_channel();
        let (exit_notifier, ended) = oneshot::channel();
        let (consumed, consumed_counts) = mpsc::unbounded_channel();
        let output = self.output.forward_output(writer, ended, consumed_counts);
        let input = stdin::forward_input(frames, reader, self.input, signals, consumed);
        tokio::pin!(output, input);
        let (mut exit_notifier, mut ending, mut input_open) = (Some(exit_notifier), ExitStatus::Lost, true);
        let output_sent = loop {
            tokio::select! {
                how = self.process.wait_for_exit(), if exit_notifier.is_some() => {
                    ending = how;
                    exit_notifier = None;
                }
                // Ends after the command, when all output is sent.
                sent = &mut output => break sent.is_ok(),
                // The server closed its side; it may still read the exit.
                () = &mut input, if input_open => {
                    input_open = false;
                    self.process.kill();
                }
                Some(signal) = requested_signals.recv() => match signal {
                    signal if signal == Signal::KILL.as_raw() => self.process.kill(),
                    signal => self.process.signal(signal),
                },
            }
        };
        if !output_sent {
            self.process.kill();
            return None;
        }
        Some(match ending {
            ending if self.memory.killed_process(self.kills_before, ending) => ExecExit::OutOfMemory,
            ExitStatus::Exited(code) => ExecExit::Exited { code },
            ExitStatus::Signalled(signal) => ExecExit::Signalled { signal },
            ExitStatus::Lost => ExecExit::Unknown,
        })
    }
}

type StartedCommand = (SpawnedProcess, Option<StdinTarget>, OutputForwarder);

async fn start_with_pipes(exec: &Exec, start: ExecStart) -> Result<StartedCommand, String> {
    let failed = |error: io::Error| format!("failed to create its pipes: {error}");
    let (stdout, to_stdout) = stdout::make_pipe().map_err(failed)?;
    let (stderr, to_stderr) = stdout::make_pipe().map_err(failed)?;
    let (from_input, input) = if start.stdin {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        (Some(reader), Some(StdinTarget::Pipe(Sender::from_owned_fd(writer).map_err(failed)?)))
    } else {
        (None, None)
    };
    let env = exec.environment.for_command(&start.env);
    let streams = StdStreams { input: from_input, stdout: to_stdout, stderr: to_stderr };
    let process =
        exec.spawner.spawn(program_spec(exec, start, env), streams).await.map_err(|error| error.to_string())?;
    Ok((process, input, OutputForwarder::from_pipes(stdout, stderr)))
}

async fn start_on_terminal(exec: &Exec, start: ExecStart) -> Result<StartedCommand, String> {
    let size = start.terminal.filter(|size| size.columns > 0 && size.rows > 0);
    let size = size.ok_or("a terminal needs at least one column and one row")?;
    let env = exec.environment.for_terminal(&start.env);
    let started = exec.spawner.spawn_on_terminal(program_spec(exec, start, env), size).await;
    let (process, descriptor) = started.map_err(|error| error.to_string())?;
    let terminal = Terminal::new(descriptor).map_err(|error| {
        process.kill();
        format!("failed to use its terminal: {error}")
    })?;
    Ok((process, Some(StdinTarget::Terminal(terminal.clone())), OutputForwarder::from_terminal(terminal)))
}

fn program_spec(exec: &Exec, start: ExecStart, env: Vec<(String, String)>) -> ProgramSpec {
    let cwd = start.cwd.map_or_else(|| exec.cwd.clone(), |cwd| exec.cwd.join(cwd));
    ProgramSpec { argv: start.argv, cwd, env, kill_group_on_exit: false, terminal: None, files: Vec::new() }
}
