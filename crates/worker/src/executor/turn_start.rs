//! Delivers messages to the agent and begins turns.

use super::Executor;
use super::shutdown::{Interrupt, Shutdown};
use atoll_core::sandbox::Activity;
use atoll_dispatcher::conversation::DeliveryStep;
use atoll_dispatcher::program::input::{Item, Nack};
use atoll_drivers::AgentTurn;
use atoll_protocol::LeasedMessage;
use std::time::Duration;
use tokio::time::Instant;

/// Time limit for the watcher's first scan. The agent gets its prompt after the scan.
const FIRST_SCAN_TIMEOUT: Duration = Duration::from_secs(10);

/// State that the next turn waits for or begins with.
#[derive(Default)]
pub(super) struct NextTurn {
    /// The message that begins a turn once the watcher's first scan is done, and the deadline for that.
    pub opening: Option<(LeasedMessage, Instant)>,
    /// When to report that the agent waits for a message.
    pub waiting_due: Option<Instant>,
    /// A note to append to the message that begins the turn.
    pub note: Option<String>,
}

impl NextTurn {
    pub(super) fn deadline(&self) -> Option<Instant> {
        let opening = self.opening.as_ref().map(|(_, deadline)| *deadline);
        opening.into_iter().chain(self.waiting_due).min()
    }

    /// True once when the agent has waited long enough.
    pub(super) fn take_waiting(&mut self, now: Instant) -> bool {
        self.waiting_due.take_if(|due| *due <= now).is_some()
    }
}

impl Executor {
    /// Delivers the next message, if any; false if there is nothing to do.
    pub(super) async fn deliver_next(&mut self, now: Instant) -> bool {
        let is_blocked = self.quiesce.is_requested()
            || self.transcript.is_restoring()
            || self.logins.is_running()
            || self.services.is_starting();
        if self.shutdown != Shutdown::No || is_blocked || self.launch.driver.is_none() {
            return false;
        }
        if let Some(message) = self.logins.take_ready() {
            self.open_turn(message).await;
            return true;
        }
        if let Some((message, deadline)) = self.next_turn.opening.take() {
            if self.watcher.is_starting() && deadline > now && !self.conversation.has_interrupt() {
                self.next_turn.opening = Some((message, deadline));
                return false;
            }
            self.send_message(&message, AgentTurn::Idle);
            return true;
        }
        match self.conversation.next_step(self.limits.may_begin(self.conversation.turn())) {
            Some(DeliveryStep::Begin(message)) => self.begin_turn(message).await,
            Some(DeliveryStep::Steer(message)) => self.send_message(&message, AgentTurn::InTurn),
            Some(DeliveryStep::Interrupt(message)) => {
                self.limits.release_turn();
                self.send_message(&message, AgentTurn::InTurn);
                self.agent.interrupt.get_or_insert_with(|| Interrupt::new(message));
            }
            Some(DeliveryStep::Acknowledge(ack)) => self.outgoing.push(Item::Ack(ack)),
            Some(DeliveryStep::TooLate(message)) => {
                let reason = "the turn was over".to_owned();
                self.outgoing.push(Item::Nack(Nack { id: message.id, handed: false, reason, retry: false }));
            }
            None => return false,
        }
        true
    }

    async fn begin_turn(&mut self, message: LeasedMessage) {
        self.next_turn.waiting_due = None;
        self.outgoing.push(Item::Activity(Activity::Working));
        let needs_logins = self.launch.settings.secrets.as_ref().is_some_and(|secrets| !secrets.is_empty());
        if let Some(message) = self.logins.begin_update(message, needs_logins) {
            self.open_turn(message).await;
        }
    }

    /// Begins a turn whose login files are in place.
    async fn open_turn(&mut self, message: LeasedMessage) {
        if self.agent.process.is_none()
            && let Err(error) = self.start_agent(&message).await
        {
            self.conversation.return_message(message);
            self.report_launch_failure(&error);
            return;
        }
        self.note_last_turn();
        self.limits.begin_turn(Instant::now());
        self.watcher.start();
        self.schedule_save();
        self.next_turn.opening = Some((message, Instant::now() + FIRST_SCAN_TIMEOUT));
    }

    fn send_message(&mut self, message: &LeasedMessage, turn_state: AgentTurn) {
        if let (Some(driver), Some(process)) = (&mut self.launch.driver, &mut self.agent.process) {
            match self.next_turn.note.take() {
                Some(note) => {
                    let content = driver.append_note(&message.content, &note);
                    process
                        .write_line(&driver.encode_message(&LeasedMessage { content, ..message.clone() }, turn_state));
                }
                None => process.write_line(&driver.encode_message(message, turn_state)),
            }
        }
    }
}
