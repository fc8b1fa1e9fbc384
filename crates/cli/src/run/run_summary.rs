//! The summary at the end of a run: outcome, changes and next steps. Pure.

use super::progress::{ResultBranch, RunProgress};
use super::watch::WatchEnd;
use crate::failure::{EXPORT_FAILED, INTERRUPTED, SETUP_FAILED, WORK_FAILED};
use crate::render::cost::format_cost;
use crate::render::patch;
use crate::render::spans::Spans;
use crate::render::{style, text, time};
use atoll_api::{DiffFile, ModelUsage};
use atoll_core::sandbox::{Outcome, SandboxState};
use atoll_core::size::format_bytes;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// The summary omits longer patches.
const MAX_PATCH_LINES: usize = 60;

pub struct RunSummary<'a> {
    pub end: WatchEnd,
    pub progress: &'a RunProgress,
    /// The user pressed Ctrl-C or terminated the command.
    pub interrupted: bool,
    pub sandbox: &'a str,
    /// The short form of the id for the next commands.
    pub reference: &'a str,
    pub usage: Option<&'a ModelUsage>,
    pub elapsed: Duration,
    /// The repository's path.
    pub repo: Option<&'a Path>,
    /// The working directory is in the repository.
    pub in_repo: bool,
    pub patch: Option<&'a str>,
    /// The data directory of the embedded server.
    pub data_dir: Option<&'a Path>,
}

impl RunSummary<'_> {
    pub fn exit_code(&self) -> u8 {
        let end = match (self.end, &self.progress.end) {
            (WatchEnd::Aborted | WatchEnd::Detached, _) => return INTERRUPTED,
            (WatchEnd::Kept, _) => return 0,
            (WatchEnd::Ended, Some(end)) => end,
            (WatchEnd::Ended, None) => return SETUP_FAILED,
        };
        let code = end.code.as_deref().unwrap_or_default();
        match (end.state, end.outcome) {
            (SandboxState::Completed, Some(Outcome::Succeeded)) => 0,
            _ if self.interrupted => INTERRUPTED,
            (SandboxState::Completed, _) => WORK_FAILED,
            _ if code.starts_with("results_") => EXPORT_FAILED,
            _ if !self.progress.has_run || code == "sandbox_lost" => SETUP_FAILED,
            _ => WORK_FAILED,
        }
    }

    /// The last line of `--json`.
    pub fn to_json(&self) -> Value {
        let end = self.progress.end.as_ref();
        let mut done = json!({
            "type": "done",
            "state": end.map_or("running", |end| end.state.as_str()),
            "outcome": end.map(|end| end.outcome.map_or(end.state.as_str(), |outcome| outcome.as_str())),
            "exit": self.exit_code(),
        });
        if let Some((code, end)) = end.and_then(|end| Some((end.code.as_ref()?, end))) {
            done["reason"] = json!({ "code": code, "detail": end.detail });
        }
        if let Some(usage) = self.usage {
            done["usage"] = json!(usage);
        }
        if let Some(branch) = &self.progress.branch {
            done["branch"] = branch.name.as_str().into();
        }
        done
    }

    pub fn lines(&self) -> Vec<Spans> {
        let mut lines = vec![Spans::new(), self.headline()];
        if self.end == WatchEnd::Detached || self.end == WatchEnd::Kept {
            lines.extend(reattach_lines(self.reference));
            return lines;
        }
        if self.end == WatchEnd::Aborted {
            lines.extend(self.recovery_lines());
            return lines;
        }
        lines.extend(self.usage_line());
        lines.extend(self.memory_line());
        lines.extend(self.change_lines());
        lines.extend(self.next_steps());
        lines
    }

    fn headline(&self) -> Spans {
        let elapsed = time::format_duration(self.elapsed);
        let turns = match self.progress.turn {
            None | Some(0) => String::new(),
            Some(1) => ", 1 turn".to_owned(),
            Some(turns) => format!(", {turns} turns"),
        };
        let end = match (self.end, &self.progress.end) {
            (WatchEnd::Detached, _) => {
                return Spans::new().styled(style::WARN, format!("{} keeps running on its server", self.sandbox));
            }
            (WatchEnd::Kept, _) => {
                return Spans::new().styled(style::GOOD, format!("the agent waits in {}", self.sandbox));
            }
            (WatchEnd::Aborted, _) => {
                let words = format!("left after {elapsed}, before the results were exported");
                return Spans::new().styled(style::WARN, words);
            }
            (WatchEnd::Ended, None) => {
                return Spans::new().styled(style::WARN, format!("aborted after {elapsed}"));
            }
            (WatchEnd::Ended, Some(end)) => end,
        };
        let code = end.code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
        // The step above shows the agent's own message already.
        let failure_detail = self.progress.failed.as_ref().map(|failed| &failed.detail);
        let why = end.detail.as_ref().filter(|detail| Some(*detail) != failure_detail);
        let why = why.map_or_else(|| code.clone(), |detail| format!(": {detail}{code}"));
        let (style, words) = match (end.state, end.outcome) {
            (SandboxState::Completed, Some(Outcome::Succeeded)) => (style::GOOD, format!("✓ done in {elapsed}{turns}")),
            (SandboxState::Completed, _) => (style::WARN, format!("stopped after {elapsed}{turns}{why}")),
            _ => (style::BAD, format!("✗ failed after {elapsed}{turns}{why}")),
        };
        Spans::new().styled(style, text::escape_line(&words))
    }

    fn usage_line(&self) -> Option<Spans> {
        let words = format!("  {}", describe_usage(self.usage?)?);
        Some(Spans::new().styled(style::FAINT, words))
    }

    fn memory_line(&self) -> Option<Spans> {
        let (limit, peak) = self.progress.failed.as_ref()?.memory?;
        let words = format!("  memory limit {}, peak {}", format_bytes(limit), format_bytes(peak));
        Some(Spans::new().styled(style::FAINT, words))
    }

    fn change_lines(&self) -> Vec<Spans> {
        let indented = |line: Spans| Spans::new().plain("  ").append(line);
        let files = self.changed_files();
        let mut lines = Vec::new();
        if files.is_empty() {
            return lines;
        }
        lines.push(Spans::new());
        if self.repo.is_none() && self.progress.branch.is_none() {
            lines
                .push(Spans::new().styled(style::FAINT, "  changes in the workspace, which is gone with the sandbox:"));
        }
        lines.extend(patch::diffstat(&files).into_iter().map(indented));
        if let Some(patch) = self.patch.filter(|patch| patch.lines().count() <= MAX_PATCH_LINES) {
            lines.push(Spans::new());
            lines.extend(patch::patch_lines(patch).into_iter().map(indented));
        }
        lines
    }

    /// The files of the branch, or the edits of a run without a repository.
    fn changed_files(&self) -> Vec<DiffFile> {
        match &self.progress.branch {
            Some(branch) if !branch.files.is_empty() => branch.files.clone(),
            _ if self.repo.is_some() => Vec::new(),
            _ => self.progress.edits(),
        }
    }

    fn next_steps(&self) -> Vec<Spans> {
        let mut lines = vec![Spans::new()];
        match (&self.progress.branch, self.repo) {
            (Some(branch), Some(repo)) => lines.extend(self.branch_lines(branch, repo)),
            (Some(branch), None) => {
                lines.push(labelled("branch", &format!("{}{}", branch.name, count_commits(branch))))
            }
            (None, Some(_)) if self.progress.nothing_changed => lines.push(labelled("branch", "none: nothing changed")),
            (None, Some(_)) if self.progress.has_run => lines.push(labelled("branch", "none")),
            _ => {}
        }
        match self.data_dir {
            Some(dir) => {
                lines.push(labelled("log", &format!("atoll logs {}", self.reference)));
                lines.push(labelled("data", &dir.display().to_string()));
            }
            None => lines.push(labelled("log", &format!("atoll logs {}", self.reference))),
        }
        lines
    }

    fn branch_lines(&self, branch: &ResultBranch, repo: &Path) -> Vec<Spans> {
        let name = &branch.name;
        let base: Option<String> = branch.base.as_ref().map(|base| base.chars().take(8).collect());
        let commits = count_commits(branch);
        let place =
            if self.in_repo { String::new() } else { format!(" -C {}", crate::worker_command::shell_quote(repo)) };
        let look = match &base {
            Some(base) => format!("git{place} diff {base}..{name}"),
            None => format!("git{place} log -p {name}"),
        };
        let mut lines = vec![labelled("branch", &format!("{name}{commits} in {}", repo.display()))];
        if !branch.flagged.is_empty() {
            let words = format!("review carefully, these files run on machines: {}", branch.flagged.join(", "));
            lines.push(Spans::new().plain(" ".repeat(10)).styled(style::WARN, text::escape_line(&words)));
        }
        for note in &branch.notes {
            lines.push(Spans::new().plain(" ".repeat(10)).styled(style::WARN, text::escape_line(note)));
        }
        lines.push(labelled("look", &look));
        lines.push(labelled("take", &format!("git{place} merge {name}, or: git{place} switch {name}")));
        lines
    }

    /// The next server on the data directory exports the results.
    fn recovery_lines(&self) -> Vec<Spans> {
        let data_dir = self.data_dir.map(|dir| format!(" --data-dir {}", crate::worker_command::shell_quote(dir)));
        let data_dir = data_dir.unwrap_or_default();
        vec![
            Spans::new(),
            labelled("results", &format!("start a server: atoll serve{data_dir}")),
            labelled("", &format!("then: atoll sandbox results {}{data_dir}", self.sandbox)),
        ]
    }
}

