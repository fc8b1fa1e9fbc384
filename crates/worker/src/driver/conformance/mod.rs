//! What every driver promises, whatever its agent speaks: each is put before a puppet that speaks as the agent does, and
//! both go through the same stories, and through random ones.

use super::testing::{cases, lines};
use super::{Answer, Driver, Mark, Said, Standing};
use crate::exchange::{Composed, Exchange};
use crate::executor::tests::message;
use atoll_core::event::kind;
use atoll_core::id::MessageId;
use atoll_core::message::{Delivery, How, MessageType};
use atoll_protocol::LeasedMessage;
use proptest::prelude::*;
use puppets::Puppet;
use std::collections::BTreeMap;

mod puppets;

/// A driver and its puppet, and what was said.
struct Room {
    driver: Box<dyn Driver>,
    puppet: Box<dyn Puppet>,
    /// Told, and how it was confirmed.
    told: BTreeMap<MessageId, Vec<How>>,
    interrupts: Vec<MessageId>,
    /// Asked, and not answered.
    asked: Vec<String>,
    /// In a turn: what was said to begin one has not come to its end.
    in_turn: bool,
    turns: Vec<Turn>,
    exchange: Exchange,
    /// Calls and results, as parts and as they belong together.
    parts: [Vec<String>; 2],
    composed: [Vec<String>; 2],
    /// The last turn has ended, and the agent has said that it takes more.
    idles: usize,
}

#[derive(Debug, Default)]
struct Turn {
    tools: Vec<String>,
    /// The event that ended it.
    end: Option<String>,
}

impl Room {
    fn new(name: &str) -> Self {
        let (driver, puppet) = puppets::of(name);
        let mut room = Self {
            driver,
            puppet,
            told: BTreeMap::new(),
            interrupts: Vec::new(),
            asked: Vec::new(),
            in_turn: false,
            turns: Vec::new(),
            exchange: Exchange::default(),
            parts: <[Vec<String>; 2]>::default(),
            composed: <[Vec<String>; 2]>::default(),
            idles: 0,
        };
        let greeting = room.driver.greeting();
        room.hand_over(&greeting);
        room
    }

    /// To the puppet, and back what it says to it.
    fn hand_over(&mut self, bytes: &[u8]) {
        for line in lines(bytes) {
            let said = self.puppet.hear(&line);
            self.hear(said);
        }
    }

    fn hear(&mut self, spoken: Vec<serde_json::Value>) {
        for line in spoken {
            for said in self.driver.line(line.to_string().as_bytes()) {
                self.take(said, &line);
            }
        }
    }

    fn compose(&mut self, said: &Said) {
        let composed = match said {
            Said::Event(told) => {
                match &told.mark {
                    Mark::ToolBegins(id) => self.parts[0].push(id.clone()),
                    Mark::ToolEnds(id) => self.parts[1].push(id.clone()),
                    _ => {}
                }
                self.exchange.before(told.event_type.as_str(), told.data.get(), None, &told.origin)
            }
            Said::AnswerEnds { parent } => {
                self.exchange.ends(parent.as_deref());
                self.exchange.whole()
            }
            _ => Vec::new(),
        };
        for Composed { event_type, data, .. } in composed {
            let data: serde_json::Value = serde_json::from_str(data.get()).unwrap();
            let is_answer = event_type == kind::AGENT_ASSISTANT_MESSAGE;
            let list = data[if is_answer { "content" } else { "results" }].as_array().unwrap();
            let ids = list.iter().filter_map(|one| one["tool_use_id"].as_str().map(str::to_owned));
            self.composed[usize::from(!is_answer)].extend(ids);
        }
    }

