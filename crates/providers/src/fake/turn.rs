//! The agent of a fake sandbox: obeys the demo agent's lines and tells it as events.

use super::desk::{Desk, is_interrupt, steers};
use super::ground::Place;
use atoll_core::demo_line::{DemoLine, parse};
use atoll_core::event::kind;
use atoll_core::message::How;
use atoll_core::sandbox::Activity;
use atoll_protocol::LeasedMessage;
use serde_json::{Value, json};
use std::collections::VecDeque;
use tokio::time::Instant;

/// Text of a single event, well below what the server takes.
const MAX_TEXT: usize = 32 << 10;

pub(super) struct Agent<'a> {
    pub(super) desk: &'a Desk,
    pub(super) place: &'a Place,
    pub(super) turn: i64,
    pub(super) tools: u64,
    steps: VecDeque<Step>,
    asking: Option<String>,
}

enum Step {
    Line(DemoLine),
    WaitUntil(Instant),
    /// Nothing goes on before the open question is answered.
    Answer,
    Repeat(u32),
}

/// How a turn ended.
enum Over {
    /// By itself or by an interrupt: the next message begins another.
    Done,
    /// The agent is no more, or stands still for ever.
    Dead,
    Crashed,
}

impl<'a> Agent<'a> {
    pub(super) const fn new(desk: &'a Desk, place: &'a Place) -> Self {
        Self { desk, place, turn: 0, tools: 0, steps: VecDeque::new(), asking: None }
    }

    /// Returns only when the worker is to crash.
    pub(super) async fn run(mut self, prompt: Option<LeasedMessage>) {
        let mut next = prompt;
        loop {
            let message = match next.take() {
                Some(message) => message,
                None => self.wait_for_message().await,
            };
            if is_interrupt(&message) {
                // There is nothing to interrupt.
                self.desk.hand(&message, How::Injected, None);
                continue;
            }
            match self.take_turn(&message).await {
                Over::Done => {}
                Over::Dead => {
                    self.desk.listening.send_replace(false);
                    std::future::pending::<()>().await;
                }
                Over::Crashed => return,
            }
        }
    }

    async fn wait_for_message(&self) -> LeasedMessage {
        if let Some(message) = self.desk.take(|_| true) {
            return message;
        }
        self.desk.activity.send_replace(Activity::WaitingMessage);
        self.desk.emit(kind::AGENT_WAITING, (self.turn > 0).then_some(self.turn), &json!({}));
        loop {
            self.desk.until(|_| true).await;
            self.place.ground.thawed().await;
            if let Some(message) = self.desk.take(|_| true) {
                return message;
            }
        }
    }

    async fn take_turn(&mut self, message: &LeasedMessage) -> Over {
        self.turn += 1;
        self.desk.activity.send_replace(Activity::Working);
        self.emit(kind::AGENT_STARTED, json!({"turn": self.turn, "message_id": message.id}));
        self.desk.hand(message, How::NewTurn, Some(self.turn));
        self.steps = parse(&message.content).into_iter().map(Step::Line).collect();
        loop {
            // Lets heartbeats and the way up have their turn between any two steps.
            tokio::task::yield_now().await;
            self.place.ground.thawed().await;
            let asking = self.asking.is_some();
            if let Some(message) = self.desk.take(|message| steers(message) && (!asking || answers(message))) {
                if is_interrupt(&message) {
                    return self.interrupted(&message);
                }
                self.inject(&message);
            }
            let Some(step) = self.steps.pop_front() else { break };
            if let Some(over) = self.step(step).await {
                return over;
            }
        }
        let data = json!({"turn": self.turn, "stop_reason": "end_turn"});
        self.desk.emit_end_of_turn(kind::AGENT_COMPLETED, self.turn, &data);
        Over::Done
    }

    /// What is said during a turn comes before what the turn had yet to do.
    fn inject(&mut self, message: &LeasedMessage) {
        let data = json!({"message_id": message.id, "text": clip(&message.content, MAX_TEXT)});
        self.emit(kind::AGENT_MESSAGE_INJECTED, data);
        self.desk.hand(message, How::Injected, Some(self.turn));
        for line in parse(&message.content).into_iter().rev() {
            self.steps.push_front(Step::Line(line));
        }
    }

