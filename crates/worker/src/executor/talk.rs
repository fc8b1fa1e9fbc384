//! Who said what to whom: which messages wait, which the agent has been told, in which turn it is. Pure: the executor
//! asks what is next and carries it out.

use crate::driver::{Abilities, Mark, Standing, is_aside};
use crate::input::{Ack, Nack};
use atoll_core::id::MessageId;
use atoll_core::message::{Delivery, How, MessageType};
use atoll_protocol::LeasedMessage;
use std::collections::VecDeque;

/// What to do about a message.
#[derive(Debug)]
pub(super) enum Next {
    /// It begins a turn.
    Begin(LeasedMessage),
    /// Into the running turn.
    Steer(LeasedMessage),
    /// Break off the running turn.
    Interrupt(LeasedMessage),
    /// There is nothing to do about it.
    Acknowledge(Ack),
    /// It was for a turn that is over.
    TooLate(LeasedMessage),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    InTurn,
    /// There is no agent any more, and there will be none.
    Over,
}

#[derive(Debug)]
pub(super) struct Talk {
    abilities: Abilities,
    state: State,
    /// The running turn, or the last one.
    turn: i64,
    /// Not told to the agent yet.
    held: VecDeque<LeasedMessage>,
    /// Told to the agent, without a receipt.
    told: Vec<MessageId>,
    /// Those of them that break off the turn.
    interrupts: Vec<MessageId>,
    /// Tools under way.
    tools: Vec<String>,
}

impl Talk {
    pub(super) const fn new(abilities: Abilities) -> Self {
        Self {
            abilities,
            state: State::Idle,
            turn: 0,
            held: VecDeque::new(),
            told: Vec::new(),
            interrupts: Vec::new(),
            tools: Vec::new(),
        }
    }

    pub(super) const fn set_abilities(&mut self, abilities: Abilities) {
        self.abilities = abilities;
    }

    pub(super) fn arrive(&mut self, message: LeasedMessage) {
        self.held.push_back(message);
    }

    /// What can be done now. Whatever is given is taken to be done. A turn is begun only if one may be.
    pub(super) fn next(&mut self, may_begin: bool) -> Option<Next> {
        if self.state == State::Over {
            return None;
        }
        if let Some(interrupt) = self.take(is_interrupt) {
            return Some(match self.state {
                State::InTurn => {
                    self.told.push(interrupt.id);
                    self.interrupts.push(interrupt.id);
                    Next::Interrupt(interrupt)
                }
                State::Idle | State::Over => {
                    Next::Acknowledge(Ack { id: interrupt.id, how: How::Injected, turn: None })
                }
            });
        }
        if self.state == State::Idle
            && let Some(late) = self.take(is_aside)
        {
            return Some(Next::TooLate(late));
        }
        match self.state {
            State::InTurn if self.abilities.steer => {
                let message = self.take(|message| message.delivery == Delivery::Steer)?;
                self.told.push(message.id);
                Some(Next::Steer(message))
            }
            // What was told at the end of a turn begins the next one by itself.
            State::Idle if may_begin && self.told.is_empty() => {
                let message = self.held.pop_front()?;
                self.told.push(message.id);
                self.state = State::InTurn;
                Some(Next::Begin(message))
            }
            State::InTurn | State::Idle | State::Over => None,
        }
    }

    /// Whether something waits to begin a turn.
    pub(super) fn wants_turn(&self) -> bool {
        let begins = |message: &LeasedMessage| !is_interrupt(message) && !is_aside(message);
        self.state == State::Idle && self.told.is_empty() && self.held.iter().any(begins)
    }

    fn take(&mut self, fits: impl Fn(&LeasedMessage) -> bool) -> Option<LeasedMessage> {
        let at = self.held.iter().position(fits)?;
        self.held.remove(at)
    }

    pub(super) fn has_interrupt(&self) -> bool {
        self.held.iter().any(is_interrupt)
    }

    /// Nothing came of telling it: the agent did not get to see it.
    pub(super) fn take_back(&mut self, message: LeasedMessage) {
        self.told.retain(|id| *id != message.id);
        self.held.push_front(message);
    }

    /// An event of the agent is about to be told on.
    pub(super) fn mark(&mut self, mark: &Mark) {
        match mark {
            Mark::TurnBegins => {
                self.turn += 1;
                self.state = State::InTurn;
            }
            Mark::ToolBegins(id) => self.tools.push(id.clone()),
            Mark::ToolEnds(id) => self.tools.retain(|tool| tool != id),
            Mark::TurnEnds => self.tools.clear(),
            Mark::Plain | Mark::Asks | Mark::Answered => {}
        }
    }

