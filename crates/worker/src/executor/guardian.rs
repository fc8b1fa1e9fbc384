//! Feeds the guardian: every tool call and its result.

use super::Executor;
use atoll_api::events::{EventData, GuardianDetected};
use atoll_core::event::kind;
use atoll_core::guardian::{CallDetectors, Finding, FindingDetail};
use atoll_core::policy::AnalysedCall;
use atoll_drivers::AgentRequest;
use serde::Deserialize;
use serde_json::Value;
use std::collections::VecDeque;
use tokio::time::Instant;

/// Number of reported calls to remember.
const MAX_REPORTED_CALLS: usize = 32;

pub(super) struct GuardianState {
    pub watch: CallDetectors,
    /// Calls that were reported for touching a protected path.
    pub reported_calls: VecDeque<String>,
    /// Origin of the guardian's clock.
    pub started: Instant,
}

impl Default for GuardianState {
    fn default() -> Self {
        Self { watch: CallDetectors::default(), reported_calls: VecDeque::new(), started: Instant::now() }
    }
}

#[derive(Deserialize)]
struct ToolUse {
    #[serde(default)]
    tool: String,
    #[serde(default)]
    tool_use_id: String,
    #[serde(default)]
    input: Value,
}

#[derive(Deserialize)]
struct ToolResult {
    #[serde(default)]
    tool_use_id: String,
    #[serde(default)]
    output: Value,
    #[serde(default)]
    is_error: bool,
}

impl Executor {
    /// Passes an event of the agent to the detectors.
    pub(super) fn guard_event(&mut self, event_type: &str, data: &str, now: Instant) {
        match event_type {
            kind::AGENT_TOOL_USE => {
                let Ok(used) = serde_json::from_str::<ToolUse>(data) else { return };
                self.guardian.watch.record_call_start(&used.tool_use_id, &used.tool, &used.input);
                self.guard_paths(&used.tool_use_id, &used.tool, &used.input, now);
            }
            kind::AGENT_TOOL_COMPLETED => {
                let Ok(done) = serde_json::from_str::<ToolResult>(data) else { return };
                let output = done.output.as_str().map_or_else(|| done.output.to_string(), str::to_owned);
                let since = now.saturating_duration_since(self.guardian.started);
                if let Some(finding) =
                    self.guardian.watch.record_call_end(&done.tool_use_id, &output, done.is_error, since)
                {
                    self.report_finding(&finding);
                }
            }
            _ => {}
        }
    }

    /// Passes an approval request to the detectors: unlike an event, it has the complete input.
    pub(super) fn guard_request(&mut self, request: &AgentRequest, now: Instant) {
        let id = request.tool_use_id.clone().unwrap_or_else(|| request.id.clone());
        self.guard_paths(&id, &request.tool, &request.input, now);
    }

    fn guard_paths(&mut self, id: &str, tool: &str, input: &Value, now: Instant) {
        if self.launch.settings.protected.is_empty() || self.guardian.reported_calls.iter().any(|known| known == id) {
            return;
        }
        let call = AnalysedCall::from_input(tool, input, &self.workspace_path());
        let Some(path) = call.changed_protected_path(&self.launch.settings.protected).map(str::to_owned) else {
            return;
        };
        self.guardian.reported_calls.push_back(id.to_owned());
        if self.guardian.reported_calls.len() > MAX_REPORTED_CALLS {
            self.guardian.reported_calls.pop_front();
        }
        let finding = self.guardian.watch.report_protected_path(
            id,
            tool,
            &path,
            now.saturating_duration_since(self.guardian.started),
        );
        self.report_finding(&finding);
    }

    pub(super) fn workspace_path(&self) -> String {
        self.tools.workspace.to_string_lossy().into_owned()
    }

    fn report_finding(&mut self, finding: &Finding) {
        let (times, path) = match &finding.detail {
            FindingDetail::RepeatCount(times) => (Some(*times), None),
            FindingDetail::Path(path) => (None, Some(path.clone())),
        };
        let (tool, evidence) = (finding.tool.clone(), finding.evidence.clone().into());
        let data =
            GuardianDetected { detector: finding.detector, tool, evidence, nudge: finding.should_nudge, times, path };
        self.emit_worker_event(&EventData::GuardianDetected(data));
    }
}