    fn interrupted(&mut self, message: &LeasedMessage) -> Over {
        self.desk.hand(message, How::Injected, Some(self.turn));
        self.steps.clear();
        self.answer("deny", Some("interrupted"));
        let data = json!({"turn": self.turn, "message_id": message.id, "text": clip(&message.content, MAX_TEXT)});
        self.desk.emit_end_of_turn(kind::AGENT_INTERRUPTED, self.turn, &data);
        Over::Done
    }

    /// One step; `Some` when the turn is over by it.
    async fn step(&mut self, step: Step) -> Option<Over> {
        match step {
            Step::Line(DemoLine::Say(text)) => self.say(&text),
            Step::Line(DemoLine::Edit { file, text }) => self.edit(&file, &format!("{text}\n")),
            Step::Line(DemoLine::Run(command)) => self.run_command(&command).await,
            Step::Line(DemoLine::Wait(span)) => self.steps.push_front(Step::WaitUntil(Instant::now() + span)),
            Step::WaitUntil(end) => {
                tokio::select! {
                    () = tokio::time::sleep_until(end) => {}
                    () = self.desk.until(steers) => self.steps.push_front(Step::WaitUntil(end)),
                }
            }
            Step::Line(DemoLine::Ask(text)) => {
                let id = format!("ask_{}_{}", self.turn, self.desk.last_key() + 1);
                self.desk.activity.send_replace(Activity::WaitingApproval);
                self.emit(kind::APPROVAL_REQUESTED, json!({"approval_id": id, "text": clip(&text, MAX_TEXT)}));
                self.asking = Some(id);
                self.steps.push_front(Step::Answer);
            }
            Step::Answer if self.asking.is_some() => {
                self.steps.push_front(Step::Answer);
                self.desk.until(|message| steers(message) && answers(message)).await;
            }
            Step::Answer => {}
            Step::Line(DemoLine::Approve) => self.answer_or_say("allow", None),
            Step::Line(DemoLine::Deny(reason)) => self.answer_or_say("deny", reason.as_deref()),
            Step::Line(DemoLine::Loop(times)) => self.steps.push_front(Step::Repeat(times)),
            Step::Repeat(0) => {}
            Step::Repeat(times) => {
                self.run_command("true").await;
                self.steps.push_front(Step::Repeat(times - 1));
            }
            Step::Line(DemoLine::Prose(text)) => {
                self.say(&format!("I was told: {text}"));
                self.note(&text);
            }
            Step::Line(DemoLine::Fail(text)) => {
                let detail = text.unwrap_or_else(|| "the agent was told to fail".to_owned());
                return Some(self.fail("agent_failed", &detail));
            }
            Step::Line(DemoLine::Oom) => {
                return Some(self.fail("out_of_memory", "the agent was killed because its memory ran out"));
            }
            Step::Line(DemoLine::Hang) => return Some(Over::Dead),
            Step::Line(DemoLine::Crash) => return Some(Over::Crashed),
        }
        None
    }

    fn fail(&self, reason: &str, detail: &str) -> Over {
        let data = json!({"turn": self.turn, "reason": reason, "detail": clip(detail, MAX_TEXT)});
        self.desk.emit_end_of_turn(kind::AGENT_FAILED, self.turn, &data);
        self.desk.activity.send_replace(Activity::Ended);
        Over::Dead
    }

    fn answer_or_say(&mut self, decision: &str, reason: Option<&str>) {
        if !self.answer(decision, reason) {
            self.say("Nothing is waiting for an answer.");
        }
    }

    fn answer(&mut self, decision: &str, reason: Option<&str>) -> bool {
        let Some(id) = self.asking.take() else { return false };
        self.desk.activity.send_replace(Activity::Working);
        self.emit(kind::APPROVAL_RESOLVED, json!({"approval_id": id, "decision": decision, "reason": reason}));
        true
    }

    fn say(&self, text: &str) {
        self.emit(kind::AGENT_MESSAGE, json!({"text": clip(text, MAX_TEXT)}));
    }

    pub(super) fn emit(&self, event_type: &str, data: Value) {
        self.desk.emit(event_type, Some(self.turn), &data);
    }
}

/// Answers the open question, whatever it is.
fn answers(message: &LeasedMessage) -> bool {
    matches!(parse(&message.content).first(), Some(DemoLine::Approve | DemoLine::Deny(_)))
}

/// The beginning of `text`, at most `limit` bytes.
pub(super) fn clip(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}