    /// Nothing if the agent was not told such a message.
    pub(super) fn receipt(&mut self, id: MessageId, how: How) -> Option<Ack> {
        let at = self.told.iter().position(|told| *told == id)?;
        self.told.remove(at);
        Some(Ack { id, how, turn: (self.turn > 0).then_some(self.turn) })
    }

    /// The turn is over, and with it whatever was said to break it off: an agent that was done by itself, or was told
    /// so twice, says nothing about that.
    pub(super) fn broken_off(&mut self) -> Vec<Ack> {
        let interrupts = std::mem::take(&mut self.interrupts);
        interrupts.into_iter().filter_map(|id| self.receipt(id, How::Injected)).collect()
    }

    /// The turn is over and the agent takes the next message.
    pub(super) fn idle(&mut self) {
        self.tools.clear();
        if self.state == State::InTurn {
            self.state = State::Idle;
        }
    }

    /// The agent's process is no more; another one can be started. What it had been told and did not confirm, nobody
    /// can say more about.
    pub(super) fn gone(&mut self) -> Vec<Nack> {
        self.idle();
        self.interrupts.clear();
        let lost = |id| Nack { id, handed: true, reason: "the agent ended".to_owned(), retry: false };
        self.told.drain(..).map(lost).collect()
    }

    /// There will be no agent any more.
    pub(super) fn over(&mut self) {
        self.tools.clear();
        self.state = State::Over;
    }

    /// The worker is going: what the agent was not told goes back.
    pub(super) fn give_back(&mut self) -> Vec<Nack> {
        let back = |message: LeasedMessage| {
            let reason = "worker_stopping".to_owned();
            Nack { id: message.id, handed: false, reason, retry: true }
        };
        self.held.drain(..).map(back).collect()
    }

    /// The agent has something that it did not come to: it begins the next turn by itself.
    pub(super) fn goes_on(&self) -> bool {
        self.told.iter().any(|id| !self.interrupts.contains(id))
    }

    pub(super) fn standing(&self) -> Standing {
        match self.state {
            State::InTurn => Standing::InTurn,
            State::Idle | State::Over => Standing::Idle,
        }
    }

    /// Idle, with nothing that would begin a turn.
    pub(super) fn waits(&self) -> bool {
        self.state == State::Idle && self.held.is_empty() && self.told.is_empty()
    }

    pub(super) const fn turn(&self) -> i64 {
        self.turn
    }

    /// The one tool under way; with several at once nobody knows which of them it was.
    pub(super) fn tool(&self) -> Option<&str> {
        match &self.tools[..] {
            [tool] => Some(tool),
            [] | [_, _, ..] => None,
        }
    }

    pub(super) fn uses_tools(&self) -> bool {
        !self.tools.is_empty()
    }
}

