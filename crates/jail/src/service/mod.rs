//! The launcher process: one thread, one event loop over its socket and its child processes.
//!
//! It ends with its client and leaves the sandboxes running: the next launcher adopts them by their records.

mod background_queries;
mod cpu_confinement;
mod exec;
mod file_mounts;
mod images;
mod kernel_features;
mod missing_features;
mod named_copies;
mod pausing;
mod probe;
mod processes;
mod quota_probe;
mod requests;
mod sealing;
mod starting;
mod startup;
mod termination;
mod volume_stacks;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Resource, Rlimit};

use crate::catalog::{Catalog, ImageRecord, SnapshotRecord};
use crate::cgroup::{self, CgroupBackend};
use crate::disk_pool::DiskPool;
use crate::error::{Error, StepFailure};
use crate::host_view::HostView;
use crate::id_maps::IdSource;
use crate::layers::LayerStore;
use crate::overlay_xattrs::OverlayXattrs;
use crate::record::{SandboxDir, SandboxRecord};
use crate::sandbox::{Exit, SandboxUsage};
use crate::seccomp::Filter;
use crate::setup::Landlock;
use crate::wire::{self, Answer, LauncherMessage, MAX_PACKET, RequestPacket, Settings};
use crate::{cpu_placement, init_process, kernel, own_program};

use cpu_confinement::LoadSample;
use images::ImportInProgress;
use pausing::PendingPause;
use processes::TrackedProcess;
pub(crate) use startup::create_private_dir;
use termination::{LeavingCgroup, Termination};

/// Poll interval for what sends no event: exits of other processes' children during a termination, and new processes in
/// a sandbox that is paused by signals.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Entry point of the hidden argument `launcher`. Call it before any thread starts.
pub fn launcher_main() -> ExitCode {
    match run_launcher() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is no other place to report it.
            let _ = writeln!(std::io::stderr(), "launcher: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_launcher() -> Result<(), Error> {
    kernel::ignore_terminal_signals();
    kernel::close_from(3).map_err(Error::protocol)?;
    let program_protection = own_program::execute_read_only();
    // Adopt orphaned programs that entered a sandbox: its pid namespace cannot end before they are reaped, and not
    // every host's init reaps soon.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(Error::protocol)?;
    let socket = init_process::take_inherited_fd(0).map_err(Error::protocol)?;
    let files = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: files.maximum, maximum: files.maximum };
    // Each sandbox needs a descriptor; a failure only means fewer sandboxes.
    let _ = rustix::process::setrlimit(Resource::Nofile, raised);
    let mut buffer = vec![0; MAX_PACKET];
    let Some((settings, _)) = wire::receive_packet::<Settings>(socket.as_fd(), &mut buffer)? else { return Ok(()) };
    let mut service = Service::new(socket, settings, program_protection);
    service.send_message(&LauncherMessage::Answer { id: 0, outcome: Ok(Answer::Done) })?;
    let outcome = service.run_loop(&mut buffer);
    if let Some(pool) = &service.pool {
        pool.unmount();
    }
    outcome
}

struct Service {
    socket: OwnedFd,
    settings: Settings,
    view: HostView,
    filter: Filter,
    landlock: Landlock,
    cgroups: Box<dyn CgroupBackend>,
    /// CPUs available to sandboxes.
    cpus: Vec<u32>,
    last_load_sample: Option<LoadSample>,
    id_source: IdSource,
    /// Held from the first request that needs the data directory until this launcher ends.
    lock: Option<File>,
    /// Mounted while this launcher runs.
    pool: Option<DiskPool>,
    data_dir: Option<DataDir>,
    sandboxes: BTreeMap<String, TrackedSandbox>,
    tracked: Vec<TrackedProcess>,
    leaving_cgroups: Vec<LeavingCgroup>,
    imports: Vec<ImportInProgress>,
    /// User namespaces for idmapped mounts, by the first id of the sandbox's range.
    mapping_namespaces: BTreeMap<u32, OwnedFd>,
    /// Result of the test mount of an overlay, once tried.
    overlay_support: Option<Result<OverlayXattrs, StepFailure>>,
    pausing: Vec<PendingPause>,
    /// A failure, if programs of a sandbox could write to the launcher's program: then none is started.
    program_protection: Result<(), StepFailure>,
}

/// The opened data directory.
struct DataDir {
    sandboxes: PathBuf,
    template: PathBuf,
    layers: LayerStore,
    snapshots: Catalog<SnapshotRecord>,
    caches: Catalog<SnapshotRecord>,
    images: Catalog<ImageRecord>,
}

