//! The server's handle on its launcher.

mod layers;
mod running;

pub use running::{Running, Stopper};

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::Error;
use crate::keeper::{self, Keeper};
use crate::owner::Owner;
use crate::place::{Clock, DiskUse, Exit, Place, Spec, Usage};
use crate::report::Report;
use crate::wire::{self, Answer, Asked, MAX_PACKET, Request, Said, Settings};

#[derive(Debug, Clone)]
pub struct LauncherOptions {
    /// The program that runs [`crate::launcher_main`] when given `args`; normally `/proc/self/exe`.
    pub exe: PathBuf,
    pub args: Vec<String>,
    /// The launcher's whole environment.
    pub env: Vec<(String, String)>,
    /// Sandboxes are kept in its subdirectory `sandboxes`.
    pub data_dir: PathBuf,
    /// The worker's program on the host.
    pub worker: PathBuf,
    /// The first id of the ranges that root's sandboxes get.
    pub id_base: u32,
    /// The home whose known tool directories are shown.
    pub home: Option<PathBuf>,
    /// More directories to show, read-only at their own path.
    pub tools: Vec<PathBuf>,
    /// Names the cgroups.
    pub deployment: String,
    /// How large the pool shall be in which sandboxes' files are kept, in bytes: only for root.
    pub disk_pool: Option<u64>,
    /// Whose disk a probe is about, if not the data directory's.
    pub probed_disk: Option<PathBuf>,
    /// Who the server is or will be, where that isn't who starts the launcher.
    pub owner: Option<Owner>,
    /// Who starts launchers in place of this process, which can't; then all of the above is settled already.
    pub keeper: Option<Arc<Keeper>>,
}

impl LauncherOptions {
    pub const ID_BASE: u32 = 600_000_000;

    pub fn new(data_dir: impl Into<PathBuf>, worker: impl Into<PathBuf>, deployment: impl Into<String>) -> Self {
        Self {
            exe: "/proc/self/exe".into(),
            args: vec!["launcher".to_owned()],
            env: Vec::new(),
            data_dir: data_dir.into(),
            worker: worker.into(),
            id_base: Self::ID_BASE,
            home: std::env::home_dir(),
            tools: Vec::new(),
            deployment: deployment.into(),
            disk_pool: None,
            probed_disk: None,
            owner: None,
            keeper: None,
        }
    }

    pub(crate) fn settings(&self) -> Result<Settings, Error> {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path).map_err(|error| Error::Launcher { path: path.clone(), source: error.into() })
        };
        Ok(Settings {
            data: absolute(&self.data_dir)?,
            worker: absolute(&self.worker)?,
            id_base: self.id_base,
            home: self.home.clone(),
            tools: self.tools.clone(),
            deployment: self.deployment.clone(),
            pool: self.disk_pool,
            disk: absolute(self.probed_disk.as_ref().unwrap_or(&self.data_dir))?,
            owner: self.owner,
        })
    }
}

/// A running launcher. Its methods block and may be called from many threads at once. When it is dropped the launcher
/// ends, but not the sandboxes: the next launcher with the same data directory finds them.
#[derive(Debug)]
pub struct Launcher {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    options: LauncherOptions,
}

/// A worker's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub name: String,
    pub exit: Exit,
}

struct Shared {
    socket: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    gone: bool,
    waiting: HashMap<u64, Sender<Result<Answer, Error>>>,
    runs: HashMap<u64, running::End>,
    listeners: Vec<Sender<Ended>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Shared").field("socket", &self.socket).finish_non_exhaustive()
    }
}

const SHORT: Duration = Duration::from_secs(30);
/// Longer than the launcher itself waits for processes to go.
const ENDING: Duration = Duration::from_secs(60);
/// So does counting.
const COUNTING: Duration = Duration::from_secs(300);
/// Removing a large workspace takes its time.
const REMOVING: Duration = Duration::from_secs(600);

