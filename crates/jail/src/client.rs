//! The server's client of its launcher.

mod options;
mod running;
mod snapshots;

pub use options::LauncherOptions;
pub use running::{KillHandle, RunningProgram};

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::Error;
use crate::host_report::HostReport;
use crate::launcher_spawner;
use crate::sandbox::{CpuTimes, DiskUsage, Exit, SandboxInfo, SandboxSpec, SandboxUsage};
use crate::wire::{self, Answer, LauncherMessage, MAX_PACKET, Request, RequestPacket};

/// A running launcher process. The methods block and may be called from several threads.
///
/// Dropping it ends the launcher but not the sandboxes: the next launcher with the same data directory adopts them.
#[derive(Debug)]
pub struct Launcher {
    shared: Arc<Connection>,
    reader: Option<JoinHandle<()>>,
    options: LauncherOptions,
}

/// The exit of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerExit {
    pub name: String,
    pub exit: Exit,
}

struct Connection {
    socket: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last_id: u64,
    has_ended: bool,
    pending: HashMap<u64, Sender<Result<Answer, Error>>>,
    runs: HashMap<u64, running::ExitSender>,
    exit_listeners: Vec<Sender<WorkerExit>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Shared").field("socket", &self.socket).finish_non_exhaustive()
    }
}

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than the launcher's own time-out for killed processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);
/// Measuring a large workspace takes long.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(300);
/// Removing a large workspace takes longer.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(600);

