//! A turn of the demo agent: it runs steps and handles new messages between them.

use super::prose_task::{self, TaskStep};
use super::tool::{clip_output, clip_text};
use super::{DemoAgent, DemoFailure, DemoHost, GaveUp};
use crate::demo::demo_wire::{DemoDecision, DemoPrompt};
use atoll_api::events::{
    AgentCompleted, AgentFailed, AgentInterrupted, AgentStarted, AgentText, ApprovalRequested, ApprovalResolved,
    EventData, MessageInjected,
};
use atoll_core::approval::ApprovalDecision;
use atoll_core::demo_line::{DemoLine, parse_demo_lines};
use atoll_core::message::DeliveryMethod;
use std::time::Duration;

/// Maximum size of a text that events have no mark for.
const MAX_UNMARKED_BYTES: usize = 32 << 10;

pub(super) enum DemoStep {
    Line(DemoLine),
    Pause(Duration),
    WaitUntil(Duration),
    /// Waits for the answer to the open approval.
    Answer,
    Repeat(u32),
    Work(TaskStep),
}

impl<H: DemoHost> DemoAgent<H> {
    pub(super) async fn run_turn(&mut self, prompt: &DemoPrompt) -> Result<(), GaveUp> {
        self.turn += 1;
        let (agent, turn, message_id) = (Some("demo".to_owned()), Some(self.turn), Some(prompt.id));
        self.emit_event(&EventData::AgentStarted(AgentStarted { agent, turn, message_id, ..AgentStarted::default() }));
        self.acknowledge_message(prompt.id, DeliveryMethod::NewTurn, Some(self.turn));
        self.steps = parse_demo_lines(&prompt.text).into_iter().map(DemoStep::Line).collect();
        loop {
            self.poll_inputs().await;
            if let Some(interrupt) = self.inbox.take_interrupt() {
                self.end_interrupted_turn(&interrupt);
                return Ok(());
            }
            self.apply_answers();
            if let Some(steer) = self.inbox.take_steer(self.open_approval.is_some()) {
                self.inject_message(&steer);
            }
            let Some(step) = self.steps.pop_front() else { break };
            self.run_step(step).await?;
        }
        let (turn, stop_reason) = (Some(self.turn), Some("end_turn".to_owned()));
        self.emit_event(&EventData::AgentCompleted(AgentCompleted { turn, stop_reason, ..AgentCompleted::default() }));
        Ok(())
    }

    /// Steps of an injected message precede the remaining steps.
    fn inject_message(&mut self, steer: &DemoPrompt) {
        let text = Some(clip_text(&steer.text, MAX_UNMARKED_BYTES).to_owned());
        let data = MessageInjected { message_id: steer.id, text, how: None };
        self.emit_event(&EventData::AgentMessageInjected(data));
        self.acknowledge_message(steer.id, DeliveryMethod::Injected, Some(self.turn));
        for line in parse_demo_lines(&steer.text).into_iter().rev() {
            self.steps.push_front(DemoStep::Line(line));
        }
    }

    fn end_interrupted_turn(&mut self, interrupt: &DemoPrompt) {
        self.acknowledge_message(interrupt.id, DeliveryMethod::Injected, Some(self.turn));
        self.steps.clear();
        self.resolve_approval(ApprovalDecision::Deny, Some("interrupted".to_owned()));
        let (turn, text) = (Some(self.turn), Some(clip_text(&interrupt.text, MAX_UNMARKED_BYTES).to_owned()));
        let data = AgentInterrupted { turn, message_id: Some(interrupt.id), text, forced: false };
        self.emit_event(&EventData::AgentInterrupted(data));
    }

