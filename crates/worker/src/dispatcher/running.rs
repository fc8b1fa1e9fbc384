//! What the worker knows while it runs, and what it does about each thing that happens.
//! Each handler returns an `Exit` if the worker ends there.

use super::links::Links;
use super::{Outside, Reach};
use crate::Exit;
use crate::disk::{Job, Then};
use crate::downlink::Live;
use crate::input::{Event, Item};
use crate::journal::{Answer, Arrival, Journal, Verdict};
use crate::setup::Manner;
use crate::spool::Progress;
use crate::uplink::Durable;
use crate::{answers, downlink, heartbeat, uplink};
use atoll_core::event::kind;
use atoll_core::id::MessageId;
use atoll_core::sandbox::{Activity, SandboxState};
use atoll_core::time::{Clock, SystemClock};
use atoll_protocol::LeasedMessage;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

/// For a slow disk to take what was read, after the time for sending is over.
const DISK_GRACE: Duration = Duration::from_secs(5);

pub(super) struct Running {
    manner: Manner,
    links: Links,
    journal: Journal,
    clock: SystemClock,
    /// The key of the next event.
    next_key: i64,
    /// The last key on disk.
    durable: i64,
    progress: Progress,
    started: bool,
    /// The state that ended the sandbox, and when the program's grace is over.
    stop: Option<(SandboxState, Instant)>,
    /// When the grace of a worker that was told to go is over.
    leaving: Option<Instant>,
    closing: Option<Closing>,
}

/// Nothing more is taken in; what is left is being sent.
struct Closing {
    /// The key of `agent.shutdown`.
    shutdown: i64,
    flush_ends: Option<Instant>,
    /// Everything that was taken in is on disk.
    on_disk: bool,
}

impl Running {
    pub(super) fn new(manner: Manner, journal: Journal, progress: Progress, links: Links) -> Self {
        Self {
            manner,
            links,
            journal,
            clock: SystemClock::start(),
            next_key: 1,
            durable: 0,
            progress,
            started: false,
            stop: None,
            leaving: None,
            closing: None,
        }
    }

    pub(super) const fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    pub(super) const fn takes_input(&self) -> bool {
        self.closing.is_none()
    }

    pub(super) fn grace_ends(&self) -> Option<Instant> {
        let ends = [self.stop.map(|(_, ends)| ends), self.leaving];
        ends.into_iter().flatten().min().filter(|_| !self.is_closing())
    }

    /// Whether what was read already is to be taken together with this: nothing more is read after it.
    pub(super) fn closes_at(&self, outside: &Outside) -> bool {
        match outside {
            Outside::GraceOver => true,
            Outside::Signal => self.manner.leave_grace.is_none() || self.leaving.is_some(),
            Outside::Read(_) | Outside::Disk(_) | Outside::Report(_) | Outside::Written | Outside::FlushOver => false,
        }
    }

    pub(super) fn flush_ends(&self) -> Option<Instant> {
        let closing = self.closing.as_ref()?;
        let slow_disk = if closing.on_disk { Duration::ZERO } else { DISK_GRACE };
        closing.flush_ends.map(|ends| ends + slow_disk)
    }

    /// Everything that was taken in is with the server.
    pub(super) fn is_flushed(&self, disk_is_idle: bool) -> bool {
        self.is_closing()
            && disk_is_idle
            && self.progress.older_left == 0
            && self.progress.acked >= self.next_key - 1
            && self.journal.unsettled() == 0
    }

    pub(super) fn not_flushed(&self) -> Exit {
        let events = self.progress.older_left + (self.durable - self.progress.acked).max(0);
        Exit::NotFlushed { events, answers: self.journal.unsettled() }
    }

    /// What an earlier worker left to tell.
    pub(super) fn tell_again(&self, answers: Vec<Answer>) {
        for answer in answers {
            tracing::info!(message = %answer.id, "an earlier worker left this message without the server knowing how it went");
            drop(self.links.answers.send(answer));
        }
    }

    // From the program.

