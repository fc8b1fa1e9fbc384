//! The map of the worker: everything from outside comes in here, in one loop, and nowhere else.
//!
//! ```text
//! stdin ─► Read ─┐                       ┌─► disk: events, journal
//! disk ──► Done ─┤                       ├─► stdout: keys, messages, stop, errors
//! server ► Report┼─► Outside ─► Running ─┼─► up-link: how far it may send
//! signals ───────┤                       ├─► answers: what became of messages
//! clocks ────────┘                       └─► down-link: leases, live text
//! ```
//!
//! Two rules hold it together. What must survive goes to disk first, and its effect follows when the
//! disk says done: a key is printed, a message handed over, an answer sent. And nothing in the loop waits:
//! whoever is slow (the disk, the server, the program) has a thread or a task of its own.

use crate::answers::{self, Answers};
use crate::disk::{Disk, Done};
use crate::downlink::{self, Downlink};
use crate::heartbeat::{self, Beater};
use crate::input::{self, Read};
use crate::output::Output;
use crate::setup::{Error, Worker};
use crate::uplink::{self, Durable, Uplink};
use crate::{Exit, disk};
use atoll_core::sandbox::Activity;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

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

/// Runs a worker to its end.
pub async fn run(worker: Worker) -> Result<Exit, Error> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut input = input::start(std::io::stdin())?;
    let output = Output::start(std::io::stdout())?;
    let mut disk = Disk::start(worker.writer, worker.journal_file)?;

    let (reports, mut reported) = mpsc::channel(REPORTS);
    let (durable, durable_seen) = watch::channel(Durable::default());
    let (activity, activity_seen) = watch::channel(Activity::Working);
    let (phase, phase_seen) = watch::channel(Phase::default());
    let (leases, leases_seen) = watch::channel(Vec::new());
    let (answers, answers_queue) = mpsc::unbounded_channel();
    let (live, live_queue) = mpsc::channel(LIVE);

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
    if worker.messages {
        let downlink = Downlink {
            server,
            stream,
            phase: phase_seen,
            leases: leases_seen,
            live: live_queue,
            reports: reports.clone(),
        };
        tokio::spawn(downlink.run());
    }

    let links = running::Links { durable, activity, phase, leases, answers, live };
    let mut running = Running::new(worker.messages, worker.flush_timeout, worker.journal, progress, links);
    running.tell_again(worker.answers);

    let exit = loop {
        let take_input = running.takes_input() && disk.waiting() < DISK_WAITING && output.has_room();
        let output_full = !output.has_room();
        let (grace, flush) = (running.grace_ends(), running.flush_ends());
        let outside = tokio::select! {
            read = input.recv(), if take_input => Outside::Read(read),
            done = disk.done() => Outside::Disk(done),
            Some(report) = reported.recv() => Outside::Report(report),
            () = output.written(), if output_full => Outside::Written,
            () = either(&mut terminate, &mut interrupt) => Outside::Signal,
            () = at(grace) => Outside::GraceOver,
            () = at(flush) => Outside::FlushOver,
        };
        let mut hands = Hands { disk: &mut disk, output: &output };
        let ended = match outside {
            Outside::Read(Some(Read::Items(items))) => running.take(items, &mut hands),
            Outside::Read(Some(Read::Ended(error))) => running.input_ended(error, &mut hands),
            Outside::Read(None) => running.input_ended(None, &mut hands),
            Outside::Disk(Done::Events { first, last }) => running.spooled(first, last, &mut hands),
            Outside::Disk(Done::Journal(then)) => running.written_down(then, &mut hands),
            Outside::Disk(Done::Full) => running.disk_full(),
            Outside::Report(Report::Uplink(report)) => running.uplink(report),
            Outside::Report(Report::Heartbeat(report)) => running.heartbeat(report, &mut hands),
            Outside::Report(Report::Downlink(report)) => running.downlink(report, &mut hands),
            Outside::Report(Report::Answers(report)) => running.answered(report, &mut hands),
            Outside::Written => None,
            Outside::Signal if running.is_closing() => Some(running.not_flushed()),
            Outside::Signal => running.close_with(rest(&mut input), "terminated", &mut hands),
            Outside::GraceOver => running.close_with(rest(&mut input), "", &mut hands),
            Outside::FlushOver => Some(running.not_flushed()),
        };
        let idle = disk.waiting() == 0;
        if let Some(exit) = ended.or_else(|| running.is_flushed(idle).then_some(Exit::Done)) {
            break exit;
        }
    };
    let last_lines = async {
        while !output.is_empty() {
            output.written().await;
        }
    };
    drop(timeout(LAST_LINES, last_lines).await);
    drop(worker.lock);
    Ok(exit)
}

/// What the handlers act with.
struct Hands<'a> {
    disk: &'a mut Disk,
    output: &'a Output,
}

impl Hands<'_> {
    fn journal(&mut self, record: crate::journal::Record, then: disk::Then) {
        self.disk.give(disk::Job::Journal { record, then });
    }
}

/// What has been read already and not been looked at.
fn rest(input: &mut mpsc::Receiver<Read>) -> Vec<input::Item> {
    let mut items = Vec::new();
    while let Ok(Read::Items(more)) = input.try_recv() {
        items.extend(more);
    }
    items
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}

/// At a point in time, or never.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