impl Launcher {
    /// Starts the launcher process and waits until it is ready.
    pub fn start(options: LauncherOptions) -> Result<Self, Error> {
        let (socket, child) = match &options.spawner {
            Some(keeper) => (keeper.start_launcher()?, None),
            None => {
                let failed = |source: std::io::Error| Error::LauncherStartFailed {
                    path: options.exe.clone(),
                    source: source.into(),
                };
                let (socket, launcher_socket) = wire::socket_pair()?;
                let child = launcher_spawner::spawn_with_socket(
                    options.exe.clone(),
                    &options.args,
                    &options.env,
                    launcher_socket,
                )
                .map_err(failed)?;
                (socket, Some(child))
            }
        };
        let settings = if child.is_some() { Some(options.to_settings()?) } else { None };
        let shared = Arc::new(Connection { socket, state: Mutex::default() });
        let ready = shared.register_request(0)?;
        let reader = thread::Builder::new()
            .name("launcher".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.read_messages(child)
            })
            .map_err(|error| Error::LauncherStartFailed { path: options.exe.clone(), source: error.into() })?;
        let launcher = Self { shared, reader: Some(reader), options };
        if let Some(settings) = settings {
            wire::send_packet(launcher.shared.socket.as_fd(), &settings, &[])?;
        }
        await_answer(&ready, "start", REQUEST_TIMEOUT)?;
        Ok(launcher)
    }

    /// True if the launcher process has ended. The sandboxes keep running, and another launcher with the same options
    /// adopts them.
    pub fn has_ended(&self) -> bool {
        self.shared.lock_state().has_ended
    }

    pub fn options(&self) -> &LauncherOptions {
        &self.options
    }

    /// Reports what this host supports, by creating a test sandbox.
    pub fn probe_host(&self) -> Result<HostReport, Error> {
        match self.send_and_wait(Request::Probe, KILL_TIMEOUT)? {
            Answer::Report(report) => Ok(*report),
            other => Err(unexpected_answer(&other)),
        }
    }

    /// Creates a sandbox's directories and record. An existing sandbox stays unchanged.
    pub fn prepare_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxInfo, Error> {
        self.request_info(Request::Prepare(spec.clone()))
    }

    /// Starts the worker of a prepared sandbox as its init process.
    pub fn start_worker(&self, name: &str) -> Result<SandboxInfo, Error> {
        self.request_info(Request::StartWorker { name: name.to_owned() })
    }

    /// Runs one program as `agent`, in its own namespaces over the sandbox's files.
    pub fn run_program(
        &self,
        name: &str,
        argv: &[String],
        stdin: OwnedFd,
        stdout: OwnedFd,
        stderr: OwnedFd,
    ) -> Result<RunningProgram, Error> {
        let request = Request::Run { name: name.to_owned(), argv: argv.to_vec() };
        self.start_program(request, [stdin, stdout, stderr])
    }

    pub fn find_sandbox(&self, name: &str) -> Result<Option<SandboxInfo>, Error> {
        match self.request_info(Request::Find { name: name.to_owned() }) {
            Ok(info) => Ok(Some(info)),
            Err(Error::UnknownSandbox { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists all sandboxes except incomplete ones.
    pub fn list_sandboxes(&self) -> Result<Vec<SandboxInfo>, Error> {
        self.request_all(Request::List, |answer| match answer {
            Answer::SandboxItem(info) => Ok(*info),
            other => Err(other),
        })
    }

    /// Kills every process of a sandbox and waits until they are gone. The files stay.
    pub fn kill_sandbox(&self, name: &str) -> Result<(), Error> {
        self.request_done(Request::Kill { name: name.to_owned() }, KILL_TIMEOUT)
    }

    /// Destroys a sandbox, complete or not, with all its files. A missing sandbox is no error.
    pub fn destroy_sandbox(&self, name: &str) -> Result<(), Error> {
        self.request_done(Request::Destroy { name: name.to_owned() }, DESTROY_TIMEOUT)
    }

    /// Pauses all processes of a sandbox except its worker, and waits until they are stopped. Processes that start
    /// later stop too. Pausing a paused sandbox is no error.
    pub fn pause_sandbox(&self, name: &str) -> Result<SandboxInfo, Error> {
        self.request_info(Request::Pause { name: name.to_owned() })
    }

    /// Resumes the processes of a paused sandbox.
    pub fn resume_sandbox(&self, name: &str) -> Result<SandboxInfo, Error> {
        self.request_info(Request::Resume { name: name.to_owned() })
    }

    /// Gives the server access to the spool of a dead worker, if server and launcher are different users.
    pub fn release_spool(&self, name: &str) -> Result<SandboxInfo, Error> {
        self.request_info(Request::ReleaseSpool { name: name.to_owned() })
    }

    /// Reads a sandbox's current or last resource usage.
    pub fn read_usage(&self, name: &str) -> Result<SandboxUsage, Error> {
        match self.send_and_wait(Request::Usage { name: name.to_owned() }, REQUEST_TIMEOUT)? {
            Answer::Usage(usage) => Ok(usage),
            other => Err(unexpected_answer(&other)),
        }
    }

    /// Measures a sandbox's disk usage now.
    pub fn measure_disk(&self, name: &str) -> Result<DiskUsage, Error> {
        match self.send_and_wait(Request::MeasureDisk { name: name.to_owned() }, MEASURE_TIMEOUT)? {
            Answer::Disk(usage) => Ok(usage),
            other => Err(unexpected_answer(&other)),
        }
    }

    /// Kills the processes of a sandbox that have a file open for writing, or with `kill_all` all but the worker's
    /// own; returns their number.
    pub fn kill_writers(&self, name: &str, kill_all: bool) -> Result<u32, Error> {
        match self.send_and_wait(Request::KillWriters { name: name.to_owned(), kill_all }, KILL_TIMEOUT)? {
            Answer::Killed(count) => Ok(count),
            other => Err(unexpected_answer(&other)),
        }
    }

    /// Reads the CPU time of every running sandbox.
    pub fn read_cpu_times(&self) -> Result<Vec<CpuTimes>, Error> {
        let chunks = self.request_all(Request::CpuTimes, |answer| match answer {
            Answer::CpuTimes(chunk) => Ok(chunk),
            other => Err(other),
        })?;
        Ok(chunks.into_iter().flatten().collect())
    }

    /// Subscribes to worker exits from now on. Nothing arrives after the launcher has ended.
    pub fn subscribe_worker_exits(&self) -> Receiver<WorkerExit> {
        let (sender, receiver) = channel();
        let mut state = self.shared.lock_state();
        if !state.has_ended {
            state.exit_listeners.push(sender);
        }
        receiver
    }

    fn request_info(&self, request: Request) -> Result<SandboxInfo, Error> {
        match self.send_and_wait(request, REQUEST_TIMEOUT)? {
            Answer::Sandbox(info) => Ok(*info),
            other => Err(unexpected_answer(&other)),
        }
    }

    fn request_done(&self, request: Request, within: Duration) -> Result<(), Error> {
        match self.send_and_wait(request, within)? {
            Answer::Done => Ok(()),
            other => Err(unexpected_answer(&other)),
        }
    }

    fn send_and_wait(&self, request: Request, within: Duration) -> Result<Answer, Error> {
        let verb = request.label();
        let (id, answers) = self.shared.new_request()?;
        let outcome = self.shared.send_request(id, request, &[]).and_then(|()| await_answer(&answers, verb, within));
        self.shared.lock_state().pending.remove(&id);
        outcome
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // If the launcher has ended, its end of the socket is closed already.
        let _ = rustix::net::shutdown(&self.shared.socket, rustix::net::Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn await_answer(answers: &Receiver<Result<Answer, Error>>, verb: &str, within: Duration) -> Result<Answer, Error> {
    match answers.recv_timeout(within) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Disconnected) => Err(Error::LauncherGone),
        Err(RecvTimeoutError::Timeout) => Err(Error::Timeout { request: verb.to_owned(), seconds: within.as_secs() }),
    }
}

fn unexpected_answer(answer: &Answer) -> Error {
    Error::protocol(format_args!("unexpected answer: {answer:?}"))
}

impl Connection {
    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_request(&self) -> Result<(u64, Receiver<Result<Answer, Error>>), Error> {
        let id = {
            let mut state = self.lock_state();
            state.last_id += 1;
            state.last_id
        };
        Ok((id, self.register_request(id)?))
    }

    fn register_request(&self, id: u64) -> Result<Receiver<Result<Answer, Error>>, Error> {
        let (sender, receiver) = channel();
        let mut state = self.lock_state();
        if state.has_ended {
            return Err(Error::LauncherGone);
        }
        state.pending.insert(id, sender);
        Ok(receiver)
    }

    fn send_request(&self, id: u64, request: Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        wire::send_packet(self.socket.as_fd(), &RequestPacket { id, request }, descriptors)
    }

    /// Dispatches the launcher's messages until it ends, then reaps it.
    fn read_messages(&self, child: Option<Child>) {
        let mut buffer = vec![0; MAX_PACKET];
        while let Ok(Some((message, _))) = wire::receive_packet::<LauncherMessage>(self.socket.as_fd(), &mut buffer) {
            let mut state = self.lock_state();
            // A dropped receiver no longer needs its message.
            match message {
                LauncherMessage::Answer { id, outcome } => {
                    if let Some(sender) = state.pending.get(&id) {
                        let _ = sender.send(outcome);
                    }
                }
                LauncherMessage::RunEnded { run, exit } => {
                    if let Some(end) = state.runs.remove(&run) {
                        end.deliver(exit);
                    }
                }
                LauncherMessage::WorkerEnded { name, exit } => {
                    let ended = WorkerExit { name, exit };
                    state.exit_listeners.retain(|listener| listener.send(ended.clone()).is_ok());
                }
            }
        }
        let mut state = self.lock_state();
        state.has_ended = true;
        state.pending.clear();
        state.runs.clear();
        state.exit_listeners.clear();
        drop(state);
        if let Some(mut child) = child {
            let _ = child.wait();
        }
    }
}
