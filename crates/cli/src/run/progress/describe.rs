//! The steps of each event: a line, a text, or nothing for events that would only be noise.

use super::{AnswerMode, RunProgress};
use crate::event_log::log_event::LogEvent;
use crate::render::approval::{self, ApprovalRequest};
use crate::render::fact::{self, Fact};
use crate::render::plain_value::describe_output;
use crate::render::setup_lines::{self, SetupLine, SetupLineKind};
use crate::render::spans::Spans;
use crate::render::{continuous, patch, style, text, time};
use crate::run::step::{Mark, ViewStep};
use atoll_api::events::{
    AgentCompleted, ApprovalAnswered, ApprovalRequested, ApprovalResolved, EventData, FileChangeType, FileEdited,
    GitCloned, MessageContent, MessageOutcome, ToolCompleted,
};
use atoll_core::continuous::CheckVerdict;
use atoll_core::message::{DeliveryMethod, MessageType};
use atoll_core::policy::{ToolEffect, tool_effect};
use atoll_core::provider::CommandExit;
use std::time::Duration;

/// Lines of a failed tool's output.
const OUTPUT_LINES: usize = 5;
const TAIL_LINES: usize = 20;
/// Lines of a plan or of a subagent's output.
const MAX_FACT_LINES: usize = 20;
/// Shorter tool calls show no duration.
const MIN_SHOWN_DURATION: Duration = Duration::from_secs(1);

impl RunProgress {
    pub(super) fn describe_event(&mut self, event: &LogEvent) -> Vec<ViewStep> {
        let body = event.text().unwrap_or_default();
        let step = match &event.data {
            _ if event.is_for_programs() => None,
            EventData::AgentStarted(_) => {
                self.calls.clear_calls();
                let turn = event.event.turn.filter(|turn| *turn > 1);
                turn.map(|turn| ViewStep::note(&format!("turn {turn}")))
            }
            EventData::AgentMessage(_) => Some(ViewStep::agent_text(&body)),
            EventData::AgentThinking(_) => Some(ViewStep::text_block(Mark::Agent, style::FAINT, &body)),
            EventData::AgentSystemMessage(_) => Some(ViewStep::note(&body)),
            EventData::AgentToolUse(call) => {
                self.calls.start_call(call, event.event.at);
                None
            }
            EventData::AgentToolCompleted(call) => self.describe_tool(event, call),
            EventData::AgentFileEdited(edit) => {
                self.calls.mark_edited(edit.tool_use_id.as_deref());
                Some(describe_edit(edit))
            }
            EventData::AgentInterrupted(_) => Some(ViewStep::warning("the agent was interrupted")),
            EventData::AgentCompleted(turn) => describe_stop(turn),
            EventData::AgentFailed(failure) => {
                // The service's own step shows its output.
                let tail = failure.stderr_tail.as_deref().filter(|_| failure.reason != "service_failed");
                let tail = tail.unwrap_or_default();
                Some(failure_step(&format!("{} ({})", failure.error, failure.reason), tail))
            }
            EventData::AgentError(_) | EventData::AgentStreamError(_) => Some(failure_step(&body, "")),
            EventData::ApprovalRequested(approval) => Some(self.describe_question(approval)),
            EventData::ApprovalAnswered(approval) => self.describe_answer(approval),
            EventData::ApprovalResolved(approval) => self.describe_resolution(approval),
            EventData::MessageQueued(message) => describe_queued(message),
            EventData::MessageEdited(message) => {
                Some(ViewStep::text_block(Mark::User, style::NAME, &format!("edited: {}", message.content)))
            }
            EventData::MessageAcknowledged(message) => self.describe_delivery(event, message),
            EventData::MessageCancelled(message) => self.mark_undelivered(message, "cancelled"),
            EventData::MessageUndeliverable(message) => self.mark_undelivered(message, "undeliverable"),
            EventData::MessageDeliveredUnconfirmed(message) => {
                self.mark_undelivered(message, "delivered, but not confirmed")
            }
            EventData::GitCloned(clone) => return describe_clone(clone),
            // `atoll sandbox show` and `atoll doctor` show what holds for every sandbox.
            EventData::SandboxNotice(notice) if notice.routine => None,
            EventData::SandboxNotice(_) | EventData::SandboxDiskFull(_) => Some(ViewStep::warning(&body)),
            // The status line or the summary covers these, or only programs need them.
            EventData::AgentAssistantMessage(_)
            | EventData::AgentUserToolResult(_)
            | EventData::AgentWaiting(_)
            | EventData::AgentShutdown(_)
            | EventData::AgentMessageInjected(_)
            | EventData::GitBranchCreated(_)
            | EventData::GitNothingChanged(_) => None,
            EventData::ServiceStarted(started) if started.restarts == 0 => None,
            data => match event.event_type().split('.').next() {
                Some("session" | "sandbox") => None,
                Some("continuous") => return describe_check(data).into_iter().collect(),
                Some("setup") => return setup_lines::describe_setup(data).map(setup_step).into_iter().collect(),
                _ => fact::describe_fact(event).map(fact_step),
            },
        };
        step.into_iter().collect()
    }

