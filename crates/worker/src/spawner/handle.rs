//! The worker's side of the spawner: supervises the helper process and restarts it when it dies.
//! The supervisor then kills the process groups of its children, which have no parent to reap them.

use super::launch::SpawnerLauncher;
use super::{ExitStatus, FileUpdate, ProgramSpec, Reply, Request, packets};
use crate::readiness;
use atoll_protocol::exec::TerminalSize;
use rustix::fs::{FileType, major, minor};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// Time limit of a request. The agent may have paused the spawner, or a scan of all files may precede the request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program does not exist or is not executable.
    #[error("{0}")]
    NotStarted(String),
    #[error("the worker failed to start its spawner: {0}")]
    SpawnerNotStarted(String),
    #[error("the worker's spawner {0}, so nothing was started; try again")]
    Lost(&'static str),
}

/// The standard streams of a program. Without `input` it reads from /dev/null.
#[derive(Debug)]
pub struct StdStreams {
    pub input: Option<OwnedFd>,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// A running program.
#[derive(Debug)]
pub struct SpawnedProcess {
    id: u64,
    spawner: Spawner,
    ended: oneshot::Receiver<ExitStatus>,
}

impl SpawnedProcess {
    /// Waits for the exit. Cancel-safe.
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        (&mut self.ended).await.unwrap_or(ExitStatus::Lost)
    }

    /// Signals its process group.
    pub fn signal(&self, signal: i32) {
        self.spawner.send_command(Command::Signal { id: self.id, signal });
    }

    /// Pauses or resumes it and everything that it started.
    pub fn set_paused(&self, paused: bool) {
        self.spawner.send_command(Command::SetPaused { id: self.id, paused });
    }

    /// Kills it and everything that it started, in any process group.
    pub fn kill(&self) {
        self.spawner.send_command(Command::Kill { id: self.id });
    }
}

/// A handle of the spawner. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Spawner {
    commands: mpsc::UnboundedSender<Command>,
    program_starts: Arc<Notify>,
}

impl Spawner {
    pub async fn spawn(&self, program: ProgramSpec, streams: StdStreams) -> Result<SpawnedProcess, Error> {
        Ok(self.start_program(ProgramSpec { terminal: None, ..program }, Some(streams)).await?.0)
    }

    /// Spawns a program on a terminal. The returned descriptor is a terminal; nothing else about it is trusted.
    pub async fn spawn_on_terminal(
        &self,
        program: ProgramSpec,
        size: TerminalSize,
    ) -> Result<(SpawnedProcess, OwnedFd), Error> {
        let (process, terminal) = self.start_program(ProgramSpec { terminal: Some(size), ..program }, None).await?;
        terminal
            .map(|terminal| (process, terminal))
            .ok_or_else(|| Error::NotStarted("the spawner did not return a terminal".to_owned()))
    }

    async fn start_program(
        &self,
        program: ProgramSpec,
        streams: Option<StdStreams>,
    ) -> Result<(SpawnedProcess, Option<OwnedFd>), Error> {
        let (started, outcome) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        self.send_command(Command::Spawn(Box::new(Spawn { program, streams, started, end })));
        let StartedProgram { id, terminal } = outcome.await.unwrap_or(Err(Error::Lost("is exiting")))?;
        self.program_starts.notify_one();
        Ok((SpawnedProcess { id, spawner: self.clone(), ended }, terminal))
    }

    /// Waits for the next start of a program; returns at once after starts since the last call. For one task at a time.
    pub async fn wait_for_program_start(&self) {
        self.program_starts.notified().await;
    }

    /// Writes and removes files as the agent's user, before any program that is spawned after this call.
    pub fn update_files(&self, update: FileUpdate) -> impl Future<Output = Result<(), String>> + Send + use<> {
        let (done, outcome) = oneshot::channel();
        self.send_command(Command::WriteFile { update, done });
        async move { outcome.await.unwrap_or_else(|_| Err("the worker is exiting".to_owned())) }
    }