struct TrackedSandbox {
    dir: SandboxDir,
    /// `None` for an incomplete sandbox.
    record: Option<SandboxRecord>,
    exit: Option<Exit>,
    /// Protected paths that did not exist when the worker started.
    unprotected: Vec<String>,
    /// Usage of processes that have ended.
    usage: SandboxUsage,
    ending: Option<Termination>,
}

impl TrackedSandbox {
    /// Creates the state of a sandbox that was found on disk.
    fn from_disk(dir: SandboxDir, record: Option<SandboxRecord>) -> Self {
        Self { dir, record, exit: None, unprotected: Vec::new(), usage: SandboxUsage::default(), ending: None }
    }
}

impl Service {
    fn new(socket: OwnedFd, settings: Settings, program_protection: Result<(), StepFailure>) -> Self {
        Self {
            view: HostView::build(settings.home.as_deref(), &settings.tool_dirs, &settings.data_dir),
            filter: Filter::new(),
            landlock: Landlock::detect(),
            cgroups: cgroup::detect_backend(&settings.deployment),
            cpus: cpu_placement::available_cpus(),
            last_load_sample: None,
            id_source: IdSource::detect(settings.id_base),
            lock: None,
            pool: None,
            data_dir: None,
            sandboxes: BTreeMap::new(),
            tracked: Vec::new(),
            leaving_cgroups: Vec::new(),
            imports: Vec::new(),
            mapping_namespaces: BTreeMap::new(),
            overlay_support: None,
            pausing: Vec::new(),
            program_protection,
            socket,
            settings,
        }
    }

    fn run_loop(&mut self, buffer: &mut [u8]) -> Result<(), Error> {
        loop {
            let ready = self.poll_ready()?;
            // Backwards, as an exited process leaves the list.
            for index in ready.processes.into_iter().rev() {
                self.handle_process_event(index)?;
            }
            self.reap_orphans();
            self.stop_new_processes();
            self.retry_pending()?;
            if ready.socket {
                match wire::receive_packet::<RequestPacket>(self.socket.as_fd(), buffer)? {
                    Some((packet, descriptors)) => self.handle_request(packet, descriptors)?,
                    None => return Ok(()),
                }
            }
        }
    }

    fn poll_ready(&self) -> Result<ReadySources, Error> {
        let mut descriptors = vec![PollFd::new(&self.socket, PollFlags::IN)];
        let mut owners = Vec::new();
        for (index, tracked) in self.tracked.iter().enumerate() {
            for descriptor in tracked.descriptors() {
                descriptors.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
                owners.push(index);
            }
        }
        let timeout = self.poll_timeout().map(|after| Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(after.subsec_nanos()),
        });
        match rustix::event::poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(ReadySources::default()),
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
        Ok(ReadySources { socket: is_ready(&descriptors[0]), processes })
    }

    /// Time until the next own deadline or poll.
    fn poll_timeout(&self) -> Option<Duration> {
        let soon = (!self.leaving_cgroups.is_empty() || !self.pausing.is_empty()).then_some(Duration::from_millis(3));
        let ending = self.sandboxes.values().any(|sandbox| sandbox.ending.is_some()).then_some(POLL_INTERVAL);
        let paused = self.paused_by_signals().next().map(|_| POLL_INTERVAL);
        let endings = self.sandboxes.values().filter_map(|sandbox| sandbox.ending.as_ref());
        let deadline = endings.map(|ending| ending.deadline().saturating_duration_since(Instant::now())).min();
        soon.into_iter().chain(ending).chain(paused).chain(deadline).min()
    }

    fn send_message(&self, message: &LauncherMessage) -> Result<(), Error> {
        match wire::send_packet(self.socket.as_fd(), message, &[]) {
            // The receive call reports the closed socket.
            Err(Error::LauncherGone) => Ok(()),
            outcome => outcome,
        }
    }

    fn send_answer(&self, id: u64, outcome: Result<Answer, Error>) -> Result<(), Error> {
        match self.send_message(&LauncherMessage::Answer { id, outcome }) {
            Err(Error::InvalidSpec { reason }) => {
                self.send_message(&LauncherMessage::Answer { id, outcome: Err(Error::Protocol { reason }) })
            }
            outcome => outcome,
        }
    }
}

#[derive(Default)]
struct ReadySources {
    socket: bool,
    /// Indices into the list of processes, ascending.
    processes: Vec<usize>,
}