    fn take(&mut self, said: Said, line: &serde_json::Value) {
        self.compose(&said);
        match said {
            Said::Reply(bytes) => self.hand_over(&bytes),
            Said::Receipt { id, how } => {
                assert!(!self.turns.is_empty(), "a message is confirmed before there was a turn");
                self.told.get_mut(&id).expect("nobody told it that").push(how);
            }
            Said::Idle => {
                let ended = self.turns.last().is_some_and(|turn| turn.end.is_some());
                assert!(ended && self.in_turn, "it is idle without the end of a turn");
                self.idles += 1;
                self.in_turn = false;
                self.asked.clear();
                assert_eq!(self.idles, self.turns.len());
            }
            Said::Asks(ask) => {
                assert!(!self.asked.contains(&ask.id), "two open questions of one name");
                self.asked.push(ask.id);
            }
            Said::ToolRan { tool_use_id } => {
                let line = self.driver.tool_seen(&tool_use_id).unwrap_or_default();
                self.hand_over(&line);
            }
            Said::Event(told) => match told.mark {
                Mark::TurnBegins => {
                    assert!(self.turns.last().is_none_or(|turn| turn.end.is_some()), "a turn in a turn");
                    self.turns.push(Turn::default());
                    self.in_turn = true;
                }
                Mark::TurnEnds => {
                    let turn = self.turns.last_mut().expect("there is a turn");
                    assert_eq!(turn.end.replace(told.event_type.as_str().to_owned()), None, "it ends twice");
                }
                Mark::ToolBegins(id) => self.turn().tools.push(id),
                Mark::ToolEnds(id) => {
                    let turn = self.turn();
                    assert!(turn.tools.contains(&id), "a tool ends that has not begun");
                    turn.tools.retain(|tool| *tool != id);
                }
                Mark::Plain | Mark::Asks | Mark::Answered => {}
            },
            Said::Unparsed { reason } => panic!("it does not understand {line}: {reason}"),
            Said::Failed { error } => panic!("it gives up at {line}: {error}"),
            Said::Live(_) | Said::Native { .. } | Said::AnswerEnds { .. } | Said::RateLimited { .. } => {}
        }
    }

    fn turn(&mut self) -> &mut Turn {
        let turn = self.turns.last_mut().expect("there is a turn");
        assert!(turn.end.is_none(), "the turn is over");
        turn
    }

    fn tell(&mut self, text: &str) -> MessageId {
        self.send(message(text, Delivery::Steer))
    }

    fn interrupt(&mut self) -> MessageId {
        let stop = LeasedMessage { message_type: MessageType::Interrupt, ..message("enough", Delivery::Steer) };
        self.interrupts.push(stop.id);
        self.send(stop)
    }

    fn send(&mut self, message: LeasedMessage) -> MessageId {
        let standing = if self.in_turn { Standing::InTurn } else { Standing::Idle };
        // From now on the executor takes it to be in a turn.
        self.in_turn = true;
        self.told.insert(message.id, Vec::new());
        let line = self.driver.tell(&message, standing);
        self.hand_over(&line);
        message.id
    }

