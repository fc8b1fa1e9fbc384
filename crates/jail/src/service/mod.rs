//! The launcher process: one thread, one loop over its socket and the processes it watches.
//!
//! It ends when its client goes, and leaves the sandboxes alone: the next one finds them by their records.

mod abilities;
mod bounding;
mod confining;
mod ending;
mod entering;
mod errands;
mod files;
mod housekeeping;
mod images;
mod layering;
mod pausing;
mod probe;
mod processes;
mod requests;
mod starting;
mod volumes;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Resource, Rlimit};

use crate::catalog::{KeptImage, KeptSnapshot, Shelf};
use crate::cgroup::{self, Groups};
use crate::error::{Error, Failure};
use crate::layers::Layers;
use crate::maps::Source;
use crate::place::{Exit, Usage};
use crate::pool::Pool;
use crate::record::{Home, Record};
use crate::seccomp::Filter;
use crate::setup::Landlock;
use crate::view::View;
use crate::wire::{self, Answer, Asked, MAX_PACKET, Said, Settings};
use crate::{inside, kernel, processors};

use confining::Look;
use ending::{Ending, Leaving};
pub(crate) use housekeeping::private_directory;
use images::Importing;
use pausing::Pausing;
use processes::Tracked;

/// How often one looks for what nobody tells of: the ends of others' children while a sandbox ends, and processes that
/// begin in one whose pause is a signal to each.
const UNTOLD: Duration = Duration::from_millis(20);

/// What the hidden argument `launcher` runs: call it before any thread starts.
pub fn launcher_main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is nobody else to tell.
            let _ = writeln!(std::io::stderr(), "launcher: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Error> {
    kernel::ignore_terminal_signals();
    kernel::close_from(3).map_err(Error::protocol)?;
    // A program that entered a sandbox and lost its parent comes here: the sandbox can't end before somebody has taken
    // note of that program's end, and not every machine's first process does so soon.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(Error::protocol)?;
    let socket = inside::take(0).map_err(Error::protocol)?;
    let files = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: files.maximum, maximum: files.maximum };
    // A descriptor is held for each sandbox; without more there are fewer sandboxes.
    let _ = rustix::process::setrlimit(Resource::Nofile, raised);
    let mut buffer = vec![0; MAX_PACKET];
    let Some((settings, _)) = wire::receive::<Settings>(socket.as_fd(), &mut buffer)? else { return Ok(()) };
    let mut service = Service::new(socket, settings);
    service.say(&Said::Answer { id: 0, outcome: Ok(Answer::Done) })?;
    let outcome = service.serve(&mut buffer);
    if let Some(pool) = &service.pool {
        pool.close();
    }
    outcome
}

struct Service {
    socket: OwnedFd,
    settings: Settings,
    view: View,
    filter: Filter,
    landlock: Landlock,
    groups: Box<dyn Groups>,
    /// Those that there are for sandboxes.
    processors: Vec<u32>,
    looked: Option<Look>,
    ids: Source,
    /// Held from when a request first needs the data directory, as long as this launcher lives.
    lock: Option<File>,
    /// Mounted as long as this launcher works.
    pool: Option<Pool>,
    store: Option<Store>,
    sandboxes: BTreeMap<String, Sandbox>,
    tracked: Vec<Tracked>,
    leaving: Vec<Leaving>,
    imports: Vec<Importing>,
    /// By the first id of a sandbox's range: the user namespace by which layers show with its ids.
    mappings: BTreeMap<u32, OwnedFd>,
    /// Whether layers can be stacked here, once that was tried.
    stackable: Option<Result<(), Failure>>,
    pausing: Vec<Pausing>,
}

/// The data directory, once it is ours.
struct Store {
    sandboxes: PathBuf,
    template: PathBuf,
    layers: Layers,
    snapshots: Shelf<KeptSnapshot>,
    images: Shelf<KeptImage>,
}

struct Sandbox {
    home: Home,
    /// Absent in one that is half made.
    record: Option<Record>,
    exit: Option<Exit>,
    /// What could not be protected when its worker started, as it was not there.
    unprotected: Vec<String>,
    /// Of the processes that have ended.
    usage: Usage,
    ending: Option<Ending>,
}