    /// Watches the files below `root` and reports events through the pipe, which closes if the spawner dies.
    pub fn watch_files(&self, root: PathBuf, pipe: OwnedFd) {
        self.send_command(Command::Watch { root, pipe });
    }

    pub fn flush_changes(&self, number: u64) {
        self.send_command(Command::Flush { number });
    }

    pub fn stop_watching(&self) {
        self.send_command(Command::Unwatch);
    }

    /// Stops the spawner and all its children. It spawns nothing until the returned guard is dropped.
    pub async fn suspend(&self) -> oneshot::Sender<()> {
        let (suspended, done) = oneshot::channel();
        let (guard, resume) = oneshot::channel();
        self.send_command(Command::Suspend { suspended, resume });
        // Without a supervisor there is nothing to stop.
        drop(done.await);
        guard
    }

    fn send_command(&self, command: Command) {
        // The supervisor ends only with the worker.
        drop(self.commands.send(command));
    }
}

#[derive(Debug)]
enum Command {
    Spawn(Box<Spawn>),
    WriteFile { update: FileUpdate, done: oneshot::Sender<Result<(), String>> },
    Signal { id: u64, signal: i32 },
    Kill { id: u64 },
    SetPaused { id: u64, paused: bool },
    Watch { root: PathBuf, pipe: OwnedFd },
    Flush { number: u64 },
    Unwatch,
    Suspend { suspended: oneshot::Sender<()>, resume: oneshot::Receiver<()> },
}

#[derive(Debug)]
struct Spawn {
    program: ProgramSpec,
    /// `None` with a terminal.
    streams: Option<StdStreams>,
    started: oneshot::Sender<Result<StartedProgram, Error>>,
    end: oneshot::Sender<ExitStatus>,
}

#[derive(Debug)]
struct StartedProgram {
    id: u64,
    terminal: Option<OwnedFd>,
}

/// A spawned or requested program.
struct Child {
    pid: Option<Pid>,
    /// The waiting caller of the start, and its deadline.
    started: Option<(oneshot::Sender<Result<StartedProgram, Error>>, Instant)>,
    end: oneshot::Sender<ExitStatus>,
}

struct RunningSpawner {
    socket: AsyncFd<OwnedFd>,
    pid: Pid,
}

pub struct SpawnerSupervisor {
    launcher: SpawnerLauncher,
    commands: mpsc::UnboundedReceiver<Command>,
    spawner: Option<RunningSpawner>,
    children: HashMap<u64, Child>,
    /// The waiting callers of file updates, and their deadlines.
    updates: HashMap<u64, (oneshot::Sender<Result<(), String>>, Instant)>,
    last_id: u64,
}

impl SpawnerSupervisor {
    pub fn new(launcher: SpawnerLauncher) -> (Self, Spawner) {
        let (sender, commands) = mpsc::unbounded_channel();
        let (children, updates) = (HashMap::new(), HashMap::new());
        let supervisor = Self { launcher, commands, spawner: None, children, updates, last_id: 0 };
        (supervisor, Spawner { commands: sender, program_starts: Arc::default() })
    }

