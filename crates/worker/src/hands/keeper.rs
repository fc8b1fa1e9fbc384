//! The worker's side: starts the hands, asks them, and starts them anew when they die. What ran under them is killed
//! then, by its process group: nobody is left to wait for it.

use super::starter::Starter;
use super::{Ending, Placing, Program, Reply, Request, wire};
use crate::readiness;
use atoll_protocol::exec::Terminal;
use rustix::fs::{FileType, major, minor};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// For hands that somebody stopped. A start takes a millisecond, but before it they may have to look at every file.
const START: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program itself: it is not there, or may not be run.
    #[error("{0}")]
    NotStarted(String),
    #[error("the worker failed to start its helper process, which runs everything as the agent's user: {0}")]
    NoHands(String),
    #[error("the worker's helper process {0}, so nothing was started; try again")]
    Lost(&'static str),
}

/// What becomes the input and outputs of a program. Without an input it reads nothing.
#[derive(Debug)]
pub struct Streams {
    pub input: Option<OwnedFd>,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// A program that runs.
#[derive(Debug)]
pub struct Process {
    id: u64,
    hands: Handle,
    ended: oneshot::Receiver<Ending>,
}

impl Process {
    /// How it ended. May be asked again until it is known.
    pub async fn ended(&mut self) -> Ending {
        (&mut self.ended).await.unwrap_or(Ending::Lost)
    }

    /// To it and its process group.
    pub fn signal(&self, signal: i32) {
        self.hands.ask(Command::Signal { id: self.id, signal });
    }

    /// Lets it and everything that it started stand still, or go on. It loses nothing by it but time.
    pub fn hold(&self, still: bool) {
        self.hands.ask(Command::Hold { id: self.id, still });
    }

    /// Ends it with everything that it started, also what left its process group.
    pub fn kill(&self) {
        self.hands.ask(Command::Kill { id: self.id });
    }
}

/// How the rest of the worker reaches the hands. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    commands: mpsc::UnboundedSender<Command>,
}

impl Handle {
    pub async fn spawn(&self, program: Program, streams: Streams) -> Result<Process, Error> {
        Ok(self.start(Program { terminal: None, ..program }, Some(streams)).await?.0)
    }

    /// On a terminal of its own. The worker's end of it is certainly one, and nothing else is certain about it.
    pub async fn spawn_on_terminal(&self, program: Program, size: Terminal) -> Result<(Process, OwnedFd), Error> {
        let (process, terminal) = self.start(Program { terminal: Some(size), ..program }, None).await?;
        terminal.map(|terminal| (process, terminal)).ok_or_else(|| {
            Error::NotStarted("the helper process handed over something else than a terminal".to_owned())
        })
    }

    async fn start(&self, program: Program, streams: Option<Streams>) -> Result<(Process, Option<OwnedFd>), Error> {
        let (started, outcome) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        self.ask(Command::Spawn(Box::new(Spawn { program, streams, started, end })));
        let Begun { id, terminal } = outcome.await.unwrap_or(Err(Error::Lost("is going")))?;
        Ok((Process { id, hands: self.clone(), ended }, terminal))
    }

    /// Writes files as the agent's user would, and removes others; a sentence about what could not be done.
    pub async fn place(&self, placing: Placing) -> Result<(), String> {
        let (done, outcome) = oneshot::channel();
        self.ask(Command::Place { placing, done });
        outcome.await.unwrap_or_else(|_| Err("the worker is going".to_owned()))
    }

    /// Watches the files below `root`. What is seen comes through the pipe; it ends if the hands die.
    pub fn watch(&self, root: PathBuf, pipe: OwnedFd) {
        self.ask(Command::Watch { root, pipe });
    }

    pub fn flush(&self, number: u64) {
        self.ask(Command::Flush { number });
    }

    pub fn unwatch(&self) {
        self.ask(Command::Unwatch);
    }

    /// Ends the hands and all that they started. Nothing is started until what this gives is dropped.
    pub async fn rest(&self) -> oneshot::Sender<()> {
        let (rested, done) = oneshot::channel();
        let (hold, over) = oneshot::channel();
        self.ask(Command::Rest { rested, over });
        // Without a keeper nothing is started either.
        drop(done.await);
        hold
    }

    fn ask(&self, command: Command) {
        // Only a worker that is going has no keeper.
        drop(self.commands.send(command));
    }
}

#[derive(Debug)]
enum Command {
    Spawn(Box<Spawn>),
    Place { placing: Placing, done: oneshot::Sender<Result<(), String>> },
    Signal { id: u64, signal: i32 },
    Kill { id: u64 },
    Hold { id: u64, still: bool },
    Watch { root: PathBuf, pipe: OwnedFd },
    Flush { number: u64 },
    Unwatch,
    Rest { rested: oneshot::Sender<()>, over: oneshot::Receiver<()> },
}

