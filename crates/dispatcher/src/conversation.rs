//! The state of the conversation: waiting messages, unconfirmed messages, and the current turn. Pure: the executor asks
//! for the next step and carries it out.

use crate::program::input::{Ack, Nack};
use atoll_core::id::MessageId;
use atoll_core::message::{Delivery, DeliveryMethod, MessageType};
use atoll_drivers::{Abilities, AgentTurn, EventEffect, is_turn_note};
use atoll_protocol::LeasedMessage;
use std::collections::VecDeque;

/// Maximum number of running tools that count; an agent has far fewer.
const MAX_RUNNING_TOOLS: usize = 1024;
/// Tool calls with longer ids do not count.
const MAX_TOOL_ID_BYTES: usize = 1024;

/// The next step for a message.
#[derive(Debug)]
pub enum DeliveryStep {
    /// Begin a turn with it.
    Begin(LeasedMessage),
    /// Inject it into the current turn.
    Steer(LeasedMessage),
    /// Interrupt the current turn.
    Interrupt(LeasedMessage),
    /// Acknowledge it: there is nothing to interrupt.
    Acknowledge(Ack),
    /// Reject it: its turn is over.
    TooLate(LeasedMessage),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    InTurn,
    /// There is no agent, and there will be none.
    Over,
}

#[derive(Debug, Default)]
pub struct ConversationState {
    abilities: Abilities,
    state: State,
    /// The current turn, or the last one.
    turn: i64,
    /// Messages that the agent has not got yet.
    waiting: VecDeque<LeasedMessage>,
    /// Messages that the agent has got and not confirmed.
    unconfirmed: Vec<MessageId>,
    /// The interrupts among them.
    interrupts: Vec<MessageId>,
    /// Tools that are running.
    tools: Vec<String>,
}

impl ConversationState {
    pub const fn set_abilities(&mut self, abilities: Abilities) {
        self.abilities = abilities;
    }

    pub fn enqueue(&mut self, message: LeasedMessage) {
        self.waiting.push_back(message);
    }

    /// Returns the next step, and assumes that the caller carries it out. Begins a turn only if `may_begin`.
    pub fn next_step(&mut self, may_begin: bool) -> Option<DeliveryStep> {
        if self.state == State::Over {
            return None;
        }
        if let Some(interrupt) = self.take_first(is_interrupt) {
            return Some(match self.state {
                State::InTurn => {
                    self.unconfirmed.push(interrupt.id);
                    self.interrupts.push(interrupt.id);
                    DeliveryStep::Interrupt(interrupt)
                }
                State::Idle | State::Over => {
                    DeliveryStep::Acknowledge(Ack { id: interrupt.id, how: DeliveryMethod::Injected, turn: None })
                }
            });
        }
        if self.state == State::Idle
            && let Some(late) = self.take_first(is_turn_note)
        {
            return Some(DeliveryStep::TooLate(late));
        }
        match self.state {
            State::InTurn if self.abilities.steer => {
                let message = self.take_first(|message| message.delivery == Delivery::Steer)?;
                self.unconfirmed.push(message.id);
                Some(DeliveryStep::Steer(message))
            }
            // An unconfirmed message begins the next turn by itself.
            State::Idle if may_begin && self.unconfirmed.is_empty() => {
                let message = self.waiting.pop_front()?;
                self.unconfirmed.push(message.id);
                self.state = State::InTurn;
                Some(DeliveryStep::Begin(message))
            }
            State::InTurn | State::Idle | State::Over => None,
        }
    }

    /// True if a message waits to begin a turn.
    pub fn wants_turn(&self) -> bool {
        let begins = |message: &LeasedMessage| !is_interrupt(message) && !is_turn_note(message);
        self.state == State::Idle && self.unconfirmed.is_empty() && self.waiting.iter().any(begins)
    }

    fn take_first(&mut self, is_wanted: impl Fn(&LeasedMessage) -> bool) -> Option<LeasedMessage> {
        let at = self.waiting.iter().position(is_wanted)?;
        self.waiting.remove(at)
    }

