//! The demo agent's inputs: lines, the end of the input and the end of commands.

use super::{CommandEnd, DemoAgent, DemoHost, HostInput};
use crate::demo::demo_wire::{DemoAnswer, DemoInput, DemoPrompt};
use atoll_core::demo_line::{DemoLine, parse_demo_lines};
use std::collections::VecDeque;
use std::time::Duration;

/// Maximum wait for the watcher after a tool call.
const SCAN_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(super) struct DemoInbox {
    waiting: VecDeque<DemoInput>,
    /// The last tool call whose file changes are recorded.
    last_scanned: Option<String>,
    closed: bool,
}

impl DemoInbox {
    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn has_interrupt(&self) -> bool {
        self.waiting.iter().any(|line| matches!(line, DemoInput::Interrupt(_)))
    }

    /// Takes the next line of any kind, to start a turn.
    pub(super) fn take_next(&mut self) -> Option<DemoInput> {
        self.waiting.pop_front()
    }

    pub(super) fn take_interrupt(&mut self) -> Option<DemoPrompt> {
        self.take(|line| {
            let DemoInput::Interrupt(prompt) = line else { return None };
            Some(prompt.clone())
        })
    }

    /// Takes a steer. While an approval is open, only one that answers it.
    pub(super) fn take_steer(&mut self, asking: bool) -> Option<DemoPrompt> {
        self.take(|line| {
            let DemoInput::Steer(prompt) = line else { return None };
            (!asking || answers_question(&prompt.text)).then(|| prompt.clone())
        })
    }

    /// Takes an answer: any, or the one with this id.
    pub(super) fn take_answer(&mut self, id: Option<&str>) -> Option<DemoAnswer> {
        self.take(|line| {
            let DemoInput::Answer(answer) = line else { return None };
            id.is_none_or(|id| id == answer.approval_id).then(|| answer.clone())
        })
    }

    fn take<T>(&mut self, pick: impl Fn(&DemoInput) -> Option<T>) -> Option<T> {
        let (at, picked) = self.waiting.iter().enumerate().find_map(|(at, line)| Some((at, pick(line)?)))?;
        self.waiting.remove(at);
        Some(picked)
    }

    fn accept(&mut self, input: HostInput) -> Option<CommandEnd> {
        match input {
            HostInput::Line(DemoInput::Seen { tool_use_id }) => self.last_scanned = Some(tool_use_id),
            HostInput::Line(
                line @ (DemoInput::Prompt(_) | DemoInput::Steer(_) | DemoInput::Interrupt(_) | DemoInput::Answer(_)),
            ) => self.waiting.push_back(line),
            HostInput::Closed => self.closed = true,
            HostInput::CommandEnded(end) => return Some(end),
        }
        None
    }
}

impl<H: DemoHost> DemoAgent<H> {
    /// Accepts everything that has arrived.
    pub(super) async fn poll_inputs(&mut self) {
        while let Some(input) = self.host.next_input(Some(Duration::ZERO)).await {
            self.inbox.accept(input);
            if self.inbox.closed {
                break;
            }
        }
    }

    /// Waits for the next input or the deadline, and returns the end of a command.
    pub(super) async fn wait_for_input(&mut self, deadline: Option<Duration>) -> Option<CommandEnd> {
        self.host.next_input(deadline).await.and_then(|input| self.inbox.accept(input))
    }

    /// Waits for the answer to a tool check; `None` on an interrupt or the end of input.
    pub(super) async fn wait_for_answer(&mut self, id: &str) -> Option<DemoAnswer> {
        self.poll_inputs().await;
        loop {
            let answer = self.inbox.take_answer(Some(id));
            if answer.is_some() || self.inbox.closed || self.inbox.has_interrupt() {
                return answer;
            }
            self.wait_for_input(None).await;
        }
    }

    /// Waits for the scan of a tool's changes, until [`SCAN_TIMEOUT`] or the end of input.
    pub(super) async fn wait_for_scan(&mut self, tool_use_id: &str) {
        let deadline = self.host.now() + SCAN_TIMEOUT;
        self.poll_inputs().await;
        while self.inbox.last_scanned.as_deref() != Some(tool_use_id)
            && !self.inbox.closed
            && self.host.now() < deadline
        {
            self.wait_for_input(Some(deadline)).await;
        }
    }
}

/// Returns true if the text answers an open approval.
fn answers_question(text: &str) -> bool {
    matches!(parse_demo_lines(text).first(), Some(DemoLine::Approve | DemoLine::Deny(_)))
}