#[derive(Debug)]
struct Spawn {
    program: Program,
    /// None with a terminal.
    streams: Option<Streams>,
    started: oneshot::Sender<Result<Begun, Error>>,
    end: oneshot::Sender<Ending>,
}

#[derive(Debug)]
struct Begun {
    id: u64,
    terminal: Option<OwnedFd>,
}

/// A program that was asked for.
struct Child {
    pid: Option<Pid>,
    /// Who waits for its start, and until when.
    started: Option<(oneshot::Sender<Result<Begun, Error>>, Instant)>,
    end: oneshot::Sender<Ending>,
}

struct Hands {
    socket: AsyncFd<OwnedFd>,
    pid: Pid,
}

pub struct Keeper {
    starter: Starter,
    commands: mpsc::UnboundedReceiver<Command>,
    hands: Option<Hands>,
    children: HashMap<u64, Child>,
    /// Who waits for files, and until when.
    placings: HashMap<u64, (oneshot::Sender<Result<(), String>>, Instant)>,
    last_id: u64,
}

impl Keeper {
    pub fn new(starter: Starter) -> (Self, Handle) {
        let (sender, commands) = mpsc::unbounded_channel();
        let (children, placings) = (HashMap::new(), HashMap::new());
        let keeper = Self { starter, commands, hands: None, children, placings, last_id: 0 };
        (keeper, Handle { commands: sender })
    }