/// The commands for a sandbox that keeps running.
pub fn reattach_lines(reference: &str) -> Vec<Spans> {
    vec![
        Spans::new(),
        labelled("watch", &format!("atoll attach {reference}")),
        labelled("talk", &format!("atoll send {reference} \"…\"")),
        labelled("look", &format!("atoll sandbox diff {reference}")),
        labelled("end", &format!("atoll sandbox stop {reference}")),
    ]
}

/// Tokens and cost, unless the agent used no model.
fn describe_usage(usage: &ModelUsage) -> Option<String> {
    if usage.requests == 0 {
        return usage.cost.filter(|cost| *cost > 0.0).map(|_| format_cost(usage.cost, usage.cost_source));
    }
    let cached = match usage.cache_read {
        0 => String::new(),
        cached => format!(" ({} cached)", format_count(cached)),
    };
    let input = usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write);
    let cost = format_cost(usage.cost, usage.cost_source);
    let cost = if usage.cost.is_some() { cost } else { format!("cost {cost}") };
    Some(format!("{} tokens in{cached}, {} out, {cost}", format_count(input), format_count(usage.output)))
}

/// Formats a count to three digits: `950`, `12.3k`, `4.56M`.
#[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
fn format_count(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..999_950 => format!("{:.1}k", count as f64 / 1e3),
        _ => format!("{:.2}M", count as f64 / 1e6),
    }
}

fn count_commits(branch: &ResultBranch) -> String {
    match branch.commits {
        None => String::new(),
        Some(1) => " (1 commit)".to_owned(),
        Some(commits) => format!(" ({commits} commits)"),
    }
}

fn labelled(name: &str, value: &str) -> Spans {
    Spans::new().styled(style::FAINT, format!("  {name:<8}")).plain(text::escape_line(value))
}

#[cfg(test)]
#[path = "run_summary_tests.rs"]
mod tests;
