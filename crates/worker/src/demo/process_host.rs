//! The demo agent's environment in a real sandbox. Lines, the end of standard input and the end of commands all arrive
//! through one channel, so that the agent can wait for any of them. Every wait blocks the thread.

use super::{failures, files};
use atoll_core::provider::CommandExit;
use atoll_drivers::demo::agent::{CommandEnd, DemoFailure, DemoHost, HostInput, MAX_OUTPUT};
use rustix::process::{Pid, Signal, kill_process_group};
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum wait for background processes that hold a command's output open.
const OUTPUT_GRACE: Duration = Duration::from_millis(100);

pub(super) struct ProcessHost {
    start: Instant,
    sender: Sender<HostInput>,
    incoming: Receiver<HostInput>,
    reading_stopped: Arc<AtomicBool>,
    /// The process group of the running command.
    command: Option<Pid>,
}

impl ProcessHost {
    pub(super) fn start(input: impl Read + Send + 'static) -> std::io::Result<Self> {
        let (sender, incoming) = channel();
        let reading_stopped = Arc::new(AtomicBool::new(false));
        let (lines, stopped) = (sender.clone(), reading_stopped.clone());
        std::thread::Builder::new().name("stdin".into()).spawn(move || read_lines(input, &lines, &stopped))?;
        Ok(Self { start: Instant::now(), sender, incoming, reading_stopped, command: None })
    }

    fn spawn_shell(&mut self, command: &str) -> std::io::Result<()> {
        let (reader, writer) = std::io::pipe()?;
        let child = Command::new("/bin/sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .process_group(0)
            .spawn()?;
        self.command = Some(Pid::from_child(&child));
        let (output, ended) = (collect_output(reader)?, self.sender.clone());
        std::thread::Builder::new().name("wait".into()).spawn(move || {
            let exit = wait_for_exit(child);
            // Fails only if the agent is ending.
            drop(ended.send(HostInput::CommandEnded(output.into_end(exit))));
        })?;
        Ok(())
    }
}

impl DemoHost for ProcessHost {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    async fn next_input(&mut self, deadline: Option<Duration>) -> Option<HostInput> {
        match deadline {
            Some(deadline) => self.incoming.recv_timeout(deadline.saturating_sub(self.now())).ok(),
            None => self.incoming.recv().ok(),
        }
    }

    fn write_line(&mut self, line: &[u8]) {
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(line).and_then(|()| stdout.write_all(b"\n")).and_then(|()| stdout.flush());
        if written.is_err() {
            // The reader is gone.
            std::process::exit(1);
        }
    }

    fn list_files(&self) -> Vec<String> {
        files::list_files(Path::new("."))
    }

    fn read_file(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }

    fn write_file(&mut self, path: &str, content: &str) -> Result<(), String> {
        let parent = Path::new(path).parent().map_or(Ok(()), std::fs::create_dir_all);
        parent.and_then(|()| std::fs::write(path, content)).map_err(|error| error.to_string())
    }

    fn has_program(&self, program: &str) -> bool {
        let path = std::env::var("PATH").unwrap_or_default();
        path.split(':').any(|dir| Path::new(dir).join(program).is_file())
    }

    fn is_git_repository(&self) -> bool {
        Path::new(".git").exists()
    }

    fn start_command(&mut self, command: &str) -> Result<(), String> {
        self.spawn_shell(command).map_err(|error| error.to_string())
    }

    fn kill_command(&mut self) {
        if let Some(group) = self.command {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    async fn fail(&mut self, failure: DemoFailure) -> Infallible {
        match failure {
            DemoFailure::Crash => failures::abort_process(),
            DemoFailure::OutOfMemory => failures::exhaust_memory(),
            DemoFailure::Hang => {
                self.reading_stopped.store(true, Ordering::Relaxed);
                failures::hang_forever()
            }
        }
    }
}

fn read_lines(input: impl Read, sender: &Sender<HostInput>, stopped: &AtomicBool) {
    for line in BufReader::new(input).lines() {
        let Ok(line) = line else { break };
        // Ignores unknown lines of a newer worker.
        if let Ok(line) = serde_json::from_str(&line)
            && sender.send(HostInput::Line(line)).is_err()
        {
            return;
        }
        while stopped.load(Ordering::Relaxed) {
            std::thread::park();
        }
    }
    drop(sender.send(HostInput::Closed));
}

fn wait_for_exit(mut child: Child) -> CommandExit {
    match child.wait().map(|status| (status.code(), status.signal())) {
        Ok((Some(code), _)) => CommandExit::Exited { code },
        Ok((None, Some(signal))) => CommandExit::Signalled { signal },
        Ok((None, None)) | Err(_) => CommandExit::Unknown,
    }
}

/// Output of a command.
struct CommandOutput {
    output: Arc<Mutex<KeptOutput>>,
    /// Closes at the end of the output.
    open: Receiver<()>,
}

/// The start of a command's output.
#[derive(Default)]
struct KeptOutput {
    start: Vec<u8>,
    /// Size of the whole output.
    bytes: usize,
}

impl CommandOutput {
    fn into_end(self, exit: CommandExit) -> CommandEnd {
        // A background process may hold the output open.
        let _ = self.open.recv_timeout(OUTPUT_GRACE);
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let (text, cut) = (String::from_utf8_lossy(&output.start).into_owned(), output.bytes - output.start.len());
        let mut end = CommandEnd::new(exit, text);
        end.bytes += cut as u64;
        end
    }
}

/// Reads all output and keeps its start, so that the command does not block on a full pipe.
fn collect_output(mut reader: impl Read + Send + 'static) -> std::io::Result<CommandOutput> {
    let output = Arc::new(Mutex::new(KeptOutput::default()));
    let (buffer, (closed, open)) = (output.clone(), channel::<()>());
    std::thread::Builder::new().name("output".into()).spawn(move || {
        let mut chunk = vec![0; 8192];
        while let Ok(length) = reader.read(&mut chunk)
            && length > 0
        {
            let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
            let room = MAX_OUTPUT.saturating_sub(buffer.start.len()).min(length);
            buffer.start.extend_from_slice(&chunk[..room]);
            buffer.bytes = buffer.bytes.saturating_add(length);
        }
        drop(closed);
    })?;
    Ok(CommandOutput { output, open })
}
