//! The map of the worker: everything from outside comes in here, in one loop, and nowhere else.
//!
//! ```text
//! program ► Read ─┐                       ┌─► disk: events, journal
//! disk ───► Done ─┤                       ├─► program: keys, messages, stop, errors
//! server ► Report ┼─► Outside ─► Running ─┼─► up-link: how far it may send
//! signals ────────┤                       ├─► answers: what became of messages
//! clocks ─────────┘                       └─► down-link: leases, live text
//! ```
//! The program is one that speaks in lines on standard input and output, or the executor of an agent (`program`).
//!
//! Two rules hold it together. What must survive goes to disk first, and its effect follows when the
//! disk says done: a key is printed, a message handed over, an answer sent. And nothing in the loop waits:
//! whoever is slow (the disk, the server, the program) has a thread or a task of its own.

use crate::answers::{self, Answers};
use crate::disk::{Disk, Done};
use crate::downlink::{self, Downlink};
use crate::heartbeat::{self, Beater, ByStream, Doing};
use crate::input::Read;
use crate::program::{Outlet, Program};
use crate::setup::{Error, Worker};
use crate::uplink::{self, Durable, Uplink};
use crate::{Exit, disk};
use atoll_core::sandbox::Activity;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

mod links;
mod running;

use running::Running;

/// How many jobs may wait for the disk before no more input is taken.
const DISK_WAITING: usize = 4;
/// Reports of tasks that have not been looked at.
const REPORTS: usize = 64;
/// Streamed text that waits for the link; what does not fit is dropped.
const LIVE: usize = 64;
/// How long a program that does not read its output may hold up the end.
const LAST_LINES: Duration = Duration::from_secs(2);

/// What the tasks tell.
#[derive(Debug)]
pub enum Report {
    Uplink(uplink::Report),
    Heartbeat(heartbeat::Report),
    Downlink(downlink::Report),
    Answers(answers::Report),
}

/// What the tasks have to know of the sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phase {
    /// The server has answered a heartbeat: it knows this worker's stream.
    pub registered: bool,
    /// The sandbox is ending or has ended.
    pub ended: bool,
    /// Nobody is there any more to hand a message to.
    pub leaving: bool,
}

/// Everything that can happen.
enum Outside {
    Read(Option<Read>),
    Disk(Done),
    Report(Report),
    /// The program has read some of its lines.
    Written,
    Signal,
    /// The time after a stop is over.
    GraceOver,
    /// The time for sending the rest is over.
    FlushOver,
}

/// Runs a worker to its end. What comes from `signals` tells it to go.
pub async fn run(worker: Worker, mut program: Program, mut signals: mpsc::Receiver<()>) -> Result<Exit, Error> {
    let manner = worker.manner;
    let mut disk = Disk::start(worker.writer, worker.journal_file)?;

    let (reports, mut reported) = mpsc::channel(REPORTS);
    let (durable, durable_seen) = watch::channel(Durable::default());
    let (activity, activity_seen) = watch::channel(Doing { activity: Activity::Working, after: 0 });
    let (phase, phase_seen) = watch::channel(Phase::default());
    let (leases, leases_seen) = watch::channel(Vec::new());
    let (answers, answers_queue) = mpsc::unbounded_channel();
    let (live, live_queue) = mpsc::channel(LIVE);
    let (beats, beats_queue) = mpsc::channel(1);
    let (up, up_seen) = watch::channel(false);

    let (stream, server) = (worker.stream, worker.server);
    let progress = worker.outbox.progress();
    tracing::info!(%stream, server = ?server.dialer, left_by_earlier_workers = progress.older_left, "started");
    tokio::spawn(Uplink::new(worker.outbox, server.client(), durable_seen.clone(), reports.clone()).run());
    let beater = Beater {
        stream,
        spool: worker.spool,
        client: server.client(),
        activity: activity_seen,
        durable: durable_seen,
        reports: reports.clone(),
        seldom: manner.seldom,
        by_stream: ByStream { beats, up: up_seen },
    };
    tokio::spawn(beater.run());
    let client = server.client();
    let teller = Answers {
        stream: stream.id,
        client,
        queue: answers_queue,
        phase: phase_seen.clone(),
        reports: reports.clone(),
    };
    tokio::spawn(teller.run());
    if manner.messages {
        let downlink = Downlink {
            server,
            stream,
            phase: phase_seen,
            leases: leases_seen,
            live: live_queue,
            beats: beats_queue,
            up,
            reports: reports.clone(),
        };
        tokio::spawn(downlink.run());
    }

    let links = links::Links { durable, activity, phase, leases, answers, live };
    let mut running = Running::new(manner, worker.journal, progress, links);
    running.tell_again(worker.answers);

    let exit = loop {
        let Program { input, output } = &mut program;
        let take_input = running.takes_input() && disk.waiting() < DISK_WAITING && output.has_room();
        let output_full = !output.has_room();
        let (grace, flush) = (running.grace_ends(), running.flush_ends());
        let outside = tokio::select! {
            read = input.recv(), if take_input => Outside::Read(read),
            done = disk.done() => Outside::Disk(done),
            Some(report) = reported.recv() => Outside::Report(report),
            () = output.written(), if output_full => Outside::Written,
            Some(()) = signals.recv() => Outside::Signal,
            () = at(grace) => Outside::GraceOver,
            () = at(flush) => Outside::FlushOver,
        };
        let rest = if running.closes_at(&outside) { program.rest() } else { Vec::new() };
        let mut reach = Reach { disk: &mut disk, program: &program.output };
        let ended = match outside {
            Outside::Read(Some(Read::Items(items))) => running.take(items, &mut reach),
            Outside::Read(Some(Read::Ended(error))) => running.input_ended(error, &mut reach),
            Outside::Read(None) => running.input_ended(None, &mut reach),
            Outside::Disk(Done::Events { first, last }) => running.spooled(first, last, &mut reach),
            Outside::Disk(Done::Journal(then)) => running.written_down(then, &mut reach),
            Outside::Disk(Done::Full) => running.disk_full(),
            Outside::Report(Report::Uplink(report)) => running.uplink(report),
            Outside::Report(Report::Heartbeat(report)) => running.heartbeat(report, &mut reach),
            Outside::Report(Report::Downlink(report)) => running.downlink(report, &mut reach),
            Outside::Report(Report::Answers(report)) => running.answered(report, &mut reach),
            Outside::Written => None,
            Outside::Signal => running.signalled(rest, &mut reach),
            Outside::GraceOver => running.close_with(rest, "", &mut reach),
            Outside::FlushOver => Some(running.not_flushed()),
        };
        let idle = disk.waiting() == 0;
        if let Some(exit) = ended.or_else(|| running.is_flushed(idle).then_some(Exit::Done)) {
            break exit;
        }
    };
    drop(timeout(LAST_LINES, program.output.emptied()).await);
    drop(worker.lock);
    Ok(exit)
}

/// What the handlers act with.
struct Reach<'a> {
    disk: &'a mut Disk,
    program: &'a Outlet,
}

impl Reach<'_> {
    fn journal(&mut self, record: crate::journal::Record, then: disk::Then) {
        self.disk.give(disk::Job::Journal { record, then });
    }
}

/// At a point in time, or never.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