    fn act(&mut self, act: impl FnOnce(&mut (dyn Puppet + 'static)) -> Vec<serde_json::Value>) {
        let spoken = act(&mut *self.puppet);
        self.hear(spoken);
    }

    fn answer(&mut self, ask: &str, answer: Answer) -> usize {
        self.asked.retain(|asked| asked != ask);
        let line = self.driver.answer(ask, answer);
        let count = lines(&line).len();
        self.hand_over(&line);
        count
    }

    fn how(&self, id: MessageId) -> &[How] {
        &self.told[&id]
    }

    fn ends(&self) -> Vec<&str> {
        self.turns.iter().filter_map(|turn| turn.end.as_deref()).collect()
    }

    /// Everything that is under way comes to its end.
    fn settle(&mut self) {
        for _ in 0..20 {
            while let Some(ask) = self.asked.first().cloned() {
                self.answer(&ask, Answer::Allow { input: None, context: None });
            }
            self.act(Puppet::see);
            self.act(Puppet::finish);
        }
    }
}

const ALL: &[&str] = &["claude", "codex", "acp", "acp that can be steered", "opencode"];

fn each(story: impl Fn(&str, Room)) {
    for name in ALL {
        story(name, Room::new(name));
    }
}

#[test]
fn a_prompt_begins_one_turn_and_is_confirmed_once() {
    each(|name, mut room| {
        let id = room.tell("go");
        room.act(Puppet::see);
        room.act(|puppet| puppet.say("on it"));
        assert_eq!((room.turns.len(), room.how(id)), (1, &[How::NewTurn][..]), "{name}");
        room.act(Puppet::finish);
        assert_eq!((room.ends(), room.idles), (vec![kind::AGENT_COMPLETED], 1), "{name}");
        assert_eq!(room.how(id), [How::NewTurn], "{name}");
    });
}

#[test]
fn each_turn_has_its_own_beginning_and_end() {
    each(|name, mut room| {
        for _ in 0..3 {
            room.tell("go");
            room.act(Puppet::see);
            room.act(|puppet| puppet.tool("t"));
            room.act(Puppet::finish);
        }
        assert_eq!((room.turns.len(), room.idles, room.ends().len()), (3, 3, 3), "{name}");
        assert!(room.turns.iter().all(|turn| turn.tools.is_empty()), "{name}");
    });
}

#[test]
fn what_is_said_in_a_turn_stays_in_it() {
    each(|name, mut room| {
        room.tell("go");
        room.act(Puppet::see);
        room.act(|puppet| puppet.tool("t"));
        let steer = room.tell("and this");
        room.act(Puppet::see);
        room.act(Puppet::see);
        assert_eq!(room.turns.len(), 1, "{name}");
        assert!(matches!(room.how(steer), [How::Injected | How::Restarted]), "{name}: {:?}", room.how(steer));
        room.act(Puppet::finish);
        assert_eq!((room.ends(), room.idles), (vec![kind::AGENT_COMPLETED], 1), "{name}");
    });
}

#[test]
fn an_interrupt_ends_the_turn_and_the_next_one_can_begin() {
    each(|name, mut room| {
        room.tell("go");
        room.act(Puppet::see);
        room.act(|puppet| puppet.say("on it"));
        let stop = room.interrupt();
        room.act(Puppet::see);
        assert_eq!((room.ends(), room.idles), (vec![kind::AGENT_INTERRUPTED], 1), "{name}");
        assert_eq!(room.how(stop), [How::Injected], "{name}");
        let next = room.tell("then this");
        room.settle();
        assert_eq!(room.how(next), [How::NewTurn], "{name}");
        assert_eq!(room.ends(), [kind::AGENT_INTERRUPTED, kind::AGENT_COMPLETED], "{name}");
    });
}

#[test]
fn what_it_asks_is_answered_once() {
    each(|name, mut room| {
        room.tell("go");
        room.act(Puppet::see);
        room.act(|puppet| puppet.ask("t1"));
        let ask = room.asked[0].clone();
        assert_eq!(room.answer(&ask, Answer::Deny { reason: "no".to_owned() }), 1, "{name}");
        assert_eq!(room.answer(&ask, Answer::Allow { input: None, context: None }), 0, "{name}: it is answered");
        room.act(|puppet| puppet.ask("t2"));
        let ask = room.asked[0].clone();
        room.act(Puppet::finish);
        assert_eq!(room.answer(&ask, Answer::Allow { input: None, context: None }), 0, "{name}: the turn is over");
        assert_eq!(room.idles, 1, "{name}");
    });
}

#[derive(Debug, Clone)]
enum Step {
    Tell,
    Interrupt,
    See,
    Say,
    Tool,
    Ask,
    Answer(bool),
    Finish,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        4 => Just(Step::Tell),
        1 => Just(Step::Interrupt),
        4 => Just(Step::See),
        2 => Just(Step::Say),
        2 => Just(Step::Tool),
        1 => Just(Step::Ask),
        2 => any::<bool>().prop_map(Step::Answer),
        2 => Just(Step::Finish),
    ];
    prop::collection::vec(one, 1..40)
}

proptest! {
    #![proptest_config(cases(2_000))]

    /// In whatever order things happen: turns begin and end in turn, and every message is confirmed once.
    #[test]
    fn nothing_is_lost_and_nothing_is_said_twice(name in prop::sample::select(ALL.to_vec()), steps in steps()) {
        let mut room = Room::new(name);
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Tell => drop(room.tell(&format!("words {at}"))),
                // To an idle agent it is not told.
                Step::Interrupt if room.in_turn => drop(room.interrupt()),
                Step::Interrupt => {}
                Step::See => room.act(Puppet::see),
                Step::Say => room.act(|puppet| puppet.say("so")),
                Step::Tool => room.act(|puppet| puppet.tool(&format!("tool{at}"))),
                Step::Ask => room.act(|puppet| puppet.ask(&format!("tool{at}"))),
                Step::Answer(allow) => {
                    if let Some(ask) = room.asked.first().cloned() {
                        let no = Answer::Deny { reason: "no".to_owned() };
                        room.answer(&ask, if allow { Answer::Allow { input: None, context: None } } else { no });
                    }
                }
                Step::Finish => room.act(Puppet::finish),
            }
        }
        room.settle();
        prop_assert_eq!(room.idles, room.turns.len());
        prop_assert_eq!(&room.composed, &room.parts, "every call is in one answer, every result goes back once");
        for (id, how) in &room.told {
            // That a turn is over answers an interrupt too: the executor says it.
            let least = usize::from(!room.interrupts.contains(id));
            prop_assert!((least..=1).contains(&how.len()), "{} was confirmed {:?}", id, how);
        }
    }
}
