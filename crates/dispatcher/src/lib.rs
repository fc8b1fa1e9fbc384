//! The dispatcher: the worker's main loop. Every external event passes through its one `select!`.
//!
//! ```text
//! program ───► Read ───────┐                        ┌─► disk: events, delivery journal
//! disk ──────► DiskResult ─┤                        ├─► program: keys, messages, stop, errors
//! links ─────► LinkReport ─┼─► External ─► State ───┼─► uplink: the last durable key
//! signals ─────────────────┤                        ├─► acknowledgements
//! timers ──────────────────┘                        └─► downlink: leases, live text
//! ```
//! The program is the executor of an agent, or a process that reads and writes lines (`program`). The worker in a
//! sandbox and the fake provider run this loop: they differ in the program, in the `ServerLink` (HTTP or calls in the
//! server's process) and in the disk (the spool or memory). `conversation` is the part that their executors share.
//!
//! Two invariants: effects follow the disk (the worker prints a key, hands over a message or sends an acknowledgement
//! only after the record is on disk), and the loop never waits (the disk, the links and the program have their own
//! threads and tasks).

use atoll_core::sandbox::Activity;
use atoll_spool::journal::{Acknowledgement, DeliveryJournal, JournalRecord};
use atoll_spool::{EventQueue, SpoolStream};
use disk::{AfterRecord, Disk, DiskJob, DiskResult};
use link::acknowledgements::AckSender;
use link::downlink::{DownlinkChannels, OpenLeases};
use link::heartbeat::{ActivitySince, HeartbeatSender};
use link::uplink::{Durable, Uplink};
use link::{LinkReport, SandboxPhase, ServerLink};
use program::input::Read;
use program::{Program, ProgramOutput};
use state::State;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

pub mod conversation;
pub mod disk;
mod exit;
pub mod link;
mod outputs;
pub mod program;
mod state;

pub use exit::{Exit, SETUP_FAILED};

/// Back-pressure limit: stop reading input at this many waiting disk jobs.
const MAX_DISK_JOBS: usize = 4;
/// Capacity of the channel for link reports.
const MAX_REPORTS: usize = 64;
/// Capacity of the channel for live text; the dispatcher drops what does not fit.
const MAX_LIVE_TEXTS: usize = 64;
/// Time for the program to read its last lines.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings that differ between the worker of a sandbox, a worker started by hand and the fake provider's.
#[derive(Debug, Clone, Copy)]
pub struct Behaviour {
    /// Lease messages and hand them to the program.
    pub messages: bool,
    /// Time limit for sending after the end of the input; `None` means no limit.
    pub flush_timeout: Option<Duration>,
    /// Time for the program to finish after the sandbox has ended.
    pub stop_grace: Duration,
    /// Time for the program to finish after a signal; with `None`, the worker closes at once.
    pub signal_grace: Option<Duration>,
    /// Start of the runtime's clock. If set, heartbeats align to it, so that a host with many workers wakes up rarely.
    pub timer_origin: Option<Instant>,
}

/// A worker that is ready to run.
pub struct Worker {
    pub link: Arc<dyn ServerLink>,
    pub behaviour: Behaviour,
    pub stream: SpoolStream,
    pub disk: Disk,
    pub outbox: Box<dyn EventQueue>,
    pub journal: DeliveryJournal,
    /// Acknowledgements that earlier workers left.
    pub acknowledgements: Vec<Acknowledgement>,
}

/// An external event.
enum External {
    Read(Option<Read>),
    Disk(DiskResult),
    Report(LinkReport),
    /// The program has read some of its lines.
    OutputRead,
    Signal,
    /// The program's time to finish is over.
    GraceExpired,
    /// The time to send the rest is over.
    FlushExpired,
}

