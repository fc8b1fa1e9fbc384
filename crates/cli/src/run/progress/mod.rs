//! The progress of a run, derived from its events: the steps to print, the current phase and the results. Pure.

mod describe;
mod pending_approval;
mod tool_calls;

#[cfg(test)]
mod tests;

pub use pending_approval::PendingApproval;

use super::step::ViewStep;
use crate::event_log::log_event::LogEvent;
use crate::render::patch;
use atoll_api::DiffFile;
use atoll_api::events::{AgentFailed, EventData, FileChangeType, FileEdited, GitBranchCreated, SandboxTransition};
use atoll_core::id::MessageId;
use atoll_core::limit::Limit;
use atoll_core::message::MessageType;
use atoll_core::sandbox::{Outcome, SandboxState};
use std::collections::{BTreeMap, BTreeSet};
use tool_calls::ToolCalls;

/// The current phase of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    Creating,
    /// The project's set-up runs.
    SettingUp,
    Starting,
    Working,
    /// A running tool call, described.
    Tool(String),
    /// The agent's turn is over: it waits for a message.
    Waiting,
    /// The agent waits for a decision or an answer.
    WaitingApproval,
    /// A limit pauses the agent.
    LimitPaused(Limit),
    ExportingResults,
    Ended,
}

/// The branch with the agent's work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultBranch {
    pub name: String,
    pub base: Option<String>,
    pub commits: Option<u64>,
    pub files: Vec<DiffFile>,
    /// Changed files that decide what machines run.
    pub flagged: Vec<String>,
    /// Remarks about the export.
    pub notes: Vec<String>,
}

/// The end of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxEnd {
    pub state: SandboxState,
    pub outcome: Option<Outcome>,
    pub code: Option<String>,
    pub detail: Option<String>,
}

/// The agent's failure, as its worker reports it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentFailure {
    pub detail: String,
    /// Limit and peak in bytes, if the memory ran out.
    pub memory: Option<(u64, u64)>,
}

#[derive(Debug)]
pub struct RunProgress {
    pub phase: Phase,
    pub turn: Option<i64>,
    /// The worker has reported: a later failure is not one of the set-up.
    pub has_run: bool,
    pub branch: Option<ResultBranch>,
    pub nothing_changed: bool,
    pub failed: Option<AgentFailure>,
    pub end: Option<SandboxEnd>,
    /// Number of ends: exporting the results of a failed sandbox ends it again.
    pub ends: usize,
    answers: AnswerMode,
    /// Pending approvals, oldest first.
    pending: Vec<PendingApproval>,
    /// Questions whose answers have been shown.
    answered_questions: BTreeSet<String>,
    calls: ToolCalls,
    edits: BTreeMap<String, DiffFile>,
    /// Messages without a delivery report, and whether they are interrupts.
    undelivered: BTreeMap<MessageId, bool>,
}

/// The way in which a user answers the agent's questions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerMode {
    /// By typing here.
    Typed,
    /// By another command.
    Command,
    /// By a message, with this hint.
    ByMessage(String),
    /// The run is over.
    Past,
}

impl RunProgress {
    pub fn new(answers: AnswerMode) -> Self {
        Self {
            phase: Phase::Creating,
            turn: None,
            has_run: false,
            branch: None,
            nothing_changed: false,
            failed: None,
            end: None,
            ends: 0,
            answers,
            pending: Vec::new(),
            answered_questions: BTreeSet::new(),
            calls: ToolCalls::default(),
            edits: BTreeMap::new(),
            undelivered: BTreeMap::new(),
        }
    }

    /// Applies the next event and returns its steps.
    pub fn apply(&mut self, event: &LogEvent) -> Vec<ViewStep> {
        self.turn = event.event.turn.or(self.turn);
        self.update_approvals(&event.data);
        self.update(event);
        self.describe_event(event)
    }

    /// The edited files by path, with all edits of each file summed up.
    pub fn edits(&self) -> Vec<DiffFile> {
        self.edits.values().cloned().collect()
    }

    /// The approval that the next typed line could answer.
    pub fn pending_approval(&self) -> Option<&PendingApproval> {
        match self.answers {
            AnswerMode::Typed => self.pending.first(),
            AnswerMode::Command | AnswerMode::ByMessage(_) | AnswerMode::Past => None,
        }
    }

    /// The pending tool call that one key could answer.
    pub fn quick_approval(&self) -> Option<&PendingApproval> {
        match self.answers {
            AnswerMode::Typed | AnswerMode::ByMessage(_) => self.pending.first().filter(|first| first.is_tool_call()),
            AnswerMode::Command | AnswerMode::Past => None,
        }
    }

    /// Number of sent messages that have not reached the agent yet.
    pub fn undelivered_messages(&self) -> usize {
        self.undelivered.values().filter(|interrupts| !**interrupts).count()
    }