    async fn run_step(&mut self, step: DemoStep) -> Result<(), GaveUp> {
        match step {
            DemoStep::Line(DemoLine::Say(text)) => self.say_text(&text),
            DemoStep::Line(DemoLine::Edit { file, text }) => self.write_file(&file, &format!("{text}\n")).await,
            DemoStep::Line(DemoLine::Run(command)) => drop(self.run_command(&command).await),
            DemoStep::Line(DemoLine::Wait(span)) | DemoStep::Pause(span) => {
                self.steps.push_front(DemoStep::WaitUntil(self.host.now() + span));
            }
            DemoStep::WaitUntil(end) => {
                if self.host.now() < end {
                    self.wait_for_input(Some(end)).await;
                    self.steps.push_front(DemoStep::WaitUntil(end));
                }
            }
            DemoStep::Line(DemoLine::Ask(text)) => {
                self.approval_count += 1;
                let approval_id = format!("ask_{}_{}", self.turn, self.approval_count);
                self.open_approval = Some(approval_id.clone());
                let text = Some(clip_text(&text, MAX_UNMARKED_BYTES).to_owned());
                let data = ApprovalRequested { approval_id, text, ..ApprovalRequested::default() };
                self.emit_event(&EventData::ApprovalRequested(data));
                self.steps.push_front(DemoStep::Answer);
            }
            DemoStep::Answer if self.open_approval.is_none() => {}
            DemoStep::Answer if self.inbox.is_closed() => {
                self.resolve_approval(ApprovalDecision::Deny, Some("the input is closed".to_owned()));
            }
            DemoStep::Answer => {
                self.steps.push_front(DemoStep::Answer);
                self.wait_for_input(None).await;
            }
            DemoStep::Line(DemoLine::Approve) => self.resolve_or_complain(ApprovalDecision::Allow, None),
            DemoStep::Line(DemoLine::Deny(reason)) => self.resolve_or_complain(ApprovalDecision::Deny, reason),
            DemoStep::Line(DemoLine::Loop(times)) => self.steps.push_front(DemoStep::Repeat(times)),
            DemoStep::Repeat(0) => {}
            DemoStep::Repeat(times) => {
                self.run_command("true").await;
                self.steps.push_front(DemoStep::Repeat(times - 1));
            }
            DemoStep::Line(DemoLine::Prose(text)) => {
                self.say_text(&format!("I was told: {text}"));
                for step in prose_task::plan_task(&text, self.options.step_pause).into_iter().rev() {
                    self.steps.push_front(step);
                }
            }
            DemoStep::Work(step) => self.run_task_step(step).await,
            DemoStep::Line(DemoLine::Fail(text)) => {
                let error = text.as_deref().unwrap_or("the agent was told to fail");
                let (reason, error) = ("agent_failed".to_owned(), clip_text(error, MAX_UNMARKED_BYTES).to_owned());
                let data = AgentFailed { turn: Some(self.turn), reason, error, ..AgentFailed::default() };
                self.emit_event(&EventData::AgentFailed(data));
                return Err(GaveUp);
            }
            DemoStep::Line(DemoLine::Oom) => match self.host.fail(DemoFailure::OutOfMemory).await {},
            DemoStep::Line(DemoLine::Hang) => match self.host.fail(DemoFailure::Hang).await {},
            DemoStep::Line(DemoLine::Crash) => match self.host.fail(DemoFailure::Crash).await {},
        }
        Ok(())
    }

    fn resolve_or_complain(&mut self, decision: ApprovalDecision, reason: Option<String>) {
        if !self.resolve_approval(decision, reason) {
            self.say_text("Nothing is waiting for an answer.");
        }
    }

    fn resolve_approval(&mut self, decision: ApprovalDecision, reason: Option<String>) -> bool {
        let Some(approval_id) = self.open_approval.take() else { return false };
        let data = ApprovalResolved { approval_id, decision, reason, tool: None, tool_use_id: None };
        self.emit_event(&EventData::ApprovalResolved(data));
        true
    }

    /// Applies answers to the open approval and drops others.
    fn apply_answers(&mut self) {
        while let Some(answer) = self.inbox.take_answer(None) {
            if self.open_approval.as_ref() == Some(&answer.approval_id) {
                let decision = match answer.decision {
                    DemoDecision::Allow => ApprovalDecision::Allow,
                    DemoDecision::Deny => ApprovalDecision::Deny,
                };
                self.resolve_approval(decision, answer.reason);
            }
        }
    }

    pub(super) fn say_text(&mut self, text: &str) {
        let start = clip_output(text).to_owned();
        let text_bytes = Some(text.len() as u64).filter(|_| start.len() < text.len());
        let truncated = text_bytes.is_some();
        self.emit_event(&EventData::AgentMessage(AgentText {
            text: start,
            truncated,
            text_bytes,
            ..AgentText::default()
        }));
    }
}