    fn describe_tool(&mut self, event: &LogEvent, call: &ToolCompleted) -> Option<ViewStep> {
        let done = self.calls.finish_call(call, event.event.at);
        // The edit has its own step; a command that changed a file is shown as well.
        if done.is_edit && !call.is_error && tool_effect(&call.tool) == ToolEffect::Writes {
            return None;
        }
        let (tool, input) = done.description.split_once("  ").unwrap_or((&done.description, ""));
        let line = Spans::new().styled(style::HEAD, tool).plain(format!("  {input}"));
        let duration = done.duration.filter(|duration| *duration >= MIN_SHOWN_DURATION);
        let exit = if call.is_error { call.exit.map(describe_exit) } else { None };
        let side = [exit, duration.map(time::format_duration)].into_iter().flatten().collect::<Vec<_>>().join(", ");
        let side = if side.is_empty() { side } else { format!("  {side}") };
        let mark = if call.is_error { Mark::Failed } else { Mark::Done };
        let step = ViewStep::one_line(mark, line).with_side(Spans::new().styled(style::FAINT, side));
        let output = describe_output(&call.output);
        Some(if call.is_error { step.with_body(style::FAINT, &last_lines(&output, OUTPUT_LINES)) } else { step })
    }

    fn describe_question(&self, approval: &ApprovalRequested) -> ViewStep {
        let how = match (&self.answers, self.pending.last()) {
            (AnswerMode::ByMessage(how), _) => how.clone(),
            (AnswerMode::Typed, Some(pending)) => pending.typing_hint(),
            (AnswerMode::Command, Some(pending)) => pending.command_hint(),
            (AnswerMode::Typed | AnswerMode::Command, None) => "answer with: atoll approvals".to_owned(),
            (AnswerMode::Past, _) => String::new(),
        };
        let question = ApprovalRequest::from(approval).describe_with_tool();
        ViewStep::text_block(Mark::Question, style::WARN, &format!("the agent asks: {question}\n{how}"))
    }

    /// The answers to a question; a decision has its step when the agent has it.
    fn describe_answer(&mut self, answered: &ApprovalAnswered) -> Option<ViewStep> {
        answered.answers.as_ref().filter(|answers| !answers.is_empty())?;
        self.answered_questions.insert(answered.approval_id.clone());
        Some(ViewStep::note(&approval::describe_answer(answered)))
    }

    fn describe_resolution(&mut self, resolved: &ApprovalResolved) -> Option<ViewStep> {
        let is_shown = self.answered_questions.remove(&resolved.approval_id);
        (!is_shown).then(|| ViewStep::note(&approval::describe_resolution(resolved)))
    }

    fn describe_delivery(&mut self, event: &LogEvent, message: &MessageOutcome) -> Option<ViewStep> {
        let interrupts = self.undelivered.remove(&message.message_id)?;
        // The start of a turn and the interrupt have their own steps.
        if message.how == Some(DeliveryMethod::NewTurn) || interrupts {
            return None;
        }
        let turn = event.event.turn.map(|turn| format!(" in turn {turn}")).unwrap_or_default();
        let how = message.how.map(|how| format!(" ({how})")).unwrap_or_default();
        Some(sub_line(&format!("reached the agent{turn}{how}")))
    }

    fn mark_undelivered(&mut self, message: &MessageOutcome, state: &str) -> Option<ViewStep> {
        self.undelivered.remove(&message.message_id);
        let reason = message.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        Some(sub_line(&format!("{state}{reason}")))
    }
}

fn sub_line(text: &str) -> ViewStep {
    ViewStep::text_block(Mark::Under, style::FAINT, text)
}

fn fact_step(fact: Fact) -> ViewStep {
    let body = last_lines(&fact.body, MAX_FACT_LINES);
    let words = if body.is_empty() { fact.head } else { format!("{}\n{body}", fact.head) };
    if fact.is_warning { ViewStep::warning(&words) } else { ViewStep::note(&words) }
}