    /// Runs until all handles are dropped.
    pub async fn run(mut self) {
        // The first command or the agent needs it soon.
        if let Err(error) = self.ensure_running() {
            tracing::error!(error, "failed to start the spawner; will retry when it is needed");
        }
        loop {
            let starting = self.children.values().filter_map(|child| Some(child.started.as_ref()?.1));
            let late = starting.chain(self.updates.values().map(|(_, until)| *until)).min();
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => self.handle_command(command).await,
                    None => return,
                },
                reply = next_reply(self.spawner.as_ref()) => match reply {
                    Ok(Some((reply, descriptor))) => self.handle_reply(reply, descriptor),
                    Ok(None) => self.handle_loss("died"),
                    Err(error) => {
                        tracing::warn!(%error, "the spawner sent an invalid packet");
                        self.handle_loss("sent an invalid packet");
                    }
                },
                () = sleep_until_deadline(late) => self.handle_loss("does not answer"),
            }
        }
    }

    /// Starts the spawner if it is not running.
    fn ensure_running(&mut self) -> Result<&RunningSpawner, String> {
        let spawner = match self.spawner.take() {
            Some(spawner) => spawner,
            None => {
                let (socket, pid) = self.launcher.start().map_err(|error| error.to_string())?;
                let both = Interest::READABLE | Interest::WRITABLE;
                let socket = readiness::register(socket, both).map_err(|error| error.to_string())?;
                RunningSpawner { socket, pid }
            }
        };
        Ok(self.spawner.insert(spawner))
    }

    async fn handle_command(&mut self, command: Command) {
        match command {
            Command::Spawn(spawn) => self.spawn_program(*spawn).await,
            Command::WriteFile { update, done } => self.update_files(update, done).await,
            Command::Signal { id, signal } => {
                if self.children.contains_key(&id) {
                    self.send_or_restart(&Request::Signal { id, signal }, &[]).await;
                }
            }
            Command::Kill { id } => {
                if self.children.contains_key(&id) {
                    self.send_or_restart(&Request::Kill { id }, &[]).await;
                }
            }
            Command::SetPaused { id, paused } => {
                if self.children.contains_key(&id) {
                    self.send_or_restart(&Request::Hold { id, paused }, &[]).await;
                }
            }
            Command::Watch { root, pipe } => match self.ensure_running() {
                Ok(_) => self.send_or_restart(&Request::Watch { root }, &[&pipe]).await,
                // The pipe closes, which tells the reader.
                Err(error) => tracing::warn!(error, "failed to watch files"),
            },
            Command::Flush { number } => self.send_or_restart(&Request::Flush { number }, &[]).await,
            Command::Unwatch => self.send_or_restart(&Request::Unwatch, &[]).await,
            Command::Suspend { suspended, resume } => {
                self.stop_spawner("is suspended");
                // If the caller is gone, `resume` ends at once.
                let _ = suspended.send(());
                drop(resume.await);
            }
        }
    }

    async fn spawn_program(&mut self, spawn: Spawn) {
        let Spawn { program, streams, started, end } = spawn;
        self.last_id += 1;
        let id = self.last_id;
        let input = streams.as_ref().and_then(|streams| streams.input.as_ref());
        let outputs = streams.iter().flat_map(|streams| [&streams.stdout, &streams.stderr]);
        let request = Request::Spawn { id, program, has_input: input.is_some() };
        let descriptors: Vec<&OwnedFd> = input.into_iter().chain(outputs).collect();
        // A spawner that has just died shows up here; a new one gets the same request.
        for _ in 0..2 {
            if let Err(error) = self.ensure_running() {
                drop(started.send(Err(Error::SpawnerNotStarted(error))));
                return;
            }
            match self.send_request(&request, &descriptors).await {
                Ok(()) => {
                    let child = Child { pid: None, started: Some((started, Instant::now() + REQUEST_TIMEOUT)), end };
                    self.children.insert(id, child);
                    return;
                }
                Err(error) if is_gone(&error) => self.handle_loss("died"),
                Err(error) => {
                    drop(started.send(Err(Error::NotStarted(format!("failed to ask for it: {error}")))));
                    return;
                }
            }
        }
        drop(started.send(Err(Error::Lost("died"))));
    }

    async fn update_files(&mut self, update: FileUpdate, done: oneshot::Sender<Result<(), String>>) {
        self.last_id += 1;
        let id = self.last_id;
        let request = Request::Place { id, update };
        for _ in 0..2 {
            if let Err(error) = self.ensure_running() {
                drop(done.send(Err(Error::SpawnerNotStarted(error).to_string())));
                return;
            }
            match self.send_request(&request, &[]).await {
                Ok(()) => {
                    self.updates.insert(id, (done, Instant::now() + REQUEST_TIMEOUT));
                    return;
                }
                Err(error) if is_gone(&error) => self.handle_loss("died"),
                Err(error) => {
                    drop(done.send(Err(format!("failed to ask for it: {error}"))));
                    return;
                }
            }
        }
        drop(done.send(Err(Error::Lost("died").to_string())));
    }

    fn handle_reply(&mut self, reply: Reply, descriptor: Option<OwnedFd>) {
        match reply {
            Reply::Started { id, pid } => {
                // Killing the group of 1 or less would kill everything.
                let pid = Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 1);
                if let Some(child) = self.children.get_mut(&id) {
                    child.pid = pid;
                    if let Some((started, _)) = child.started.take() {
                        drop(started.send(Ok(StartedProgram { id, terminal: descriptor.filter(is_terminal) })));
                    }
                }
            }
            Reply::Failed { id, error } => {
                if let Some(Child { started: Some((started, _)), .. }) = self.children.remove(&id) {
                    drop(started.send(Err(Error::NotStarted(error))));
                }
            }
            Reply::Ended { id, ending } => {
                if let Some(child) = self.children.remove(&id) {
                    let _ = child.end.send(ending);
                }
            }
            Reply::Placed { id, error } => {
                if let Some((done, _)) = self.updates.remove(&id) {
                    drop(done.send(error.map_or(Ok(()), Err)));
                }
            }
        }
    }

    /// Handles the loss of the spawner: kills its children.
    fn handle_loss(&mut self, how: &'static str) {
        if self.spawner.is_some() {
            tracing::warn!(how, running = self.children.len(), "lost the spawner; starting another");
        }
        self.stop_spawner(how);
    }

    fn stop_spawner(&mut self, how: &'static str) {
        let Some(spawner) = self.spawner.take() else { return };
        let _ = kill_process(spawner.pid, Signal::KILL);
        for (_, child) in self.children.drain() {
            if let Some(pid) = child.pid {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            if let Some((started, _)) = child.started {
                drop(started.send(Err(Error::Lost(how))));
            }
            let _ = child.end.send(ExitStatus::Lost);
        }
        for (_, (done, _)) in self.updates.drain() {
            drop(done.send(Err(Error::Lost(how).to_string())));
        }
    }

    async fn send_or_restart(&mut self, request: &Request, descriptors: &[&OwnedFd]) {
        match self.send_request(request, descriptors).await {
            Ok(()) => {}
            Err(error) if is_gone(&error) => self.handle_loss("died"),
            Err(error) => tracing::warn!(%error, ?request, "failed to send a request to the spawner"),
        }
    }

    async fn send_request(&self, request: &Request, descriptors: &[&OwnedFd]) -> io::Result<()> {
        let Some(spawner) = &self.spawner else { return Ok(()) };
        let descriptors: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
        let sending = async {
            loop {
                let mut ready = spawner.socket.writable().await?;
                let sent =
                    ready.try_io(|socket| packets::send_packet(socket, request, &descriptors, SendFlags::DONTWAIT));
                if let Ok(sent) = sent {
                    return sent;
                }
            }
        };
        let stuck = || io::Error::from(io::ErrorKind::BrokenPipe);
        tokio::time::timeout(REQUEST_TIMEOUT, sending).await.unwrap_or_else(|_| Err(stuck()))
    }
}

/// True for the master end of a pseudo-terminal. Writing to anything else could do, with the worker's rights, what the
/// agent may not.
fn is_terminal(descriptor: &OwnedFd) -> bool {
    const PTY_MASTER: (u32, u32) = (5, 2);
    rustix::fs::fstat(descriptor).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
            && (major(found.st_rdev), minor(found.st_rdev)) == PTY_MASTER
    })
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::BrokenPipe | K::ConnectionReset | K::NotConnected | K::ConnectionRefused)
}

async fn next_reply(spawner: Option<&RunningSpawner>) -> io::Result<Option<(Reply, Option<OwnedFd>)>> {
    let Some(spawner) = spawner else { return std::future::pending().await };
    loop {
        let mut ready = spawner.socket.readable().await?;
        match ready.try_io(|socket| packets::receive_untrusted(socket, RecvFlags::DONTWAIT)) {
            Ok(Err(error)) if is_gone(&error) => return Ok(None),
            Ok(received) => return received,
            Err(_) => {}
        }
    }
}

async fn sleep_until_deadline(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
