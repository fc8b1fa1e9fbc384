//! The conformance suite: guarantees of every driver. Each driver talks to a fake agent through the same scenarios, and
//! through random ones.

use super::testing::{parse_lines, proptest_config};
use super::{AgentOutput, AgentTurn, Driver, EventEffect, RequestAnswer};
use crate::response_assembly::{AssembledEvent, ResponseAssembler};
use atoll_core::event::kind;
use atoll_core::id::MessageId;
use atoll_core::message::{Delivery, DeliveryMethod, MessageType};
use atoll_protocol::LeasedMessage;
use fake_agents::FakeAgent;
use proptest::prelude::*;
use std::collections::BTreeMap;

mod fake_agents;

/// A driver, its fake agent and everything that the driver has reported.
struct Harness {
    driver: Box<dyn Driver>,
    agent: Box<dyn FakeAgent>,
    /// Delivery method of each acknowledged message.
    acknowledgements: BTreeMap<MessageId, Vec<DeliveryMethod>>,
    interrupts: Vec<MessageId>,
    open_requests: Vec<String>,
    /// A message has started a turn, and the turn has not ended.
    in_turn: bool,
    turns: Vec<TurnRecord>,
    exchange: ResponseAssembler,
    /// Tool calls and tool results, as reported and as assembled.
    reported: [Vec<String>; 2],
    assembled: [Vec<String>; 2],
    /// Number of times the agent became idle.
    idles: usize,
}

#[derive(Debug, Default)]
struct TurnRecord {
    tools: Vec<String>,
    /// The event that ended the turn.
    end: Option<String>,
}

impl Harness {
    fn new(name: &str) -> Self {
        let (driver, puppet) = fake_agents::new_pair(name);
        let mut room = Self {
            driver,
            agent: puppet,
            acknowledgements: BTreeMap::new(),
            interrupts: Vec::new(),
            open_requests: Vec::new(),
            in_turn: false,
            turns: Vec::new(),
            exchange: ResponseAssembler::default(),
            reported: <[Vec<String>; 2]>::default(),
            assembled: <[Vec<String>; 2]>::default(),
            idles: 0,
        };
        let greeting = room.driver.handshake();
        room.send_to_agent(&greeting);
        room
    }

    /// Sends input to the agent, and its output back to the driver.
    fn send_to_agent(&mut self, bytes: &[u8]) {
        for line in parse_lines(bytes) {
            let lines = self.agent.receive_line(&line);
            self.feed_driver(lines);
        }
    }

    fn feed_driver(&mut self, spoken: Vec<serde_json::Value>) {
        for line in spoken {
            for output in self.driver.handle_line(line.to_string().as_bytes()) {
                self.handle_output(output, &line);
            }
        }
    }

    fn assemble_responses(&mut self, output: &AgentOutput) {
        let composed = match output {
            AgentOutput::Event(event) => {
                match &event.effect {
                    EventEffect::ToolStarted(id) => self.reported[0].push(id.clone()),
                    EventEffect::ToolEnded(id) => self.reported[1].push(id.clone()),
                    _ => {}
                }
                self.exchange.observe_event(event.event_type.as_str(), event.data.get(), None, &event.response)
            }
            AgentOutput::ResponseEnded { parent } => {
                self.exchange.end_response(parent.as_deref());
                self.exchange.take_ended()
            }
            _ => Vec::new(),
        };
        for AssembledEvent { event_type, data, .. } in composed {
            let data: serde_json::Value = serde_json::from_str(data.get()).unwrap();
            let is_answer = event_type == kind::AGENT_ASSISTANT_MESSAGE;
            let list = data[if is_answer { "content" } else { "results" }].as_array().unwrap();
            let ids = list.iter().filter_map(|one| one["tool_use_id"].as_str().map(str::to_owned));
            self.assembled[usize::from(!is_answer)].extend(ids);
        }
    }

