//! A turn of the demo agent: steps, one after the other, and between any two of them whatever was said meanwhile.

use super::inbox::Inbox;
use super::tool::{MAX_OUTPUT, clip};
use super::wire::{Decision, Idle, In, Out, Prompt, Receipt};
use super::{misfortune, work};
use atoll_core::demo_line::{DemoLine, parse};
use atoll_core::event::kind;
use atoll_core::id::MessageId;
use atoll_core::message::How;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub(super) struct Agent {
    pub(super) inbox: Inbox,
    pub(super) turn: i64,
    pub(super) tools: u64,
    pub(super) watched: bool,
    pub(super) job: work::Job,
    steps: VecDeque<Step>,
    /// The open question.
    asking: Option<String>,
    asked: u64,
}

pub(super) enum Step {
    Line(DemoLine),
    /// Nothing, for so long, so that people can watch.
    Pause(Duration),
    WaitUntil(Instant),
    /// Nothing goes on before the open question is answered.
    Answer,
    Repeat(u32),
    Work(work::Piece),
}

/// How a turn ended.
enum Over {
    Done,
    /// The agent has given up.
    Failed,
}

impl Agent {
    pub(super) fn new(inbox: Inbox, turns: i64, watched: bool) -> Self {
        let (steps, job) = (VecDeque::new(), work::Job::default());
        Self { inbox, turn: turns, tools: 0, watched, job, steps, asking: None, asked: 0 }
    }

    pub(super) fn run(mut self) -> ExitCode {
        loop {
            match self.inbox.next() {
                // Said at the end of a turn, and read after it: it begins the next one.
                Some(In::Prompt(words) | In::Steer(words)) => match self.take_turn(&words) {
                    Over::Done => self.write(&Out { idle: Some(Idle { turn: self.turn }), ..Out::default() }),
                    Over::Failed => return ExitCode::FAILURE,
                },
                // There is nothing to interrupt, and nothing was asked.
                Some(In::Interrupt(words)) => self.receipt(words.id, How::Injected, None),
                Some(In::Answer(_) | In::Seen { .. }) => {}
                None if self.inbox.is_closed() => return ExitCode::SUCCESS,
                None => drop(self.inbox.wait(None)),
            }
        }
    }

    fn take_turn(&mut self, words: &Prompt) -> Over {
        self.turn += 1;
        let data = json!({"turn": self.turn, "message_id": words.id, "agent": "demo"});
        self.emit(kind::AGENT_STARTED, &data);
        self.receipt(words.id, How::NewTurn, Some(self.turn));
        self.steps = parse(&words.text).into_iter().map(Step::Line).collect();
        loop {
            if let Some(words) = self.inbox.interrupt() {
                self.interrupted(&words);
                return Over::Done;
            }
            self.be_answered();
            if let Some(words) = self.inbox.steer(self.asking.is_some()) {
                self.inject(&words);
            }
            let Some(step) = self.steps.pop_front() else { break };
            if let Some(over) = self.step(step) {
                return over;
            }
        }
        self.emit(kind::AGENT_COMPLETED, &json!({"turn": self.turn, "stop_reason": "end_turn"}));
        Over::Done
    }

    /// What is said during a turn comes before what the turn had yet to do.
    fn inject(&mut self, words: &Prompt) {
        let data = json!({"message_id": words.id, "text": clip(&words.text, MAX_OUTPUT)});
        self.emit(kind::AGENT_MESSAGE_INJECTED, &data);
        self.receipt(words.id, How::Injected, Some(self.turn));
        for line in parse(&words.text).into_iter().rev() {
            self.steps.push_front(Step::Line(line));
        }
    }

    fn interrupted(&mut self, words: &Prompt) {
        self.receipt(words.id, How::Injected, Some(self.turn));
        self.steps.clear();
        self.resolve("deny", Some("interrupted"));
        let data = json!({"turn": self.turn, "message_id": words.id, "text": clip(&words.text, MAX_OUTPUT)});
        self.emit(kind::AGENT_INTERRUPTED, &data);
    }