fn describe_queued(message: &MessageContent) -> Option<ViewStep> {
    match message.message_type {
        // The failed checks have their own steps.
        MessageType::System => None,
        MessageType::Interrupt => Some(ViewStep::text_block(Mark::User, style::WARN, "interrupt")),
        _ => Some(ViewStep::text_block(Mark::User, style::NAME, &message.content)),
    }
}

fn describe_edit(edit: &FileEdited) -> ViewStep {
    let path = text::escape_line(&edit.file_path);
    let path = match &edit.old_path {
        Some(old) => format!("{} → {path}", text::escape_line(old)),
        None => path,
    };
    let change = match edit.change_type {
        FileChangeType::Modified => String::new(),
        change => format!("  {}", patch::change_word(change)),
    };
    let side = if edit.binary {
        Spans::new().styled(style::FAINT, "  binary")
    } else {
        Spans::new().plain("  ").append(patch::change_counts(edit.lines_added, edit.lines_removed))
    };
    ViewStep::one_line(Mark::Edit, Spans::new().plain(path)).with_side(side.styled(style::FAINT, change))
}

/// Nothing for an ordinary end of the turn.
fn describe_stop(turn: &AgentCompleted) -> Option<ViewStep> {
    let reason = turn.stop_reason.as_deref().filter(|reason| *reason != "end_turn")?;
    Some(ViewStep::note(&format!("the turn ended: {reason}")))
}

fn failure_step(error: &str, stderr_tail: &str) -> ViewStep {
    let error = if error.is_empty() { "the agent failed" } else { error };
    let step = ViewStep::one_line(Mark::Failed, Spans::new().styled(style::BAD, text::escape_line(error)));
    step.with_body(style::FAINT, &last_lines(stderr_tail, TAIL_LINES))
}

/// A check of continuous mode, or the result of all checks.
fn describe_check(data: &EventData) -> Option<ViewStep> {
    let line = text::escape_line(&continuous::describe_step(data)?);
    Some(match data {
        EventData::ContinuousCheck(check) if check.check.verdict != CheckVerdict::Passed => {
            let output = last_lines(&check.check.output, OUTPUT_LINES);
            ViewStep::one_line(Mark::Failed, Spans::new().plain(line)).with_body(style::FAINT, &output)
        }
        EventData::ContinuousCheck(_) | EventData::ContinuousPassed(_) => {
            ViewStep::one_line(Mark::Done, Spans::new().plain(line))
        }
        EventData::ContinuousStopped(_) | EventData::ContinuousRunFailed(_) => ViewStep::warning(&line),
        _ => ViewStep::note(&line),
    })
}

fn setup_step(line: SetupLine) -> ViewStep {
    let head = Spans::new().plain(text::escape_line(&line.head));
    let body = last_lines(&line.body, MAX_FACT_LINES);
    match line.kind {
        SetupLineKind::Note if body.is_empty() => ViewStep::note(&line.head),
        SetupLineKind::Note => ViewStep::note(&format!("{}\n{body}", line.head)),
        SetupLineKind::Output => ViewStep::text_block(Mark::Under, style::FAINT, &line.body),
        SetupLineKind::Done => ViewStep::one_line(Mark::Done, head),
        // The steps above show the output.
        SetupLineKind::Failed => {
            ViewStep::one_line(Mark::Failed, head).with_body(style::WARN, &line.remedy.unwrap_or_default())
        }
    }
}

fn describe_clone(clone: &GitCloned) -> Vec<ViewStep> {
    let commit: String = clone.commit.as_deref().unwrap_or("?").chars().take(8).collect();
    let repo = clone.repo.as_ref().map(|repo| format!(" of {repo}")).unwrap_or_default();
    let branch = clone.branch.as_ref().map(|branch| format!(", on branch {branch}")).unwrap_or_default();
    let mut steps = vec![ViewStep::note(&format!("the workspace is at {commit}{repo}{branch}"))];
    let files = match clone.uncommitted {
        0 => return steps,
        1 => "1 file has".to_owned(),
        many => format!("{many} files have"),
    };
    steps.push(ViewStep::warning(&format!("{files} uncommitted changes, which the agent does not see")));
    steps
}

pub(super) fn describe_exit(exit: CommandExit) -> String {
    match exit {
        CommandExit::Exited { code } => format!("exit {code}"),
        CommandExit::Signalled { signal } => format!("signal {signal}"),
        CommandExit::OutOfMemory => "out of memory".to_owned(),
        CommandExit::TimedOut => "timed out".to_owned(),
        CommandExit::Unknown => "exit unknown".to_owned(),
    }
}

fn last_lines(text: &str, most: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(most)..].join("\n")
}