impl Sandbox {
    /// One of which only what is on disk is known.
    fn found(home: Home, record: Option<Record>) -> Self {
        Self { home, record, exit: None, unprotected: Vec::new(), usage: Usage::default(), ending: None }
    }
}

impl Service {
    fn new(socket: OwnedFd, settings: Settings) -> Self {
        Self {
            view: View::of(settings.home.as_deref(), &settings.tools, &settings.data),
            filter: Filter::new(),
            landlock: Landlock::find(),
            groups: cgroup::find(&settings.deployment),
            processors: processors::own(),
            looked: None,
            ids: Source::find(settings.id_base),
            lock: None,
            pool: None,
            store: None,
            sandboxes: BTreeMap::new(),
            tracked: Vec::new(),
            leaving: Vec::new(),
            imports: Vec::new(),
            mappings: BTreeMap::new(),
            stackable: None,
            pausing: Vec::new(),
            socket,
            settings,
        }
    }

    fn serve(&mut self, buffer: &mut [u8]) -> Result<(), Error> {
        loop {
            let ready = self.wait()?;
            // From behind, as a process that has ended leaves the list.
            for index in ready.processes.into_iter().rev() {
                self.attend(index)?;
            }
            self.reap_orphans();
            self.hold_newcomers();
            self.retry()?;
            if ready.socket {
                match wire::receive::<Asked>(self.socket.as_fd(), buffer)? {
                    Some((asked, descriptors)) => self.handle(asked, descriptors)?,
                    None => return Ok(()),
                }
            }
        }
    }

    fn wait(&self) -> Result<Ready, Error> {
        let mut descriptors = vec![PollFd::new(&self.socket, PollFlags::IN)];
        let mut owners = Vec::new();
        for (index, tracked) in self.tracked.iter().enumerate() {
            for descriptor in tracked.descriptors() {
                descriptors.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
                owners.push(index);
            }
        }
        let timeout = self.timeout().map(|after| Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(after.subsec_nanos()),
        });
        match rustix::event::poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Ready::default()),
            Err(error) => return Err(Error::protocol(error)),
        }
        let is_ready = |descriptor: &PollFd<'_>| !descriptor.revents().is_empty();
        let mut processes: Vec<usize> = owners
            .into_iter()
            .zip(&descriptors[1..])
            .filter(|(_, descriptor)| is_ready(descriptor))
            .map(|(index, _)| index)
            .collect();
        processes.dedup();
        Ok(Ready { socket: is_ready(&descriptors[0]), processes })
    }

    /// How long the loop may sleep without missing something of its own.
    fn timeout(&self) -> Option<Duration> {
        let soon = (!self.leaving.is_empty() || !self.pausing.is_empty()).then_some(Duration::from_millis(3));
        let ending = self.sandboxes.values().any(|sandbox| sandbox.ending.is_some()).then_some(UNTOLD);
        let held = self.held_by_signals().next().map(|_| UNTOLD);
        let endings = self.sandboxes.values().filter_map(|sandbox| sandbox.ending.as_ref());
        let deadline = endings.map(|ending| ending.deadline().saturating_duration_since(Instant::now())).min();
        soon.into_iter().chain(ending).chain(held).chain(deadline).min()
    }

    fn say(&self, said: &Said) -> Result<(), Error> {
        match wire::send(self.socket.as_fd(), said, &[]) {
            // The end of the socket is seen when it is read.
            Err(Error::Gone) => Ok(()),
            outcome => outcome,
        }
    }

    fn answer(&self, id: u64, outcome: Result<Answer, Error>) -> Result<(), Error> {
        match self.say(&Said::Answer { id, outcome }) {
            Err(Error::Spec { reason }) => self.say(&Said::Answer { id, outcome: Err(Error::Protocol { reason }) }),
            outcome => outcome,
        }
    }
}

#[derive(Default)]
struct Ready {
    socket: bool,
    /// In the order of the list.
    processes: Vec<usize>,
}