/// Runs a worker to its end. Each item of `signals` asks it to exit. Dropping the future ends the worker at once.
pub async fn run_worker(worker: Worker, mut program: Program, mut signals: mpsc::Receiver<()>) -> Exit {
    let Worker { link, behaviour, stream, mut disk, outbox, journal, acknowledgements: left } = worker;

    let (reports, mut reported) = mpsc::channel(MAX_REPORTS);
    let (durable, durable_seen) = watch::channel(Durable::default());
    let (activity, activity_seen) = watch::channel(ActivitySince { activity: Activity::Working, after_key: 0 });
    let (phase, phase_seen) = watch::channel(SandboxPhase::default());
    let (leases, leases_seen) = watch::channel(OpenLeases::default());
    let (acknowledgements, queue) = mpsc::unbounded_channel();
    let (live, live_queue) = mpsc::channel(MAX_LIVE_TEXTS);

    let progress = outbox.progress();
    let mut links = JoinSet::new();
    links.spawn(Uplink::new(stream, outbox, &*link, durable_seen.clone(), reports.clone()).run());
    let heartbeats = HeartbeatSender {
        stream,
        link: Arc::clone(&link),
        activity: activity_seen,
        durable: durable_seen,
        reports: reports.clone(),
        timer_origin: behaviour.timer_origin,
    };
    links.spawn(heartbeats.run());
    let ack_sender = AckSender {
        stream: stream.id,
        link: Arc::clone(&link),
        queue,
        phase: phase_seen.clone(),
        reports: reports.clone(),
    };
    links.spawn(ack_sender.run());
    if behaviour.messages {
        let reports = reports.clone();
        let channels = DownlinkChannels { stream, phase: phase_seen, leases: leases_seen, live: live_queue, reports };
        links.spawn(link.run_downlink(channels));
    }

    let outputs = outputs::LinkOutputs { durable, activity, phase, leases, acknowledgements, live };
    let mut state = State::new(behaviour, journal, progress, outputs);
    state.resend_acknowledgements(left);

    let exit = loop {
        let Program { input, output } = &mut program;
        let take_input = state.takes_input() && disk.waiting() < MAX_DISK_JOBS && output.has_room();
        let output_full = !output.has_room();
        let (grace, flush) = (state.grace_deadline(), state.flush_deadline());
        let external = tokio::select! {
            read = input.recv(), if take_input => External::Read(read),
            result = disk.next_result() => External::Disk(result),
            Some(report) = reported.recv() => External::Report(report),
            () = output.wait_for_read(), if output_full => External::OutputRead,
            Some(()) = signals.recv() => External::Signal,
            () = sleep_until_deadline(grace) => External::GraceExpired,
            () = sleep_until_deadline(flush) => External::FlushExpired,
        };
        let rest = if state.closes_at(&external) { program.take_unread() } else { Vec::new() };
        let mut effects = Effects { disk: &mut disk, program: &program.output };
        let ended = match external {
            External::Read(Some(Read::Items(items))) => state.handle_items(items, &mut effects),
            External::Read(Some(Read::Ended(error))) => state.handle_input_end(error, &mut effects),
            External::Read(None) => state.handle_input_end(None, &mut effects),
            External::Disk(DiskResult::Events { first, last }) => state.handle_stored_events(first, last, &mut effects),
            External::Disk(DiskResult::Journal(after)) => state.handle_stored_record(after, &mut effects),
            External::Disk(DiskResult::Full) => state.handle_full_disk(),
            External::Report(LinkReport::Uplink(report)) => state.handle_uplink(report),
            External::Report(LinkReport::Heartbeat(report)) => state.handle_heartbeat(report, &mut effects),
            External::Report(LinkReport::Downlink(report)) => state.handle_downlink(report, &mut effects),
            External::Report(LinkReport::Acknowledgements(report)) => state.handle_settled(report, &mut effects),
            External::OutputRead => None,
            External::Signal => state.handle_signal(rest, &mut effects),
            External::GraceExpired => state.close_with(rest, "", &mut effects),
            External::FlushExpired => Some(state.not_flushed()),
        };
        let idle = disk.waiting() == 0;
        if let Some(exit) = ended.or_else(|| state.is_flushed(idle).then_some(Exit::Done)) {
            break exit;
        }
    };
    drop(timeout(LAST_LINES_TIMEOUT, program.output.wait_until_empty()).await);
    exit
}

/// The disk and the program, for the effects of an event.
struct Effects<'a> {
    disk: &'a mut Disk,
    program: &'a ProgramOutput,
}

impl Effects<'_> {
    fn write_record(&mut self, record: JournalRecord, after: AfterRecord) {
        self.disk.submit(DiskJob::Journal { record, after });
    }
}

/// Waits for a deadline; forever if there is none.
async fn sleep_until_deadline(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