    pub(super) fn take(&mut self, items: Vec<Item>, reach: &mut Reach<'_>) -> Option<Exit> {
        let (first, mut events) = (self.next_key, Vec::new());
        for item in items {
            let followed = match item {
                Item::Event(event) => {
                    events.push(event);
                    self.next_key += 1;
                    Ok(())
                }
                Item::Ack(ack) => self.answer(ack.id, Verdict::Ack { how: ack.how, turn: ack.turn }, reach),
                Item::Nack(nack) => {
                    let verdict = Verdict::Nack { handed: nack.handed, reason: nack.reason, retry: nack.retry };
                    self.answer(nack.id, verdict, reach)
                }
                Item::Live(data) => {
                    // Dropped when the link is down or slow: it is of this moment only.
                    drop(self.links.live.try_send(Live { after_key: self.next_key - 1, data }));
                    Ok(())
                }
                Item::Activity(Activity::Starting) => Err("activity: `starting` is for the worker to say".to_owned()),
                Item::Activity(activity) => {
                    self.started = true;
                    self.links.set_activity(activity, self.next_key - 1);
                    Ok(())
                }
                Item::Wrong(why) => Err(why),
            };
            if let Err(error) = followed {
                reach.program.error(&error);
            }
        }
        if !events.is_empty() {
            reach.disk.give(Job::Events { first, events });
        }
        None
    }

    fn answer(&mut self, id: MessageId, verdict: Verdict, reach: &mut Reach<'_>) -> Result<(), String> {
        let (record, answer) = self.journal.answer(id, verdict).map_err(|error| error.to_string())?;
        reach.journal(record, Then::Answer(answer));
        self.publish_leases();
        Ok(())
    }

    pub(super) fn input_ended(&mut self, error: Option<std::io::Error>, reach: &mut Reach<'_>) -> Option<Exit> {
        if let Some(error) = error {
            tracing::error!(%error, "failed to read the input; it counts as ended");
        }
        self.close("input_ended", reach)
    }

    /// The worker was told to go. Whoever it works for may get a while for what is under way; being told again ends that.
    pub(super) fn signalled(&mut self, rest: Vec<Item>, reach: &mut Reach<'_>) -> Option<Exit> {
        match self.manner.leave_grace {
            None if self.is_closing() => Some(self.not_flushed()),
            Some(_) if self.is_closing() => None,
            Some(grace) if self.leaving.is_none() => {
                tracing::info!("told to go; what is under way may be finished");
                self.leaving = Some(Instant::now() + grace);
                self.links.phase.send_modify(|phase| phase.leaving = true);
                reach.program.leave();
                None
            }
            None | Some(_) => self.close_with(rest, "terminated", reach),
        }
    }

    /// Takes what was read already, and nothing more.
    pub(super) fn close_with(&mut self, rest: Vec<Item>, reason: &str, reach: &mut Reach<'_>) -> Option<Exit> {
        self.take(rest, reach);
        self.close(reason, reach)
    }

    fn close(&mut self, reason: &str, reach: &mut Reach<'_>) -> Option<Exit> {
        if self.is_closing() {
            return None;
        }
        let reason = match self.stop {
            Some((state, _)) => format!("sandbox_{state}"),
            None if self.leaving.is_some() => "terminated".to_owned(),
            None => reason.to_owned(),
        };
        for (record, answer) in self.journal.answer_all(&reason) {
            reach.journal(record, Then::Answer(answer));
        }
        self.publish_leases();
        let event = Event::of_worker(kind::AGENT_SHUTDOWN, self.clock.now(), &json!({"reason": reason}));
        let events: Vec<_> = event.into_iter().collect();
        let shutdown = self.next_key;
        self.next_key += i64::try_from(events.len()).unwrap_or(0);
        reach.disk.give(Job::Events { first: shutdown, events });
        let flush_ends = self.manner.flush_timeout.map(|timeout| Instant::now() + timeout);
        self.closing = Some(Closing { shutdown, flush_ends, on_disk: false });
        self.links.phase.send_modify(|phase| phase.leaving = true);
        tracing::info!(reason, "no more input is taken; sending what is left");
        None
    }

    // From the disk.

    pub(super) fn spooled(&mut self, first: i64, last: i64, reach: &mut Reach<'_>) -> Option<Exit> {
        self.durable = last;
        // The worker's own last event has a key too, but nobody waits for it.
        let asked_for = match &mut self.closing {
            Some(closing) => {
                closing.on_disk = last >= closing.shutdown;
                last.min(closing.shutdown - 1)
            }
            None => last,
        };
        reach.program.keys(first..=asked_for);
        self.publish_durable();
        None
    }

    pub(super) fn written_down(&mut self, then: Then, reach: &mut Reach<'_>) -> Option<Exit> {
        match then {
            Then::HandOver(message) => {
                if self.journal.hand_over(message.id) {
                    reach.program.message(message);
                }
            }
            Then::Answer(answer) => drop(self.links.answers.send(answer)),
            Then::Nothing => {}
        }
        None
    }

    /// The up-link looks for something to delete.
    pub(super) fn disk_full(&self) -> Option<Exit> {
        self.links.durable.send_modify(|durable| durable.disk_full += 1);
        None
    }

    // From the server.