    /// One step; `Some` when the turn is over by it.
    fn step(&mut self, step: Step) -> Option<Over> {
        match step {
            Step::Line(DemoLine::Say(text)) => self.say(&text),
            Step::Line(DemoLine::Edit { file, text }) => drop(self.edit(&file, &format!("{text}\n"))),
            Step::Line(DemoLine::Run(command)) => drop(self.run_command(&command)),
            Step::Line(DemoLine::Wait(span)) | Step::Pause(span) => {
                self.steps.push_front(Step::WaitUntil(Instant::now() + span));
            }
            Step::WaitUntil(end) => {
                if Instant::now() < end {
                    self.inbox.wait(Some(end));
                    self.steps.push_front(Step::WaitUntil(end));
                }
            }
            Step::Line(DemoLine::Ask(text)) => {
                self.asked += 1;
                let id = format!("ask_{}_{}", self.turn, self.asked);
                self.emit(kind::APPROVAL_REQUESTED, &json!({"approval_id": id, "text": clip(&text, MAX_OUTPUT)}));
                self.asking = Some(id);
                self.steps.push_front(Step::Answer);
            }
            Step::Answer if self.asking.is_none() => {}
            Step::Answer if self.inbox.is_closed() => drop(self.resolve("deny", Some("nobody is there to answer"))),
            Step::Answer => {
                self.steps.push_front(Step::Answer);
                self.inbox.wait(None);
            }
            Step::Line(DemoLine::Approve) => self.resolve_or_say("allow", None),
            Step::Line(DemoLine::Deny(reason)) => self.resolve_or_say("deny", reason.as_deref()),
            Step::Line(DemoLine::Loop(times)) => self.steps.push_front(Step::Repeat(times)),
            Step::Repeat(0) => {}
            Step::Repeat(times) => {
                self.run_command("true");
                self.steps.push_front(Step::Repeat(times - 1));
            }
            Step::Line(DemoLine::Prose(text)) => {
                self.say(&format!("I was told: {text}"));
                for step in work::plan(&text).into_iter().rev() {
                    self.steps.push_front(step);
                }
            }
            Step::Work(piece) => self.work(piece),
            Step::Line(DemoLine::Fail(text)) => {
                let error = text.unwrap_or_else(|| "the agent was told to fail".to_owned());
                let error = clip(&error, MAX_OUTPUT);
                self.emit(kind::AGENT_FAILED, &json!({"turn": self.turn, "reason": "agent_failed", "error": error}));
                return Some(Over::Failed);
            }
            Step::Line(DemoLine::Oom) => misfortune::run_out_of_memory(),
            Step::Line(DemoLine::Hang) => {
                self.inbox.go_deaf();
                misfortune::hang();
            }
            Step::Line(DemoLine::Crash) => misfortune::crash(),
        }
        None
    }

    fn resolve_or_say(&mut self, decision: &str, reason: Option<&str>) {
        if !self.resolve(decision, reason) {
            self.say("Nothing is waiting for an answer.");
        }
    }

    fn resolve(&mut self, decision: &str, reason: Option<&str>) -> bool {
        let Some(id) = self.asking.take() else { return false };
        self.emit(kind::APPROVAL_RESOLVED, &json!({"approval_id": id, "decision": decision, "reason": reason}));
        true
    }

    /// An answer to the open question that came as such; one to another question is of no use any more.
    fn be_answered(&mut self) {
        while let Some(answer) = self.inbox.answer() {
            if self.asking.as_ref() == Some(&answer.approval_id) {
                let decision = match answer.decision {
                    Decision::Allow => "allow",
                    Decision::Deny => "deny",
                };
                self.resolve(decision, answer.reason.as_deref());
            }
        }
    }

    pub(super) fn say(&self, text: &str) {
        self.emit(kind::AGENT_MESSAGE, &json!({"text": clip(text, MAX_OUTPUT)}));
    }

    fn receipt(&self, id: MessageId, how: How, turn: Option<i64>) {
        self.write(&Out { receipt: Some(Receipt { id, how, turn }), ..Out::default() });
    }

    pub(super) fn emit(&self, event: &str, data: &Value) {
        let data = atoll_core::json::raw(data);
        self.write(&Out { event: Some(event.to_owned()), turn: Some(self.turn), data: Some(&data), ..Out::default() });
    }

    pub(super) fn write(&self, line: &Out<'_>) {
        let mut text = serde_json::to_vec(line).unwrap_or_default();
        text.push(b'\n');
        let mut stdout = std::io::stdout().lock();
        if stdout.write_all(&text).and_then(|()| stdout.flush()).is_err() {
            // Whoever listened is gone.
            std::process::exit(1);
        }
    }
}
