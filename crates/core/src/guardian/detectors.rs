//! All detectors of one sandbox.

use super::agent_signal::AgentSignal;
use super::call_detectors::CallDetectors;
use super::edit_detectors::EditDetectors;
use super::leaked_secrets::SecretDetector;
use super::progress_detectors::{ChangeDetector, TalkDetector};
use super::spending_detectors::SpendingDetectors;
use super::test_results::TestDetector;
use super::{Detector, Finding, GuardianSettings, Thresholds};
use crate::policy::{ToolEffect, tool_effect};
use crate::sandbox::{Mode, Settings};
use crate::time::Timestamp;
use std::time::Duration;

/// The workspace, until the agent reports its own.
const DEFAULT_WORKSPACE: &str = "/workspace";

/// What the detectors know about the task of a sandbox.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WatchedTask {
    /// Patterns of the task's files; if empty, all files are.
    pub files: Vec<String>,
    pub protected: Vec<String>,
    pub workspace: String,
    /// False if the task changes no files.
    pub changes_files: bool,
    pub cost_limit_micros: Option<u64>,
    pub time_limit: Option<Duration>,
}

impl WatchedTask {
    pub fn from_settings(settings: &Settings) -> Self {
        let cost = settings.limits.and_then(|limits| limits.cost_usd);
        Self {
            files: settings.guardian.as_ref().map(|guardian| guardian.files.clone()).unwrap_or_default(),
            protected: settings.protected.clone(),
            workspace: DEFAULT_WORKSPACE.to_owned(),
            changes_files: !matches!(settings.mode, Some(Mode::Exploration | Mode::Validation)),
            cost_limit_micros: cost.map(|dollars| (dollars * 1e6) as u64),
            time_limit: settings.timeout_s.map(|seconds| Duration::from_secs(seconds.into())),
        }
    }
}

/// How close a detector is to a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DetectorProgress {
    pub detector: Detector,
    pub count: u32,
    /// `None` if one occurrence suffices.
    pub threshold: Option<u32>,
}

#[derive(Debug)]
pub struct Detectors {
    settings: GuardianSettings,
    thresholds: Thresholds,
    task: WatchedTask,
    calls: CallDetectors,
    edits: EditDetectors,
    talk: TalkDetector,
    changes: ChangeDetector,
    tests: TestDetector,
    secrets: SecretDetector,
    spending: SpendingDetectors,
}

impl Detectors {
    /// `thresholds` are the configured ones; the project's precede them.
    pub fn new(settings: GuardianSettings, thresholds: Thresholds, task: WatchedTask) -> Self {
        Self {
            thresholds: thresholds.with_settings(&settings),
            settings,
            task,
            calls: CallDetectors::default(),
            edits: EditDetectors::default(),
            talk: TalkDetector::default(),
            changes: ChangeDetector::default(),
            tests: TestDetector::default(),
            secrets: SecretDetector::default(),
            spending: SpendingDetectors::default(),
        }
    }

    /// Passes an event to the detectors.
    pub fn observe(&mut self, seq: i64, at: Timestamp, signal: &AgentSignal) -> Vec<Finding> {
        let limits = self.thresholds;
        let mut findings = Vec::new();
        if signal.is_work() && self.task.changes_files {
            let is_call = matches!(signal, AgentSignal::ToolUse(_));
            findings.extend(self.changes.record_work(seq, at, is_call, limits.minutes_without_change));
        }
        match signal {
            AgentSignal::TurnStarted(start) => {
                if let Some(cwd) = &start.cwd {
                    self.task.workspace.clone_from(cwd);
                }
            }
            AgentSignal::TurnEnded => self.changes.end_turn(),
            AgentSignal::PersonSpoke => self.talk.record_action(),
            AgentSignal::Text(text) => {
                findings.extend(self.talk.record_text(seq, limits.texts_without_action));
                findings.extend(self.secrets.check_text(seq, text));
            }
            AgentSignal::ToolUse(call) => {
                self.talk.record_action();
                self.calls.record_call(call);
                self.tests.record_call(call);
                findings.extend(self.edits.check_call(seq, call, &self.task));
            }
            AgentSignal::ToolResult(result) => {
                findings.extend(self.calls.record_result(seq, result, &limits));
                findings.extend(self.tests.record_result(seq, result, limits.worse_test_runs));
                // What a file has is not what the agent writes.
                if tool_effect(&result.tool) != ToolEffect::Reads {
                    findings.extend(self.secrets.check_text(seq, &result.output_text()));
                }
            }
            AgentSignal::FileChange(change) => {
                self.talk.record_action();
                self.calls.record_effect();
                self.changes.record_change(at);
                findings.extend(self.edits.record_change(seq, change, limits.undone_edits));
                findings.extend(self.edits.check_files(seq, change, &self.task, limits.outside_files));
                findings.extend(self.secrets.check_text(seq, &change.added_text()));
            }
            AgentSignal::Denied(denied) => findings.extend(self.edits.check_denial(seq, denied, &self.task)),
            AgentSignal::Checked { failed } => {
                findings.extend(self.tests.record_checks(seq, *failed, limits.worse_test_runs));
            }
            AgentSignal::AgentUsage(usage) => {
                findings.extend(self.spending.record_agent_usage(seq, at, usage, (&limits, &self.task)));
            }
            AgentSignal::ModelUsage(usage) => {
                findings.extend(self.spending.record_model_usage(seq, at, usage, (&limits, &self.task)));
            }
        }
        findings.retain(|finding| self.settings.is_enabled(finding.detector));
        findings
    }

    /// True while a finding's problem lasts; `None` for a problem without duration.
    pub fn is_ongoing(&self, detector: Detector, subject: &str) -> Option<bool> {
        match detector {
            Detector::RepeatedCall => Some(self.calls.repetitions() >= 2),
            Detector::Alternating => Some(self.calls.rounds() >= 2),
            Detector::Talking => Some(self.talk.texts() > 0),
            Detector::BackAndForth => Some(self.edits.is_undoing(subject)),
            Detector::TestsWorse => Some(self.tests.is_worse(subject)),
            Detector::NoFileChange => Some(self.changes.minutes() > 0),
            Detector::Spending => Some(self.spending.is_fast()),
            Detector::ContextFull => Some(self.spending.context_percent() >= self.thresholds.context_percent),
            Detector::RepeatedError
            | Detector::OutsideFiles
            | Detector::ProtectedPath
            | Detector::SecretInOutput
            | Detector::Judge => None,
        }
    }

    /// How close each enabled detector is to a finding.
    pub fn progress(&self) -> Vec<DetectorProgress> {
        let all = Detector::ALL.iter().copied().filter(|detector| self.settings.is_enabled(*detector));
        all.filter_map(|detector| {
            let count = match detector {
                Detector::RepeatedCall => self.calls.repetitions(),
                Detector::RepeatedError => self.calls.equal_errors(),
                Detector::Alternating => self.calls.rounds(),
                Detector::Talking => self.talk.texts(),
                Detector::BackAndForth => self.edits.undone_edits(),
                Detector::TestsWorse => self.tests.worse_runs(),
                Detector::NoFileChange => self.changes.minutes(),
                Detector::OutsideFiles => self.edits.outside_files(),
                Detector::SecretInOutput => self.secrets.kinds(),
                Detector::Spending => self.spending.dollars_per_hour(),
                Detector::ContextFull => self.spending.context_percent(),
                // Each finding is complete at once, or comes from the model.
                Detector::ProtectedPath | Detector::Judge => return None,
            };
            Some(DetectorProgress { detector, count, threshold: self.thresholds.of(detector) })
        })
        .collect()
    }
}