    pub fn is_working(&self) -> bool {
        match self.phase {
            Phase::Working | Phase::Tool(_) | Phase::WaitingApproval | Phase::LimitPaused(_) => true,
            Phase::Creating
            | Phase::SettingUp
            | Phase::Starting
            | Phase::Waiting
            | Phase::ExportingResults
            | Phase::Ended => false,
        }
    }

    fn update_approvals(&mut self, data: &EventData) {
        match data {
            EventData::ApprovalRequested(approval) => self.pending.push(PendingApproval::from(approval)),
            EventData::ApprovalResolved(resolved) => {
                self.pending.retain(|pending| pending.approval_id != resolved.approval_id);
            }
            EventData::AgentStarted(_)
            | EventData::AgentCompleted(_)
            | EventData::AgentFailed(_)
            | EventData::SandboxCompleting(_) => {
                self.pending.clear();
                self.answered_questions.clear();
            }
            _ => {}
        }
    }

    fn update(&mut self, event: &LogEvent) {
        let is_ending = matches!(self.phase, Phase::ExportingResults | Phase::Ended);
        match &event.data {
            EventData::SandboxCreating(_) => self.phase = Phase::Creating,
            EventData::SetupStarted(_) => self.phase = Phase::SettingUp,
            EventData::SandboxRunning(_) => {
                self.has_run = true;
                self.phase = Phase::Starting;
            }
            EventData::SandboxCompleting(_) => self.phase = Phase::ExportingResults,
            EventData::SandboxCompleted(change) | EventData::SandboxFailed(change) => self.record_end(change),
            EventData::GitBranchCreated(branch) => self.branch = Some(ResultBranch::from(branch)),
            EventData::GitNothingChanged(_) => self.nothing_changed = true,
            EventData::AgentFailed(failure) => self.failed = Some(AgentFailure::from(failure)),
            EventData::AgentFileEdited(edit) => self.record_edit(edit),
            EventData::MessageQueued(message) => {
                let is_interrupt = message.message_type == MessageType::Interrupt;
                self.undelivered.insert(message.message_id, is_interrupt);
            }
            // The worker's last events may arrive after the end has begun.
            _ if is_ending => {}
            EventData::LimitPaused(limit) => self.phase = Phase::LimitPaused(limit.limit),
            EventData::LimitResumed(_) => self.phase = Phase::Working,
            // A paused agent's last events may arrive late.
            _ if matches!(self.phase, Phase::LimitPaused(_)) => {}
            EventData::AgentToolUse(call) => self.phase = Phase::Tool(tool_calls::describe_call(call)),
            EventData::AgentWaiting(_) | EventData::AgentInterrupted(_) | EventData::AgentCompleted(_) => {
                self.phase = Phase::Waiting;
            }
            EventData::ApprovalRequested(_) => self.phase = Phase::WaitingApproval,
            EventData::AgentToolCompleted(call) => {
                let other = self.calls.newest_open(Some(&call.tool_use_id));
                self.phase = other.map_or(Phase::Working, Phase::Tool);
            }
            EventData::AgentStarted(_) | EventData::ContinuousValidating(_) => self.phase = Phase::Working,
            _ if atoll_core::observation::is_progress(event.event_type()) => {
                self.phase = self.calls.newest_open(None).map_or(Phase::Working, Phase::Tool);
            }
            _ => {}
        }
    }

    fn record_end(&mut self, change: &SandboxTransition) {
        self.end = Some(SandboxEnd {
            state: change.state,
            outcome: change.outcome,
            code: change.reason.as_ref().map(|reason| reason.code.clone()),
            detail: change.reason.as_ref().map(|reason| reason.detail.clone()),
        });
        self.ends += 1;
        self.phase = Phase::Ended;
    }

    fn record_edit(&mut self, edit: &FileEdited) {
        let file = self.edits.entry(edit.file_path.clone()).or_insert_with(|| DiffFile {
            path: edit.file_path.clone(),
            old_path: edit.old_path.clone(),
            change: patch::change_word(edit.change_type).to_owned(),
            ..DiffFile::default()
        });
        file.added += edit.lines_added;
        file.removed += edit.lines_removed;
        file.binary |= edit.binary;
        // A created file that is edited later is still a created file.
        if edit.change_type == FileChangeType::Deleted {
            patch::change_word(edit.change_type).clone_into(&mut file.change);
        }
    }
}

impl From<&GitBranchCreated> for ResultBranch {
    fn from(branch: &GitBranchCreated) -> Self {
        Self {
            name: branch.branch.clone(),
            base: Some(branch.base.clone()),
            commits: Some(branch.commits),
            files: branch.files.iter().filter_map(|file| serde_json::from_value(file.clone()).ok()).collect(),
            flagged: branch.flagged.clone(),
            notes: branch.notes.iter().filter_map(|note| note.get("text")?.as_str().map(str::to_owned)).collect(),
        }
    }
}

impl From<&AgentFailed> for AgentFailure {
    fn from(failure: &AgentFailed) -> Self {
        Self { detail: failure.error.clone(), memory: failure.memory_limit.zip(failure.memory_peak) }
    }
}
