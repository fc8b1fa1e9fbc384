//! The dispatcher's state, with one handler per external event. A handler returns an `Exit` if the worker ends.

use crate::disk::{AfterRecord, DiskJob};
use crate::link::acknowledgements::AckReport;
use crate::link::downlink::{DownlinkReport, LiveText, MAX_RENEWAL_INTERVAL, OpenLeases, renewal_interval};
use crate::link::heartbeat::{HeartbeatReport, Start};
use crate::link::uplink::{Durable, UplinkReport};
use crate::outputs::LinkOutputs;
use crate::program::input::{Event, Item};
use crate::{Behaviour, Effects, Exit, External};
use atoll_api::events::{AgentShutdown, EventData};
use atoll_core::id::MessageId;
use atoll_core::sandbox::{Activity, SandboxState};
use atoll_core::time::{Clock, SystemClock};
use atoll_protocol::LeasedMessage;
use atoll_spool::SpoolProgress;
use atoll_spool::journal::{Acknowledgement, Arrival, DeliveryJournal, DeliveryOutcome};
use std::time::Duration;
use tokio::time::Instant;

/// Extra time for a slow disk after the flush deadline.
const DISK_GRACE: Duration = Duration::from_secs(5);

pub(super) struct State {
    behaviour: Behaviour,
    outputs: LinkOutputs,
    journal: DeliveryJournal,
    clock: SystemClock,
    /// From the newest lease: the server gives all leases the same duration.
    renewal_interval: Duration,
    /// The key of the next event.
    next_key: i64,
    /// The last key on disk.
    durable: i64,
    progress: SpoolProgress,
    started: bool,
    /// The state that ended the sandbox, and the program's deadline.
    stop: Option<(SandboxState, Instant)>,
    /// The program's deadline after a signal.
    leaving: Option<Instant>,
    closing: Option<Closing>,
}

/// The input is closed; the links send the rest.
struct Closing {
    /// The key of `agent.shutdown`.
    shutdown: i64,
    flush_deadline: Option<Instant>,
    /// All input is on disk.
    on_disk: bool,
}