    pub fn has_interrupt(&self) -> bool {
        self.waiting.iter().any(is_interrupt)
    }

    /// Puts back a message that did not reach the agent.
    pub fn return_message(&mut self, message: LeasedMessage) {
        self.unconfirmed.retain(|id| *id != message.id);
        self.waiting.push_front(message);
    }

    /// Applies the effect of an agent's event.
    pub fn apply_effect(&mut self, effect: &EventEffect) {
        match effect {
            EventEffect::TurnStarted => {
                self.turn += 1;
                self.state = State::InTurn;
            }
            EventEffect::ToolStarted(id) => {
                if self.tools.len() < MAX_RUNNING_TOOLS && id.len() <= MAX_TOOL_ID_BYTES {
                    self.tools.push(id.clone());
                }
            }
            EventEffect::ToolEnded(id) => self.tools.retain(|tool| tool != id),
            EventEffect::TurnEnded => self.tools.clear(),
            EventEffect::None | EventEffect::ApprovalRequested | EventEffect::ApprovalResolved => {}
        }
    }

    /// Confirms a message; `None` if the agent did not get it.
    pub fn acknowledge(&mut self, id: MessageId, how: DeliveryMethod) -> Option<Ack> {
        let at = self.unconfirmed.iter().position(|unconfirmed| *unconfirmed == id)?;
        self.unconfirmed.remove(at);
        Some(Ack { id, how, turn: (self.turn > 0).then_some(self.turn) })
    }

    /// Acknowledges all interrupts at the end of a turn: an agent that finished by itself, or got two, confirms none.
    pub fn acknowledge_interrupts(&mut self) -> Vec<Ack> {
        let interrupts = std::mem::take(&mut self.interrupts);
        interrupts.into_iter().filter_map(|id| self.acknowledge(id, DeliveryMethod::Injected)).collect()
    }

    /// Ends the turn: the agent is ready for the next message.
    pub fn end_turn(&mut self) {
        self.tools.clear();
        if self.state == State::InTurn {
            self.state = State::Idle;
        }
    }

    /// Handles the exit of the agent's process: returns its unconfirmed messages. Another process may follow.
    pub fn handle_agent_exit(&mut self) -> Vec<Nack> {
        self.end_turn();
        self.interrupts.clear();
        let lost = |id| Nack { id, handed: true, reason: "the agent ended".to_owned(), retry: false };
        self.unconfirmed.drain(..).map(lost).collect()
    }

    /// Ends the conversation: there will be no agent.
    pub fn end_conversation(&mut self) {
        self.tools.clear();
        self.state = State::Over;
    }

    /// Returns all waiting messages to the inbox.
    pub fn return_all(&mut self) -> Vec<Nack> {
        let back = |message: LeasedMessage| {
            let reason = "worker_stopping".to_owned();
            Nack { id: message.id, handed: false, reason, retry: true }
        };
        self.waiting.drain(..).map(back).collect()
    }

    /// True if the agent has an unconfirmed message, with which it begins the next turn by itself.
    pub fn has_unconfirmed(&self) -> bool {
        self.unconfirmed.iter().any(|id| !self.interrupts.contains(id))
    }

    pub fn turn_state(&self) -> AgentTurn {
        match self.state {
            State::InTurn => AgentTurn::InTurn,
            State::Idle | State::Over => AgentTurn::Idle,
        }
    }

    /// True if the agent is idle and no message would begin a turn.
    pub fn is_waiting(&self) -> bool {
        self.state == State::Idle && self.waiting.is_empty() && self.unconfirmed.is_empty()
    }

    pub const fn turn(&self) -> i64 {
        self.turn
    }

    /// The running tool, if there is exactly one.
    pub fn only_tool(&self) -> Option<&str> {
        match &self.tools[..] {
            [tool] => Some(tool),
            [] | [_, _, ..] => None,
        }
    }

