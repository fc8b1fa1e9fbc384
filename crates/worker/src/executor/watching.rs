//! The guardian's eyes: every tool call that goes by, and every change that comes of one.

use super::Executor;
use crate::driver::Ask;
use atoll_core::event::{Source, kind};
use atoll_core::guardian::{Detail, Finding};
use atoll_core::json::raw;
use atoll_core::policy::Call;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Calls of which one has said already that they touch something protected.
const REMEMBERED: usize = 32;

#[derive(Deserialize)]
struct Used {
    #[serde(default)]
    tool: String,
    #[serde(default)]
    tool_use_id: String,
    #[serde(default)]
    input: Value,
}

#[derive(Deserialize)]
struct Completed {
    #[serde(default)]
    tool_use_id: String,
    #[serde(default)]
    output: Value,
    #[serde(default)]
    is_error: bool,
}

impl Executor {
    /// An event of the agent, before it is told on.
    pub(super) fn watch(&mut self, event_type: &str, data: &str, now: Instant) {
        match event_type {
            kind::AGENT_TOOL_USE => {
                let Ok(used) = serde_json::from_str::<Used>(data) else { return };
                self.watch.begins(&used.tool_use_id, &used.tool, &used.input);
                self.watch_paths(&used.tool_use_id, &used.tool, &used.input, now);
            }
            kind::AGENT_TOOL_COMPLETED => {
                let Ok(done) = serde_json::from_str::<Completed>(data) else { return };
                let output = done.output.as_str().map_or_else(|| done.output.to_string(), str::to_owned);
                let since = now.saturating_duration_since(self.began);
                if let Some(finding) = self.watch.ends(&done.tool_use_id, &output, done.is_error, since) {
                    self.found(&finding);
                }
            }
            _ => {}
        }
    }

    /// What an agent asks about is whole; what it tells may be cut.
    pub(super) fn watch_ask(&mut self, ask: &Ask, now: Instant) {
        let id = ask.tool_use_id.clone().unwrap_or_else(|| ask.id.clone());
        self.watch_paths(&id, &ask.tool, &ask.input, now);
    }

    fn watch_paths(&mut self, id: &str, tool: &str, input: &Value, now: Instant) {
        if self.settings.protected.is_empty() || self.touching.iter().any(|known| known == id) {
            return;
        }
        let call = Call::of(tool, input, &self.workspace());
        let Some(path) = call.touched(&self.settings.protected).map(str::to_owned) else { return };
        self.touching.push_back(id.to_owned());
        if self.touching.len() > REMEMBERED {
            self.touching.pop_front();
        }
        let finding = self.watch.touches(id, tool, &path, now.saturating_duration_since(self.began));
        self.found(&finding);
    }

    pub(super) fn workspace(&self) -> String {
        self.tools.workspace.to_string_lossy().into_owned()
    }

    fn found(&mut self, finding: &Finding) {
        let (times, path) = match &finding.detail {
            Detail::Times(times) => (Some(times), None),
            Detail::Path(path) => (None, Some(path)),
        };
        let mut data = json!({
            "detector": finding.detector, "tool": finding.tool, "evidence": finding.evidence, "nudge": finding.nudge,
        });
        if let Some(times) = times {
            data["times"] = (*times).into();
        }
        if let Some(path) = path {
            data["path"] = path.as_str().into();
        }
        let turn = self.turn();
        self.emit_by(Source::Worker, kind::GUARDIAN_DETECTED, turn, raw(&data));
    }
}