fn is_interrupt(message: &LeasedMessage) -> bool {
    message.message_type == MessageType::Interrupt
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::tests::message;
    use atoll_core::limit;

    fn talk() -> Talk {
        Talk::new(Abilities { steer: true, ..Abilities::default() })
    }

    fn words(next: Option<Next>) -> String {
        match next {
            Some(Next::Begin(message)) => format!("begin {}", message.content),
            Some(Next::Steer(message)) => format!("steer {}", message.content),
            Some(Next::Interrupt(message)) => format!("interrupt {}", message.content),
            Some(Next::Acknowledge(ack)) => format!("acknowledge in {:?}", ack.turn),
            Some(Next::TooLate(message)) => format!("too late: {}", message.content),
            None => "nothing".to_owned(),
        }
    }

    fn interrupt() -> LeasedMessage {
        LeasedMessage { message_type: MessageType::Interrupt, ..message("stop", Delivery::Steer) }
    }

    #[test]
    fn a_turn_takes_what_steers_and_the_rest_waits() {
        let mut talk = talk();
        let first = message("one", Delivery::Steer);
        for message in [first.clone(), message("later", Delivery::Queue), message("now", Delivery::Steer)] {
            talk.arrive(message);
        }
        assert_eq!(words(talk.next(true)), "begin one");
        talk.mark(&Mark::TurnBegins);
        let ack = talk.receipt(first.id, How::NewTurn).unwrap();
        assert_eq!((ack.how, ack.turn), (How::NewTurn, Some(1)));
        assert_eq!(words(talk.next(true)), "steer now");
        assert_eq!(words(talk.next(true)), "nothing");
        talk.mark(&Mark::TurnEnds);
        talk.idle();
        assert_eq!(
            words(talk.next(true)),
            "nothing",
            "the agent has one that it did not confirm: it begins a turn with it"
        );
        talk.told.clear();
        assert_eq!(words(talk.next(true)), "begin later");
    }

    #[test]
    fn an_agent_that_can_t_be_steered_gets_everything_in_turn() {
        let mut talk = Talk::new(Abilities::default());
        talk.arrive(message("one", Delivery::Steer));
        talk.arrive(message("two", Delivery::Steer));
        assert_eq!(words(talk.next(true)), "begin one");
        assert_eq!(words(talk.next(true)), "nothing");
        talk.told.clear();
        talk.idle();
        assert_eq!(words(talk.next(true)), "begin two");
    }

    #[test]
    fn what_atoll_says_about_a_turn_begins_none() {
        let mut talk = talk();
        let aside = |text: &str| LeasedMessage {
            message_type: MessageType::System,
            sender: Some(limit::SENDER.to_owned()),
            ..message(text, Delivery::Steer)
        };
        talk.arrive(aside("hurry"));
        assert!(!talk.wants_turn());
        assert_eq!(words(talk.next(true)), "too late: hurry");
        talk.arrive(message("one", Delivery::Steer));
        assert!(talk.wants_turn());
        assert_eq!(words(talk.next(false)), "nothing", "no turn may begin");
        assert_eq!(words(talk.next(true)), "begin one");
        talk.arrive(aside("hurry"));
        assert_eq!(words(talk.next(false)), "steer hurry");
        assert!(!talk.wants_turn());
    }

    #[test]
    fn interrupts_come_first_and_to_an_idle_agent_mean_nothing() {
        let mut talk = talk();
        talk.arrive(interrupt());
        assert_eq!(words(talk.next(true)), "acknowledge in None");
        talk.arrive(message("one", Delivery::Steer));
        talk.next(true);
        talk.arrive(message("two", Delivery::Steer));
        talk.arrive(interrupt());
        assert_eq!(words(talk.next(true)), "interrupt stop");
        assert_eq!(words(talk.next(true)), "steer two");
    }

    #[test]
    fn the_end_of_a_turn_answers_whatever_was_to_break_it_off() {
        let mut talk = talk();
        let (first, again, steer) = (interrupt(), interrupt(), message("two", Delivery::Steer));
        talk.arrive(message("one", Delivery::Steer));
        talk.next(true);
        talk.told.clear();
        for message in [first.clone(), again.clone(), steer.clone()] {
            assert!(!talk.goes_on());
            talk.arrive(message);
            talk.next(true);
        }
        assert!(talk.goes_on(), "it was told something");
        assert!(talk.receipt(again.id, How::Injected).is_some());
        let over: Vec<_> = talk.broken_off().into_iter().map(|ack| ack.id).collect();
        assert_eq!(over, [first.id]);
        assert_eq!(talk.told, [steer.id], "it begins the next turn");
        assert!(talk.broken_off().is_empty());
    }

    #[test]
    fn what_nobody_confirmed_is_said_so() {
        let mut talk = talk();
        let (told, held) = (message("one", Delivery::Steer), message("two", Delivery::Queue));
        talk.arrive(told.clone());
        talk.arrive(held.clone());
        talk.next(true);
        assert!(talk.receipt(held.id, How::Injected).is_none(), "the agent can't have it");
        let lost = talk.gone();
        assert_eq!((lost.len(), lost[0].id, lost[0].handed), (1, told.id, true));
        talk.over();
        assert_eq!(words(talk.next(true)), "nothing");
        let back = talk.give_back();
        assert_eq!((back.len(), back[0].id, back[0].handed, back[0].retry), (1, held.id, false, true));
    }

    #[test]
    fn a_change_belongs_to_the_only_tool_under_way() {
        let mut talk = talk();
        talk.mark(&Mark::TurnBegins);
        assert_eq!(talk.tool(), None);
        talk.mark(&Mark::ToolBegins("a".into()));
        assert_eq!(talk.tool(), Some("a"));
        talk.mark(&Mark::ToolBegins("b".into()));
        assert_eq!((talk.tool(), talk.uses_tools()), (None, true));
        talk.mark(&Mark::ToolEnds("a".into()));
        assert_eq!(talk.tool(), Some("b"));
        talk.mark(&Mark::TurnEnds);
        assert!(!talk.uses_tools() && talk.turn() == 1);
    }
}