    pub fn uses_tools(&self) -> bool {
        !self.tools.is_empty()
    }
}

fn is_interrupt(message: &LeasedMessage) -> bool {
    message.message_type == MessageType::Interrupt
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::limit;

    fn steerable() -> ConversationState {
        ConversationState {
            abilities: Abilities { steer: true, ..Abilities::default() },
            ..ConversationState::default()
        }
    }

    fn words(next: Option<DeliveryStep>) -> String {
        match next {
            Some(DeliveryStep::Begin(message)) => format!("begin {}", message.content),
            Some(DeliveryStep::Steer(message)) => format!("steer {}", message.content),
            Some(DeliveryStep::Interrupt(message)) => format!("interrupt {}", message.content),
            Some(DeliveryStep::Acknowledge(ack)) => format!("acknowledge in {:?}", ack.turn),
            Some(DeliveryStep::TooLate(message)) => format!("too late: {}", message.content),
            None => "nothing".to_owned(),
        }
    }

    fn interrupt() -> LeasedMessage {
        LeasedMessage { message_type: MessageType::Interrupt, ..LeasedMessage::example("stop", Delivery::Steer) }
    }

    #[test]
    fn a_turn_gets_steering_messages_and_the_rest_waits() {
        let mut conversation = steerable();
        let first = LeasedMessage::example("one", Delivery::Steer);
        for message in [
            first.clone(),
            LeasedMessage::example("later", Delivery::Queue),
            LeasedMessage::example("now", Delivery::Steer),
        ] {
            conversation.enqueue(message);
        }
        assert_eq!(words(conversation.next_step(true)), "begin one");
        conversation.apply_effect(&EventEffect::TurnStarted);
        let ack = conversation.acknowledge(first.id, DeliveryMethod::NewTurn).unwrap();
        assert_eq!((ack.how, ack.turn), (DeliveryMethod::NewTurn, Some(1)));
        assert_eq!(words(conversation.next_step(true)), "steer now");
        assert_eq!(words(conversation.next_step(true)), "nothing");
        conversation.apply_effect(&EventEffect::TurnEnded);
        conversation.end_turn();
        assert_eq!(words(conversation.next_step(true)), "nothing", "the unconfirmed message begins a turn");
        conversation.unconfirmed.clear();
        assert_eq!(words(conversation.next_step(true)), "begin later");
    }

    #[test]
    fn counts_a_bounded_number_of_running_tools() {
        let mut conversation = steerable();
        conversation.apply_effect(&EventEffect::ToolStarted("x".repeat(MAX_TOOL_ID_BYTES + 1)));
        assert!(!conversation.uses_tools(), "the id is too long");
        for number in 0..2 * MAX_RUNNING_TOOLS {
            conversation.apply_effect(&EventEffect::ToolStarted(number.to_string()));
        }
        assert_eq!(conversation.tools.len(), MAX_RUNNING_TOOLS);
        conversation.apply_effect(&EventEffect::TurnEnded);
        assert!(!conversation.uses_tools());
    }

    #[test]
    fn an_agent_without_steering_gets_one_message_per_turn() {
        let mut conversation = ConversationState::default();
        conversation.enqueue(LeasedMessage::example("one", Delivery::Steer));
        conversation.enqueue(LeasedMessage::example("two", Delivery::Steer));
        assert_eq!(words(conversation.next_step(true)), "begin one");
        assert_eq!(words(conversation.next_step(true)), "nothing");
        conversation.unconfirmed.clear();
        conversation.end_turn();
        assert_eq!(words(conversation.next_step(true)), "begin two");
    }

    #[test]
    fn turn_notes_begin_no_turn() {
        let mut conversation = steerable();
        let aside = |text: &str| LeasedMessage {
            message_type: MessageType::System,
            sender: Some(limit::LIMITS_SENDER.to_owned()),
            ..LeasedMessage::example(text, Delivery::Steer)
        };
        conversation.enqueue(aside("hurry"));
        assert!(!conversation.wants_turn());
        assert_eq!(words(conversation.next_step(true)), "too late: hurry");
        conversation.enqueue(LeasedMessage::example("one", Delivery::Steer));
        assert!(conversation.wants_turn());
        assert_eq!(words(conversation.next_step(false)), "nothing", "no turn may begin");
        assert_eq!(words(conversation.next_step(true)), "begin one");
        conversation.enqueue(aside("hurry"));
        assert_eq!(words(conversation.next_step(false)), "steer hurry");
        assert!(!conversation.wants_turn());
    }

    #[test]
    fn interrupts_come_first_and_an_idle_agent_ignores_them() {
        let mut conversation = steerable();
        conversation.enqueue(interrupt());
        assert_eq!(words(conversation.next_step(true)), "acknowledge in None");
        conversation.enqueue(LeasedMessage::example("one", Delivery::Steer));
        conversation.next_step(true);
        conversation.enqueue(LeasedMessage::example("two", Delivery::Steer));
        conversation.enqueue(interrupt());
        assert_eq!(words(conversation.next_step(true)), "interrupt stop");
        assert_eq!(words(conversation.next_step(true)), "steer two");
    }

    #[test]
    fn the_end_of_a_turn_acknowledges_its_interrupts() {
        let mut conversation = steerable();
        let (first, again, steer) = (interrupt(), interrupt(), LeasedMessage::example("two", Delivery::Steer));
        conversation.enqueue(LeasedMessage::example("one", Delivery::Steer));
        conversation.next_step(true);
        conversation.unconfirmed.clear();
        for message in [first.clone(), again.clone(), steer.clone()] {
            assert!(!conversation.has_unconfirmed());
            conversation.enqueue(message);
            conversation.next_step(true);
        }
        assert!(conversation.has_unconfirmed(), "a message is unconfirmed");
        assert!(conversation.acknowledge(again.id, DeliveryMethod::Injected).is_some());
        let acknowledged: Vec<_> = conversation.acknowledge_interrupts().into_iter().map(|ack| ack.id).collect();
        assert_eq!(acknowledged, [first.id]);
        assert_eq!(conversation.unconfirmed, [steer.id], "it begins the next turn");
        assert!(conversation.acknowledge_interrupts().is_empty());
    }

    #[test]
    fn an_exit_returns_unconfirmed_messages() {
        let mut conversation = steerable();
        let (steered, queued) =
            (LeasedMessage::example("one", Delivery::Steer), LeasedMessage::example("two", Delivery::Queue));
        conversation.enqueue(steered.clone());
        conversation.enqueue(queued.clone());
        conversation.next_step(true);
        assert!(conversation.acknowledge(queued.id, DeliveryMethod::Injected).is_none(), "the agent did not get it");
        let lost = conversation.handle_agent_exit();
        assert_eq!((lost.len(), lost[0].id, lost[0].handed), (1, steered.id, true));
        conversation.end_conversation();
        assert_eq!(words(conversation.next_step(true)), "nothing");
        let back = conversation.return_all();
        assert_eq!((back.len(), back[0].id, back[0].handed, back[0].retry), (1, queued.id, false, true));
    }

    #[test]
    fn a_change_belongs_to_the_only_running_tool() {
        let mut conversation = steerable();
        conversation.apply_effect(&EventEffect::TurnStarted);
        assert_eq!(conversation.only_tool(), None);
        conversation.apply_effect(&EventEffect::ToolStarted("a".into()));
        assert_eq!(conversation.only_tool(), Some("a"));
        conversation.apply_effect(&EventEffect::ToolStarted("b".into()));
        assert_eq!((conversation.only_tool(), conversation.uses_tools()), (None, true));
        conversation.apply_effect(&EventEffect::ToolEnded("a".into()));
        assert_eq!(conversation.only_tool(), Some("b"));
        conversation.apply_effect(&EventEffect::TurnEnded);
        assert!(!conversation.uses_tools() && conversation.turn() == 1);
    }
}