    fn handle_output(&mut self, output: AgentOutput, line: &serde_json::Value) {
        self.assemble_responses(&output);
        match output {
            AgentOutput::Reply(bytes) => self.send_to_agent(&bytes),
            AgentOutput::Acknowledged { id, how } => {
                assert!(!self.turns.is_empty(), "acknowledged before the first turn");
                self.acknowledgements.get_mut(&id).expect("unknown message id").push(how);
            }
            AgentOutput::Idle => {
                let ended = self.turns.last().is_some_and(|turn| turn.end.is_some());
                assert!(ended && self.in_turn, "idle without the end of a turn");
                self.idles += 1;
                self.in_turn = false;
                self.open_requests.clear();
                assert_eq!(self.idles, self.turns.len());
            }
            AgentOutput::Request(request) => {
                assert!(!self.open_requests.contains(&request.id), "two open requests with one id");
                self.open_requests.push(request.id);
            }
            AgentOutput::AwaitingScan { tool_use_id } => {
                let line = self.driver.confirm_scan(&tool_use_id).unwrap_or_default();
                self.send_to_agent(&line);
            }
            AgentOutput::Event(event) => match event.effect {
                EventEffect::TurnStarted => {
                    assert!(self.turns.last().is_none_or(|turn| turn.end.is_some()), "nested turns");
                    self.turns.push(TurnRecord::default());
                    self.in_turn = true;
                }
                EventEffect::TurnEnded => {
                    let turn = self.turns.last_mut().expect("there is a turn");
                    assert_eq!(turn.end.replace(event.event_type.as_str().to_owned()), None, "the turn ends twice");
                }
                EventEffect::ToolStarted(id) => self.current_turn().tools.push(id),
                EventEffect::ToolEnded(id) => {
                    let turn = self.current_turn();
                    assert!(turn.tools.contains(&id), "a tool ends without a start");
                    turn.tools.retain(|tool| *tool != id);
                }
                EventEffect::None | EventEffect::ApprovalRequested | EventEffect::ApprovalResolved => {}
            },
            AgentOutput::Unparsed { reason } => panic!("unparsed: {line}: {reason}"),
            AgentOutput::Failed { error } => panic!("failed at {line}: {error}"),
            AgentOutput::TextDelta(_)
            | AgentOutput::NativeId { .. }
            | AgentOutput::ResponseEnded { .. }
            | AgentOutput::RateLimited { .. } => {}
        }
    }

    fn current_turn(&mut self) -> &mut TurnRecord {
        let turn = self.turns.last_mut().expect("there is a turn");
        assert!(turn.end.is_none(), "the turn is over");
        turn
    }

    fn send_text(&mut self, text: &str) -> MessageId {
        self.send_message(LeasedMessage::example(text, Delivery::Steer))
    }

    fn send_interrupt(&mut self) -> MessageId {
        let stop =
            LeasedMessage { message_type: MessageType::Interrupt, ..LeasedMessage::example("enough", Delivery::Steer) };
        self.interrupts.push(stop.id);
        self.send_message(stop)
    }

    fn send_message(&mut self, message: LeasedMessage) -> MessageId {
        let turn = if self.in_turn { AgentTurn::InTurn } else { AgentTurn::Idle };
        // The executor assumes a turn from here on.
        self.in_turn = true;
        self.acknowledgements.insert(message.id, Vec::new());
        let line = self.driver.encode_message(&message, turn);
        self.send_to_agent(&line);
        message.id
    }