    pub(super) fn uplink(&mut self, report: uplink::Report) -> Option<Exit> {
        match report {
            uplink::Report::Progress(progress) => {
                self.progress = progress;
                None
            }
            uplink::Report::Ended(exit) => Some(exit),
        }
    }

    pub(super) fn heartbeat(&mut self, report: heartbeat::Report, reach: &mut Reach<'_>) -> Option<Exit> {
        match report {
            heartbeat::Report::Answered(answer) => {
                self.links.phase.send_if_modified(|phase| !std::mem::replace(&mut phase.registered, true));
                if let Some(start) = answer.start {
                    self.start(start, reach);
                }
                if !answer.state.takes_messages() {
                    self.stop(answer.state, reach);
                }
                None
            }
            // Of an ended sandbox the server may not want to hear any more; its events it still takes.
            heartbeat::Report::Ended(Exit::Refused { detail }) if self.stop.is_some() => {
                tracing::info!(detail, "no more heartbeats: the sandbox has ended");
                None
            }
            heartbeat::Report::Ended(exit) => Some(exit),
        }
    }

    fn start(&mut self, start: heartbeat::Start, reach: &mut Reach<'_>) {
        if !std::mem::replace(&mut self.started, true) {
            let waits = self.manner.messages && start.prompt.is_none();
            let activity = if waits { Activity::WaitingMessage } else { Activity::Working };
            self.links.set_activity(activity, self.next_key - 1);
            reach.program.begin(&start);
        }
        if let Some(prompt) = start.prompt {
            if !self.manner.messages {
                tracing::warn!(message = %prompt.id, "the sandbox has a prompt; it stays queued, as there is no --messages");
            }
            self.message(prompt, reach);
        }
    }

    pub(super) fn downlink(&mut self, report: downlink::Report, reach: &mut Reach<'_>) -> Option<Exit> {
        match report {
            downlink::Report::Message(message) => self.message(*message, reach),
            downlink::Report::Answer(answer) => reach.program.answer(answer),
            downlink::Report::Limits(limits, held) => reach.program.limits(limits, held),
            downlink::Report::Stop(state) => self.stop(state, reach),
            downlink::Report::Ended(exit) => return Some(exit),
        }
        None
    }

    /// A message has been leased to this worker.
    fn message(&mut self, message: LeasedMessage, reach: &mut Reach<'_>) {
        let id = message.id;
        match self.journal.arrive(id, message.lease) {
            Arrival::New(record) => {
                let unwanted = if !self.manner.messages {
                    Some("messages_not_taken")
                } else if self.stop.is_some() || self.leaving.is_some() || self.is_closing() {
                    Some("worker_stopping")
                } else {
                    None
                };
                match unwanted.and_then(|reason| self.journal.give_back(id, reason)) {
                    Some((record, answer)) => reach.journal(record, Then::Answer(answer)),
                    None => reach.journal(record, Then::HandOver(Box::new(message))),
                }
            }
            Arrival::Held(record) => reach.journal(record, Then::Nothing),
            Arrival::Answered(record, answer) => {
                tracing::info!(message = %id, "a message that was answered came again; it is answered again, not handed over");
                reach.journal(record, Then::Answer(answer));
            }
        }
        self.publish_leases();
    }

    /// The sandbox is ending: the program has a moment for its last lines.
    fn stop(&mut self, state: SandboxState, reach: &mut Reach<'_>) {
        if self.stop.is_some() || state.takes_messages() {
            return;
        }
        self.stop = Some((state, Instant::now() + self.manner.stop_grace));
        self.links.phase.send_modify(|phase| phase.ended = true);
        reach.program.stop(state);
        self.publish_durable();
    }

    pub(super) fn answered(&mut self, report: answers::Report, reach: &mut Reach<'_>) -> Option<Exit> {
        match report {
            answers::Report::Settled { id, lease } => {
                if let Some(record) = self.journal.settle(id, lease) {
                    reach.journal(record, Then::Nothing);
                }
                self.publish_durable();
                None
            }
            answers::Report::Ended(exit) => Some(exit),
        }
    }

    // To the tasks.

    fn publish_leases(&self) {
        self.links.set_leases(self.journal.leases());
    }

    /// How far the up-link may send. The last event of an ended sandbox is marked as final, and after
    /// it the server takes nothing more: it waits until the answers to messages are through.
    fn publish_durable(&self) {
        let mut next = Durable { last_key: self.durable, ..Durable::default() };
        if let (Some(_), Some(closing)) = (self.stop, &self.closing) {
            if self.journal.unsettled() > 0 {
                next.last_key = self.durable.min(closing.shutdown - 1);
            } else {
                next.final_key = Some(closing.shutdown);
            }
        }
        self.links.set_durable(next);
    }
}