impl Launcher {
    /// Starts the launcher process and waits until it is ready.
    pub fn start(options: LauncherOptions) -> Result<Self, Error> {
        let (ours, child) = match &options.keeper {
            Some(keeper) => (keeper.launch()?, None),
            None => {
                let failed =
                    |source: std::io::Error| Error::Launcher { path: options.exe.clone(), source: source.into() };
                let (ours, theirs) = wire::pair()?;
                let child =
                    keeper::process(options.exe.clone(), &options.args, &options.env, theirs).map_err(failed)?;
                (ours, Some(child))
            }
        };
        let settings = if child.is_some() { Some(options.settings()?) } else { None };
        let shared = Arc::new(Shared { socket: ours, state: Mutex::default() });
        let ready = shared.expect(0)?;
        let reader = thread::Builder::new()
            .name("launcher".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.read(child)
            })
            .map_err(|error| Error::Launcher { path: options.exe.clone(), source: error.into() })?;
        let launcher = Self { shared, reader: Some(reader), options };
        if let Some(settings) = settings {
            wire::send(launcher.shared.socket.as_fd(), &settings, &[])?;
        }
        answer(&ready, "start", SHORT)?;
        Ok(launcher)
    }

    /// It has ended. The sandboxes live on, and another launcher with the same options finds them.
    pub fn is_gone(&self) -> bool {
        self.shared.lock().gone
    }

    pub fn options(&self) -> &LauncherOptions {
        &self.options
    }

    /// What this machine can do, found by making a sandbox.
    pub fn probe(&self) -> Result<Report, Error> {
        match self.ask(Request::Probe, ENDING)? {
            Answer::Report(report) => Ok(*report),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes a sandbox's directories and writes down what it shall be. One that is there stays as it is.
    pub fn prepare(&self, spec: &Spec) -> Result<Place, Error> {
        self.place(Request::Prepare(spec.clone()))
    }

    /// Starts the worker of a prepared sandbox, as its first process.
    pub fn start_worker(&self, name: &str) -> Result<Place, Error> {
        self.place(Request::StartWorker { name: name.to_owned() })
    }

    /// Runs one program as `agent`, in a jail of its own over the sandbox's workspace.
    pub fn run(
        &self,
        name: &str,
        argv: &[String],
        stdin: OwnedFd,
        stdout: OwnedFd,
        stderr: OwnedFd,
    ) -> Result<Running, Error> {
        let request = Request::Run { name: name.to_owned(), argv: argv.to_vec() };
        self.begin(request, [stdin, stdout, stderr])
    }

    pub fn find(&self, name: &str) -> Result<Option<Place>, Error> {
        match self.place(Request::Find { name: name.to_owned() }) {
            Ok(place) => Ok(Some(place)),
            Err(Error::Unknown { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All sandboxes but half-made ones.
    pub fn list(&self) -> Result<Vec<Place>, Error> {
        let (id, answers) = self.shared.next()?;
        let outcome = self.shared.send(id, Request::List, &[]).and_then(|()| {
            let mut places = Vec::new();
            loop {
                match answer(&answers, "list", SHORT)? {
                    Answer::Item(place) => places.push(*place),
                    Answer::Done => return Ok(places),
                    other => return Err(unexpected(&other)),
                }
            }
        });
        self.shared.lock().waiting.remove(&id);
        outcome
    }

    /// Ends every process of a sandbox and returns when they are gone. Its files stay.
    pub fn kill(&self, name: &str) -> Result<(), Error> {
        self.done(Request::Kill { name: name.to_owned() }, ENDING)
    }

    /// Ends a sandbox, half-made or not, with all that belongs to it. One that isn't there is no failure.
    pub fn destroy(&self, name: &str) -> Result<(), Error> {
        self.done(Request::Destroy { name: name.to_owned() }, REMOVING)
    }

    /// Stops all processes of a sandbox but its worker, and returns when they stand still. What is started in it
    /// meanwhile stands still too. One that is paused already stays so.
    pub fn pause(&self, name: &str) -> Result<Place, Error> {
        self.place(Request::Pause { name: name.to_owned() })
    }

    /// Lets the processes of a paused sandbox go on.
    pub fn resume(&self, name: &str) -> Result<Place, Error> {
        self.place(Request::Resume { name: name.to_owned() })
    }

    /// Lets the server have the spool of a worker that is dead, where they are different users.
    pub fn spool(&self, name: &str) -> Result<Place, Error> {
        self.place(Request::Spool { name: name.to_owned() })
    }

    /// What a sandbox uses now, or used last.
    pub fn usage(&self, name: &str) -> Result<Usage, Error> {
        match self.ask(Request::Usage { name: name.to_owned() }, SHORT)? {
            Answer::Usage(usage) => Ok(usage),
            other => Err(unexpected(&other)),
        }
    }

    /// What a sandbox's files take on disk, counted now.
    pub fn disk(&self, name: &str) -> Result<DiskUse, Error> {
        match self.ask(Request::Disk { name: name.to_owned() }, COUNTING)? {
            Answer::Disk(found) => Ok(found),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends the processes of a sandbox that have a file open for writing, or all but the worker's own if `everybody`;
    /// says how many.
    pub fn stop_writers(&self, name: &str, everybody: bool) -> Result<u32, Error> {
        match self.ask(Request::StopWriters { name: name.to_owned(), everybody }, ENDING)? {
            Answer::Stopped(count) => Ok(count),
            other => Err(unexpected(&other)),
        }
    }

    /// The processor time of every living sandbox.
    pub fn clocks(&self) -> Result<Vec<Clock>, Error> {
        let (id, answers) = self.shared.next()?;
        let outcome = self.shared.send(id, Request::Clocks, &[]).and_then(|()| {
            let mut clocks = Vec::new();
            loop {
                match answer(&answers, "clocks", SHORT)? {
                    Answer::Clocks(some) => clocks.extend(some),
                    Answer::Done => return Ok(clocks),
                    other => return Err(unexpected(&other)),
                }
            }
        });
        self.shared.lock().waiting.remove(&id);
        outcome
    }

    /// Tells from now on of each worker that ends. It is silent for ever when the launcher is gone.
    pub fn ended(&self) -> Receiver<Ended> {
        let (sender, receiver) = channel();
        let mut state = self.shared.lock();
        if !state.gone {
            state.listeners.push(sender);
        }
        receiver
    }

    fn place(&self, request: Request) -> Result<Place, Error> {
        match self.ask(request, SHORT)? {
            Answer::Place(place) => Ok(*place),
            other => Err(unexpected(&other)),
        }
    }

    fn done(&self, request: Request, within: Duration) -> Result<(), Error> {
        match self.ask(request, within)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn ask(&self, request: Request, within: Duration) -> Result<Answer, Error> {
        let verb = request.verb();
        let (id, answers) = self.shared.next()?;
        let outcome = self.shared.send(id, request, &[]).and_then(|()| answer(&answers, verb, within));
        self.shared.lock().waiting.remove(&id);
        outcome
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // If it is gone already, so is its end of the socket.
        let _ = rustix::net::shutdown(&self.shared.socket, rustix::net::Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn answer(answers: &Receiver<Result<Answer, Error>>, verb: &str, within: Duration) -> Result<Answer, Error> {
    match answers.recv_timeout(within) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Disconnected) => Err(Error::Gone),
        Err(RecvTimeoutError::Timeout) => Err(Error::Timeout { request: verb.to_owned(), seconds: within.as_secs() }),
    }
}

fn unexpected(answer: &Answer) -> Error {
    Error::protocol(format_args!("an answer to another question: {answer:?}"))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Result<(u64, Receiver<Result<Answer, Error>>), Error> {
        let id = {
            let mut state = self.lock();
            state.last += 1;
            state.last
        };
        Ok((id, self.expect(id)?))
    }

    fn expect(&self, id: u64) -> Result<Receiver<Result<Answer, Error>>, Error> {
        let (sender, receiver) = channel();
        let mut state = self.lock();
        if state.gone {
            return Err(Error::Gone);
        }
        state.waiting.insert(id, sender);
        Ok(receiver)
    }

    fn send(&self, id: u64, request: Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        wire::send(self.socket.as_fd(), &Asked { id, request }, descriptors)
    }

    /// Hands out what the launcher says until it ends, and takes its exit status.
    fn read(&self, child: Option<Child>) {
        let mut buffer = vec![0; MAX_PACKET];
        while let Ok(Some((said, _))) = wire::receive::<Said>(self.socket.as_fd(), &mut buffer) {
            let mut state = self.lock();
            // A receiver that is gone no longer wants to know.
            match said {
                Said::Answer { id, outcome } => {
                    if let Some(sender) = state.waiting.get(&id) {
                        let _ = sender.send(outcome);
                    }
                }
                Said::RunEnded { run, exit } => {
                    if let Some(end) = state.runs.remove(&run) {
                        end.tell(exit);
                    }
                }
                Said::WorkerEnded { name, exit } => {
                    let ended = Ended { name, exit };
                    state.listeners.retain(|listener| listener.send(ended.clone()).is_ok());
                }
            }
        }
        let mut state = self.lock();
        state.gone = true;
        state.waiting.clear();
        state.runs.clear();
        state.listeners.clear();
        drop(state);
        if let Some(mut child) = child {
            let _ = child.wait();
        }
    }
}