    /// Runs until nobody can ask any more.
    pub async fn run(mut self) {
        // They are wanted soon: by the first command, or by the agent.
        if let Err(error) = self.ready() {
            tracing::error!(error, "failed to start the helper process; trying again when it is needed");
        }
        loop {
            let starting = self.children.values().filter_map(|child| Some(child.started.as_ref()?.1));
            let late = starting.chain(self.placings.values().map(|(_, until)| *until)).min();
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => self.take(command).await,
                    None => return,
                },
                reply = reply(self.hands.as_ref()) => match reply {
                    Ok(Some((reply, beside))) => self.hear(reply, beside),
                    Ok(None) => self.lost("died"),
                    Err(error) => {
                        tracing::warn!(%error, "the helper process can't be understood");
                        self.lost("can't be understood");
                    }
                },
                () = at(late) => self.lost("does not answer"),
            }
        }
    }

    /// Starts the hands if there are none.
    fn ready(&mut self) -> Result<&Hands, String> {
        let hands = match self.hands.take() {
            Some(hands) => hands,
            None => {
                let (socket, pid) = self.starter.start().map_err(|error| error.to_string())?;
                let both = Interest::READABLE | Interest::WRITABLE;
                let socket = readiness::of(socket, both).map_err(|error| error.to_string())?;
                Hands { socket, pid }
            }
        };
        Ok(self.hands.insert(hands))
    }

    async fn take(&mut self, command: Command) {
        match command {
            Command::Spawn(spawn) => self.spawn(*spawn).await,
            Command::Place { placing, done } => self.place(placing, done).await,
            Command::Signal { id, signal } => {
                if self.children.contains_key(&id) {
                    self.send_or_lose(&Request::Signal { id, signal }, &[]).await;
                }
            }
            Command::Kill { id } => {
                if self.children.contains_key(&id) {
                    self.send_or_lose(&Request::Kill { id }, &[]).await;
                }
            }
            Command::Hold { id, still } => {
                if self.children.contains_key(&id) {
                    self.send_or_lose(&Request::Hold { id, still }, &[]).await;
                }
            }
            Command::Watch { root, pipe } => match self.ready() {
                Ok(_) => self.send_or_lose(&Request::Watch { root }, &[&pipe]).await,
                // The pipe ends: whoever reads it sees that nobody watches.
                Err(error) => tracing::warn!(error, "nobody can watch files"),
            },
            Command::Flush { number } => self.send_or_lose(&Request::Flush { number }, &[]).await,
            Command::Unwatch => self.send_or_lose(&Request::Unwatch, &[]).await,
            Command::Rest { rested, over } => {
                self.end("rests");
                // Whoever asked may have gone; then `over` ends at once.
                let _ = rested.send(());
                drop(over.await);
            }
        }
    }

    async fn spawn(&mut self, spawn: Spawn) {
        let Spawn { program, streams, started, end } = spawn;
        self.last_id += 1;
        let id = self.last_id;
        let input = streams.as_ref().and_then(|streams| streams.input.as_ref());
        let outputs = streams.iter().flat_map(|streams| [&streams.stdout, &streams.stderr]);
        let request = Request::Spawn { id, program, has_input: input.is_some() };
        let descriptors: Vec<&OwnedFd> = input.into_iter().chain(outputs).collect();
        // Hands that died a moment ago are noticed here, and a new pair gets the same request.
        for _ in 0..2 {
            if let Err(error) = self.ready() {
                drop(started.send(Err(Error::NoHands(error))));
                return;
            }
            match self.send(&request, &descriptors).await {
                Ok(()) => {
                    let child = Child { pid: None, started: Some((started, Instant::now() + START)), end };
                    self.children.insert(id, child);
                    return;
                }
                Err(error) if is_gone(&error) => self.lost("died"),
                Err(error) => {
                    drop(started.send(Err(Error::NotStarted(format!("failed to ask for it: {error}")))));
                    return;
                }
            }
        }
        drop(started.send(Err(Error::Lost("died"))));
    }

    async fn place(&mut self, placing: Placing, done: oneshot::Sender<Result<(), String>>) {
        self.last_id += 1;
        let id = self.last_id;
        let request = Request::Place { id, placing };
        for _ in 0..2 {
            if let Err(error) = self.ready() {
                drop(done.send(Err(Error::NoHands(error).to_string())));
                return;
            }
            match self.send(&request, &[]).await {
                Ok(()) => {
                    self.placings.insert(id, (done, Instant::now() + START));
                    return;
                }
                Err(error) if is_gone(&error) => self.lost("died"),
                Err(error) => {
                    drop(done.send(Err(format!("failed to ask for it: {error}"))));
                    return;
                }
            }
        }
        drop(done.send(Err(Error::Lost("died").to_string())));
    }

    fn hear(&mut self, reply: Reply, beside: Option<OwnedFd>) {
        match reply {
            Reply::Started { id, pid } => {
                // 1 and less would be everything when it is killed as a group.
                let pid = Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 1);
                if let Some(child) = self.children.get_mut(&id) {
                    child.pid = pid;
                    if let Some((started, _)) = child.started.take() {
                        drop(started.send(Ok(Begun { id, terminal: beside.filter(is_terminal) })));
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
                if let Some((done, _)) = self.placings.remove(&id) {
                    drop(done.send(error.map_or(Ok(()), Err)));
                }
            }
        }
    }

    /// The hands are no more, or are not used any more: what ran under them ends too.
    fn lost(&mut self, how: &'static str) {
        if self.hands.is_some() {
            tracing::warn!(how, running = self.children.len(), "the helper process is lost; another one is started");
        }
        self.end(how);
    }

    fn end(&mut self, how: &'static str) {
        let Some(hands) = self.hands.take() else { return };
        let _ = kill_process(hands.pid, Signal::KILL);
        for (_, child) in self.children.drain() {
            if let Some(pid) = child.pid {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            if let Some((started, _)) = child.started {
                drop(started.send(Err(Error::Lost(how))));
            }
            let _ = child.end.send(Ending::Lost);
        }
        for (_, (done, _)) in self.placings.drain() {
            drop(done.send(Err(Error::Lost(how).to_string())));
        }
    }

    async fn send_or_lose(&mut self, request: &Request, descriptors: &[&OwnedFd]) {
        match self.send(request, descriptors).await {
            Ok(()) => {}
            Err(error) if is_gone(&error) => self.lost("died"),
            Err(error) => tracing::warn!(%error, ?request, "failed to ask the helper process"),
        }
    }

    async fn send(&self, request: &Request, descriptors: &[&OwnedFd]) -> io::Result<()> {
        let Some(hands) = &self.hands else { return Ok(()) };
        let descriptors: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
        let sending = async {
            loop {
                let mut ready = hands.socket.writable().await?;
                let sent = ready.try_io(|socket| wire::send(socket, request, &descriptors, SendFlags::DONTWAIT));
                if let Ok(sent) = sent {
                    return sent;
                }
            }
        };
        let stuck = || io::Error::from(io::ErrorKind::BrokenPipe);
        tokio::time::timeout(START, sending).await.unwrap_or_else(|_| Err(stuck()))
    }
}

/// The upper end of a pseudo-terminal. Writing to anything else could do, with the worker's rights, what the agent may
/// not.
fn is_terminal(descriptor: &OwnedFd) -> bool {
    const UPPER_END: (u32, u32) = (5, 2);
    rustix::fs::fstat(descriptor).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
            && (major(found.st_rdev), minor(found.st_rdev)) == UPPER_END
    })
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::BrokenPipe | K::ConnectionReset | K::NotConnected | K::ConnectionRefused)
}

async fn reply(hands: Option<&Hands>) -> io::Result<Option<(Reply, Option<OwnedFd>)>> {
    let Some(hands) = hands else { return std::future::pending().await };
    loop {
        let mut ready = hands.socket.readable().await?;
        match ready.try_io(|socket| wire::receive_untrusted(socket, RecvFlags::DONTWAIT)) {
            Ok(Err(error)) if is_gone(&error) => return Ok(None),
            Ok(received) => return received,
            Err(_) => {}
        }
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