    fn drive_agent(&mut self, act: impl FnOnce(&mut (dyn FakeAgent + 'static)) -> Vec<serde_json::Value>) {
        let spoken = act(&mut *self.agent);
        self.feed_driver(spoken);
    }

    fn answer_request(&mut self, request_id: &str, answer: RequestAnswer) -> usize {
        self.open_requests.retain(|request| request != request_id);
        let line = self.driver.answer_request(request_id, answer);
        let count = parse_lines(&line).len();
        self.send_to_agent(&line);
        count
    }

    fn acknowledgements_of(&self, id: MessageId) -> &[DeliveryMethod] {
        &self.acknowledgements[&id]
    }

    fn turn_ends(&self) -> Vec<&str> {
        self.turns.iter().filter_map(|turn| turn.end.as_deref()).collect()
    }

    /// Lets all running work end.
    fn run_to_idle(&mut self) {
        for _ in 0..20 {
            while let Some(request_id) = self.open_requests.first().cloned() {
                self.answer_request(&request_id, RequestAnswer::Allow { input: None, context: None });
            }
            self.drive_agent(FakeAgent::read_messages);
            self.drive_agent(FakeAgent::finish_turn);
        }
    }
}

const AGENTS: &[&str] = &["claude", "codex", "acp", "acp with steering", "opencode"];

fn for_each_agent(story: impl Fn(&str, Harness)) {
    for name in AGENTS {
        story(name, Harness::new(name));
    }
}

#[test]
fn a_prompt_starts_one_turn_and_is_acknowledged_once() {
    for_each_agent(|name, mut room| {
        let id = room.send_text("go");
        room.drive_agent(FakeAgent::read_messages);
        room.drive_agent(|puppet| puppet.say_text("on it"));
        assert_eq!((room.turns.len(), room.acknowledgements_of(id)), (1, &[DeliveryMethod::NewTurn][..]), "{name}");
        room.drive_agent(FakeAgent::finish_turn);
        assert_eq!((room.turn_ends(), room.idles), (vec![kind::AGENT_COMPLETED], 1), "{name}");
        assert_eq!(room.acknowledgements_of(id), [DeliveryMethod::NewTurn], "{name}");
    });
}

#[test]
fn each_turn_starts_and_ends_once() {
    for_each_agent(|name, mut room| {
        for _ in 0..3 {
            room.send_text("go");
            room.drive_agent(FakeAgent::read_messages);
            room.drive_agent(|puppet| puppet.use_tool("t"));
            room.drive_agent(FakeAgent::finish_turn);
        }
        assert_eq!((room.turns.len(), room.idles, room.turn_ends().len()), (3, 3, 3), "{name}");
        assert!(room.turns.iter().all(|turn| turn.tools.is_empty()), "{name}");
    });
}

#[test]
fn a_steer_stays_in_its_turn() {
    for_each_agent(|name, mut room| {
        room.send_text("go");
        room.drive_agent(FakeAgent::read_messages);
        room.drive_agent(|puppet| puppet.use_tool("t"));
        let steer = room.send_text("and this");
        room.drive_agent(FakeAgent::read_messages);
        room.drive_agent(FakeAgent::read_messages);
        assert_eq!(room.turns.len(), 1, "{name}");
        assert!(
            matches!(room.acknowledgements_of(steer), [DeliveryMethod::Injected | DeliveryMethod::Restarted]),
            "{name}: {:?}",
            room.acknowledgements_of(steer)
        );
        room.drive_agent(FakeAgent::finish_turn);
        assert_eq!((room.turn_ends(), room.idles), (vec![kind::AGENT_COMPLETED], 1), "{name}");
    });
}

#[test]
fn an_interrupt_ends_the_turn_and_the_next_one_can_start() {
    for_each_agent(|name, mut room| {
        room.send_text("go");
        room.drive_agent(FakeAgent::read_messages);
        room.drive_agent(|puppet| puppet.say_text("on it"));
        let stop = room.send_interrupt();
        room.drive_agent(FakeAgent::read_messages);
        assert_eq!((room.turn_ends(), room.idles), (vec![kind::AGENT_INTERRUPTED], 1), "{name}");
        assert_eq!(room.acknowledgements_of(stop), [DeliveryMethod::Injected], "{name}");
        let next = room.send_text("then this");
        room.run_to_idle();
        assert_eq!(room.acknowledgements_of(next), [DeliveryMethod::NewTurn], "{name}");
        assert_eq!(room.turn_ends(), [kind::AGENT_INTERRUPTED, kind::AGENT_COMPLETED], "{name}");
    });
}

#[test]
fn each_request_is_answered_once() {
    for_each_agent(|name, mut room| {
        room.send_text("go");
        room.drive_agent(FakeAgent::read_messages);
        room.drive_agent(|puppet| puppet.ask_permission("t1"));
        let request_id = room.open_requests[0].clone();
        assert_eq!(room.answer_request(&request_id, RequestAnswer::Deny { reason: "no".to_owned() }), 1, "{name}");
        assert_eq!(
            room.answer_request(&request_id, RequestAnswer::Allow { input: None, context: None }),
            0,
            "{name}: already answered"
        );
        room.drive_agent(|puppet| puppet.ask_permission("t2"));
        let request_id = room.open_requests[0].clone();
        room.drive_agent(FakeAgent::finish_turn);
        assert_eq!(
            room.answer_request(&request_id, RequestAnswer::Allow { input: None, context: None }),
            0,
            "{name}: the turn is over"
        );
        assert_eq!(room.idles, 1, "{name}");
    });
}

#[derive(Debug, Clone)]
enum ConversationStep {
    Tell,
    Interrupt,
    See,
    Say,
    Tool,
    Ask,
    Answer(bool),
    Finish,
}

fn random_steps() -> impl Strategy<Value = Vec<ConversationStep>> {
    let one = prop_oneof![
        4 => Just(ConversationStep::Tell),
        1 => Just(ConversationStep::Interrupt),
        4 => Just(ConversationStep::See),
        2 => Just(ConversationStep::Say),
        2 => Just(ConversationStep::Tool),
        1 => Just(ConversationStep::Ask),
        2 => any::<bool>().prop_map(ConversationStep::Answer),
        2 => Just(ConversationStep::Finish),
    ];
    prop::collection::vec(one, 1..40)
}

proptest! {
    #![proptest_config(proptest_config(2_000))]

    /// In any order of steps, turns do not overlap and every message is acknowledged once.
    #[test]
    fn every_message_is_acknowledged_once(name in prop::sample::select(AGENTS.to_vec()), steps in random_steps()) {
        let mut room = Harness::new(name);
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                ConversationStep::Tell => drop(room.send_text(&format!("words {at}"))),
                // The executor does not send interrupts to an idle agent.
                ConversationStep::Interrupt if room.in_turn => drop(room.send_interrupt()),
                ConversationStep::Interrupt => {}
                ConversationStep::See => room.drive_agent(FakeAgent::read_messages),
                ConversationStep::Say => room.drive_agent(|puppet| puppet.say_text("so")),
                ConversationStep::Tool => room.drive_agent(|puppet| puppet.use_tool(&format!("tool{at}"))),
                ConversationStep::Ask => room.drive_agent(|puppet| puppet.ask_permission(&format!("tool{at}"))),
                ConversationStep::Answer(allow) => {
                    if let Some(request_id) = room.open_requests.first().cloned() {
                        let no = RequestAnswer::Deny { reason: "no".to_owned() };
                        room.answer_request(&request_id, if allow { RequestAnswer::Allow { input: None, context: None } } else { no });
                    }
                }
                ConversationStep::Finish => room.drive_agent(FakeAgent::finish_turn),
            }
        }
        room.run_to_idle();
        prop_assert_eq!(room.idles, room.turns.len());
        prop_assert_eq!(&room.assembled, &room.reported, "every call is in one response, every result is returned once");
        for (id, how) in &room.acknowledgements {
            // The end of a turn acknowledges an interrupt too; the executor reports that.
            let least = usize::from(!room.interrupts.contains(id));
            prop_assert!((least..=1).contains(&how.len()), "{} was acknowledged {:?}", id, how);
        }
    }
}
