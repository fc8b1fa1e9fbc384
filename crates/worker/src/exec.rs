//! One command for one connection: what the server asks comes in frames, what the command says goes back in frames.
//!
//! Three things go on beside each other, so that none can hold up another: input to the command, its output to the
//! connection, and waiting for its end. A connection on which nobody speaks any more kills what it started.

use crate::environment::Environment;
use crate::hands::{Ending, Handle, Process, Program, Streams};
use crate::link::Connection;
use crate::memory::Memory;
use atoll_protocol::exec::{Ask, End, Start, Tell};
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

mod input;
mod output;
mod terminal;

use input::{Frames, Input};
use output::Output;
use terminal::Terminal;

/// Where a command runs that does not say.
pub const WORKSPACE: &str = "/workspace";
/// For the whole of `Start` to arrive.
const OPENING: Duration = Duration::from_secs(10);

/// What every exec needs.
#[derive(Debug, Clone)]
pub struct Exec {
    pub hands: Handle,
    pub environment: Arc<Environment>,
    pub memory: Arc<Memory>,
    pub cwd: PathBuf,
}

pub async fn serve(mut connection: Connection, exec: Exec) {
    let (mut reader, mut writer) = connection.stream.split();
    let mut frames = Frames::default();
    let start = match timeout(OPENING, frames.next(&mut reader)).await {
        Ok(Ok(Some(Ask::Start(start)))) => start,
        Ok(Ok(Some(Ask::Stdin(_) | Ask::CloseStdin | Ask::Signal(_) | Ask::Resize(_)))) => {
            return end(&mut writer, End::NotStarted { error: "the first frame must say what to run".to_owned() })
                .await;
        }
        Ok(Err(error)) => return end(&mut writer, End::NotStarted { error: error.to_string() }).await,
        // The connection was closed, or nothing came.
        Ok(Ok(None)) | Err(_) => return,
    };
    let running = match Running::start(&exec, start).await {
        Ok(running) => running,
        Err(error) => return end(&mut writer, End::NotStarted { error }).await,
    };
    if let Some(ended) = running.attend(frames, &mut reader, &mut writer).await {
        end(&mut writer, ended).await;
    }
}

async fn end(writer: &mut WriteHalf<'_>, ended: End) {
    // If nobody hears it, nobody wants to know.
    drop(writer.write_all(&Tell::Ended(ended).encode()).await);
    drop(writer.shutdown().await);
}

struct Running {
    process: Process,
    input: Option<Input>,
    output: Output,
    memory: Arc<Memory>,
    kills_before: Option<u64>,
}

impl Running {
    async fn start(exec: &Exec, start: Start) -> Result<Self, String> {
        let kills_before = exec.memory.kills();
        let (process, input, output) = match start.terminal {
            Some(_) => on_terminal(exec, start).await?,
            None => with_pipes(exec, start).await?,
        };
        Ok(Self { process, input, output, memory: exec.memory.clone(), kills_before })
    }

    /// Nothing if the connection was lost.
    async fn attend(mut self, frames: Frames, reader: &mut ReadHalf<'_>, writer: &mut WriteHalf<'_>) -> Option<End> {
        let (signals, mut asked) = mpsc::unbounded_channel();
        let (at_its_end, ended) = oneshot::channel();
        let (taken, of_input) = mpsc::unbounded_channel();
        let output = self.output.pass_on(writer, ended, of_input);
        let input = input::feed(frames, reader, self.input, signals, taken);
        tokio::pin!(output, input);
        let (mut at_its_end, mut ending, mut wanted) = (Some(at_its_end), Ending::Lost, true);
        let told = loop {
            tokio::select! {
                how = self.process.ended(), if at_its_end.is_some() => {
                    ending = how;
                    at_its_end = None;
                }
                // Ends after the command, when all that it wrote is sent.
                told = &mut output => break told.is_ok(),
                // Nobody speaks any more. Whoever still listens is told how it ended.
                () = &mut input, if wanted => {
                    wanted = false;
                    self.process.kill();
                }
                Some(signal) = asked.recv() => match signal {
                    signal if signal == Signal::KILL.as_raw() => self.process.kill(),
                    signal => self.process.signal(signal),
                },
            }
        };
        if !told {
            self.process.kill();
            return None;
        }
        Some(match ending {
            ending if self.memory.ended_it(self.kills_before, ending) => End::OutOfMemory,
            Ending::Exited(code) => End::Exited { code },
            Ending::Signalled(signal) => End::Signalled { signal },
            Ending::Lost => End::Unknown,
        })
    }
}

type Begun = (Process, Option<Input>, Output);

async fn with_pipes(exec: &Exec, start: Start) -> Result<Begun, String> {
    let failed = |error: io::Error| format!("failed to make its pipes: {error}");
    let (stdout, to_stdout) = output::pipe().map_err(failed)?;
    let (stderr, to_stderr) = output::pipe().map_err(failed)?;
    let (from_input, input) = if start.stdin {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        (Some(theirs), Some(Input::Pipe(Sender::from_owned_fd(ours).map_err(failed)?)))
    } else {
        (None, None)
    };
    let env = exec.environment.of_command(&start.env);
    let streams = Streams { input: from_input, stdout: to_stdout, stderr: to_stderr };
    let process = exec.hands.spawn(program(exec, start, env), streams).await.map_err(|error| error.to_string())?;
    Ok((process, input, Output::of_pipes(stdout, stderr)))
}

async fn on_terminal(exec: &Exec, start: Start) -> Result<Begun, String> {
    let size = start.terminal.filter(|size| size.columns > 0 && size.rows > 0);
    let size = size.ok_or("a terminal has at least one column and one row")?;
    let env = exec.environment.of_terminal(&start.env);
    let started = exec.hands.spawn_on_terminal(program(exec, start, env), size).await;
    let (process, descriptor) = started.map_err(|error| error.to_string())?;
    let terminal = Terminal::new(descriptor).map_err(|error| {
        process.kill();
        format!("failed to use its terminal: {error}")
    })?;
    Ok((process, Some(Input::Terminal(terminal.clone())), Output::of_terminal(terminal)))
}

fn program(exec: &Exec, start: Start, env: Vec<(String, String)>) -> Program {
    let cwd = start.cwd.map_or_else(|| exec.cwd.clone(), |cwd| exec.cwd.join(cwd));
    Program { argv: start.argv, cwd, env, whole: false, terminal: None, files: Vec::new() }
}