impl State {
    pub(super) fn new(
        behaviour: Behaviour,
        journal: DeliveryJournal,
        progress: SpoolProgress,
        outputs: LinkOutputs,
    ) -> Self {
        Self {
            behaviour,
            outputs,
            journal,
            clock: SystemClock::start(),
            renewal_interval: MAX_RENEWAL_INTERVAL,
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

    pub(super) fn grace_deadline(&self) -> Option<Instant> {
        let ends = [self.stop.map(|(_, ends)| ends), self.leaving];
        ends.into_iter().flatten().min().filter(|_| !self.is_closing())
    }

    /// True if this event closes the input: the caller then passes what was read already.
    pub(super) fn closes_at(&self, outside: &External) -> bool {
        match outside {
            External::GraceExpired => true,
            External::Signal => self.behaviour.signal_grace.is_none() || self.leaving.is_some(),
            External::Read(_)
            | External::Disk(_)
            | External::Report(_)
            | External::OutputRead
            | External::FlushExpired => false,
        }
    }

    pub(super) fn flush_deadline(&self) -> Option<Instant> {
        let closing = self.closing.as_ref()?;
        let slow_disk = if closing.on_disk { Duration::ZERO } else { DISK_GRACE };
        closing.flush_deadline.map(|ends| ends + slow_disk)
    }

    /// The server has everything.
    pub(super) fn is_flushed(&self, disk_is_idle: bool) -> bool {
        self.is_closing()
            && disk_is_idle
            && self.progress.older_unacked == 0
            && self.progress.acked >= self.next_key - 1
            && self.journal.unsettled_count() == 0
    }

    pub(super) fn not_flushed(&self) -> Exit {
        let events = self.progress.older_unacked + (self.durable - self.progress.acked).max(0);
        Exit::NotFlushed { events, acknowledgements: self.journal.unsettled_count() }
    }

    /// Sends the acknowledgements that earlier workers left.
    pub(super) fn resend_acknowledgements(&self, acknowledgements: Vec<Acknowledgement>) {
        for acknowledgement in acknowledgements {
            tracing::info!(message = %acknowledgement.id, "sending an acknowledgement that an earlier worker left");
            drop(self.outputs.acknowledgements.send(acknowledgement));
        }
    }

    // From the program.

    pub(super) fn handle_items(&mut self, items: Vec<Item>, effects: &mut Effects<'_>) -> Option<Exit> {
        let (first, mut events) = (self.next_key, Vec::new());
        for item in items {
            let handled = match item {
                Item::Event(event) => {
                    events.push(event);
                    self.next_key += 1;
                    Ok(())
                }
                Item::Ack(ack) => {
                    self.acknowledge(ack.id, DeliveryOutcome::Ack { how: ack.how, turn: ack.turn }, effects)
                }
                Item::Nack(nack) => {
                    let verdict = DeliveryOutcome::Nack { handed: nack.handed, reason: nack.reason, retry: nack.retry };
                    self.acknowledge(nack.id, verdict, effects)
                }
                Item::Live(data) => {
                    // Live text may be lost: drop it when the link is down or slow.
                    drop(self.outputs.live.try_send(LiveText { after_key: self.next_key - 1, data }));
                    Ok(())
                }
                Item::Activity(Activity::Starting) => Err("activity: only the worker reports `starting`".to_owned()),
                Item::Activity(activity) => {
                    self.started = true;
                    self.outputs.set_activity(activity, self.next_key - 1);
                    Ok(())
                }
                Item::Invalid(why) => Err(why),
            };
            if let Err(error) = handled {
                effects.program.send_error(&error);
            }
        }
        if !events.is_empty() {
            effects.disk.submit(DiskJob::Events { first, events });
        }
        None
    }

    fn acknowledge(
        &mut self,
        id: MessageId,
        verdict: DeliveryOutcome,
        effects: &mut Effects<'_>,
    ) -> Result<(), String> {
        let (record, acknowledgement) = self.journal.acknowledge(id, verdict).map_err(|error| error.to_string())?;
        effects.write_record(record, AfterRecord::Send(acknowledgement));
        self.publish_leases();
        Ok(())
    }

    pub(super) fn handle_input_end(
        &mut self,
        error: Option<std::io::Error>,
        effects: &mut Effects<'_>,
    ) -> Option<Exit> {
        if let Some(error) = error {
            tracing::error!(%error, "failed to read the input; treating it as ended");
        }
        self.close("input_ended", effects)
    }

    /// Handles a signal to exit: gives the program time to finish its current tool; a second signal ends that time.
    pub(super) fn handle_signal(&mut self, rest: Vec<Item>, effects: &mut Effects<'_>) -> Option<Exit> {
        match self.behaviour.signal_grace {
            None if self.is_closing() => Some(self.not_flushed()),
            Some(_) if self.is_closing() => None,
            Some(grace) if self.leaving.is_none() => {
                tracing::info!("exiting; the agent may finish its current tool");
                self.leaving = Some(Instant::now() + grace);
                self.outputs.phase.send_modify(|phase| phase.leaving = true);
                effects.program.send_leave();
                None
            }
            None | Some(_) => self.close_with(rest, "terminated", effects),
        }
    }

    /// Handles what was read already, then closes the input.
    pub(super) fn close_with(&mut self, rest: Vec<Item>, reason: &str, effects: &mut Effects<'_>) -> Option<Exit> {
        self.handle_items(rest, effects);
        self.close(reason, effects)
    }

    fn close(&mut self, reason: &str, effects: &mut Effects<'_>) -> Option<Exit> {
        if self.is_closing() {
            return None;
        }
        let reason = match self.stop {
            Some((state, _)) => format!("sandbox_{state}"),
            None if self.leaving.is_some() => "terminated".to_owned(),
            None => reason.to_owned(),
        };
        for (record, acknowledgement) in self.journal.acknowledge_all(&reason) {
            effects.write_record(record, AfterRecord::Send(acknowledgement));
        }
        self.publish_leases();
        let data = EventData::AgentShutdown(AgentShutdown { reason: reason.clone() });
        let event = Event::from_worker(&data, self.clock.now());
        let events: Vec<_> = event.into_iter().collect();
        let shutdown = self.next_key;
        self.next_key += i64::try_from(events.len()).unwrap_or(0);
        effects.disk.submit(DiskJob::Events { first: shutdown, events });
        let flush_deadline = self.behaviour.flush_timeout.map(|timeout| Instant::now() + timeout);
        self.closing = Some(Closing { shutdown, flush_deadline, on_disk: false });
        self.outputs.phase.send_modify(|phase| phase.leaving = true);
        tracing::info!(reason, "the input is closed; sending the rest");
        None
    }

    // From the disk.

    pub(super) fn handle_stored_events(&mut self, first: i64, last: i64, effects: &mut Effects<'_>) -> Option<Exit> {
        self.durable = last;
        // The program does not expect the key of the worker's own last event.
        let last_expected = match &mut self.closing {
            Some(closing) => {
                closing.on_disk = last >= closing.shutdown;
                last.min(closing.shutdown - 1)
            }
            None => last,
        };
        effects.program.send_keys(first..=last_expected);
        self.publish_durable();
        None
    }

    pub(super) fn handle_stored_record(&mut self, after: AfterRecord, effects: &mut Effects<'_>) -> Option<Exit> {
        match after {
            AfterRecord::HandOver(message) => {
                if self.journal.mark_handed_over(message.id) {
                    effects.program.send_message(message);
                }
            }
            AfterRecord::Send(acknowledgement) => drop(self.outputs.acknowledgements.send(acknowledgement)),
            AfterRecord::Nothing => {}
        }
        None
    }

    /// Makes the uplink delete sent segments.
    pub(super) fn handle_full_disk(&self) -> Option<Exit> {
        self.outputs.durable.send_modify(|durable| durable.disk_full += 1);
        None
    }

    // From the server.

    pub(super) fn handle_uplink(&mut self, report: UplinkReport) -> Option<Exit> {
        match report {
            UplinkReport::Progress(progress) => {
                self.progress = progress;
                None
            }
            UplinkReport::Ended(exit) => Some(exit),
        }
    }

    pub(super) fn handle_heartbeat(&mut self, report: HeartbeatReport, effects: &mut Effects<'_>) -> Option<Exit> {
        match report {
            HeartbeatReport::Answered(answer) => {
                self.outputs.phase.send_if_modified(|phase| !std::mem::replace(&mut phase.registered, true));
                if let Some(start) = answer.start {
                    self.start_program(start, effects);
                }
                if !answer.state.accepts_messages() {
                    self.begin_stop(answer.state, effects);
                }
                None
            }
            // For an ended sandbox the server may reject heartbeats but still accept events.
            HeartbeatReport::Ended(Exit::Refused { detail }) if self.stop.is_some() => {
                tracing::info!(detail, "stopping heartbeats: the sandbox has ended");
                None
            }
            HeartbeatReport::Ended(exit) => Some(exit),
        }
    }

    fn start_program(&mut self, start: Start, effects: &mut Effects<'_>) {
        if !std::mem::replace(&mut self.started, true) {
            let waits = self.behaviour.messages && start.prompt.is_none();
            let activity = if waits { Activity::WaitingMessage } else { Activity::Working };
            self.outputs.set_activity(activity, self.next_key - 1);
            effects.program.send_start(&start);
        }
        if let Some(prompt) = start.prompt {
            if !self.behaviour.messages {
                tracing::warn!(message = %prompt.id, "the prompt stays queued because --messages is not set");
            }
            self.accept_message(prompt, effects);
        }
    }

    pub(super) fn handle_downlink(&mut self, report: DownlinkReport, effects: &mut Effects<'_>) -> Option<Exit> {
        match report {
            DownlinkReport::Message(message) => self.accept_message(*message, effects),
            DownlinkReport::Answer(answer) => effects.program.send_answer(answer),
            DownlinkReport::Limits(limits, exhausted) => effects.program.send_limits(limits, exhausted),
            DownlinkReport::Denials(calls) => effects.program.send_denials(calls),
            DownlinkReport::Stop(state) => self.begin_stop(state, effects),
            DownlinkReport::Ended(exit) => return Some(exit),
        }
        None
    }

    /// Handles a message that the server has leased to this worker.
    fn accept_message(&mut self, message: LeasedMessage, effects: &mut Effects<'_>) {
        let id = message.id;
        self.renewal_interval = renewal_interval(self.clock.now(), message.lease_until);
        match self.journal.receive_lease(id, message.lease) {
            Arrival::New(record) => {
                let refusal = if !self.behaviour.messages {
                    Some("messages_not_taken")
                } else if self.stop.is_some() || self.leaving.is_some() || self.is_closing() {
                    Some("worker_stopping")
                } else {
                    None
                };
                match refusal.and_then(|reason| self.journal.return_message(id, reason)) {
                    Some((record, acknowledgement)) => effects.write_record(record, AfterRecord::Send(acknowledgement)),
                    None => effects.write_record(record, AfterRecord::HandOver(Box::new(message))),
                }
            }
            Arrival::Pending(record) => effects.write_record(record, AfterRecord::Nothing),
            Arrival::Acknowledged(record, acknowledgement) => {
                tracing::info!(message = %id, "an acknowledged message came again; acknowledging it again");
                effects.write_record(record, AfterRecord::Send(acknowledgement));
            }
            Arrival::Returned => tracing::debug!(message = %id, "ignoring a late copy of a returned message"),
        }
        self.publish_leases();
    }

    /// Handles the end of the sandbox: the program gets time for its last lines.
    fn begin_stop(&mut self, state: SandboxState, effects: &mut Effects<'_>) {
        if self.stop.is_some() || state.accepts_messages() {
            return;
        }
        self.stop = Some((state, Instant::now() + self.behaviour.stop_grace));
        self.outputs.phase.send_modify(|phase| phase.ended = true);
        effects.program.send_stop(state);
        self.publish_durable();
    }

    pub(super) fn handle_settled(&mut self, report: AckReport, effects: &mut Effects<'_>) -> Option<Exit> {
        match report {
            AckReport::Settled { id, lease } => {
                if let Some(record) = self.journal.mark_settled(id, lease) {
                    effects.write_record(record, AfterRecord::Nothing);
                }
                self.publish_durable();
                None
            }
            AckReport::Ended(exit) => Some(exit),
        }
    }

    // To the links.

    fn publish_leases(&self) {
        let renewal_interval = self.renewal_interval;
        self.outputs.set_leases(OpenLeases { ids: self.journal.open_leases(), renewal_interval });
    }

    /// Publishes what the uplink may send.
    ///
    /// The last event of an ended sandbox is final, and the server accepts nothing after it. So the uplink sends it
    /// after all acknowledgements.
    fn publish_durable(&self) {
        let mut next = Durable { last_key: self.durable, ..Durable::default() };
        if let (Some(_), Some(closing)) = (self.stop, &self.closing) {
            if self.journal.unsettled_count() > 0 {
                next.last_key = self.durable.min(closing.shutdown - 1);
            } else {
                next.final_key = Some(closing.shutdown);
            }
        }
        self.outputs.set_durable(next);
    }
}
