//! What is said when all is over: what became of it, what was changed, and how to go on. Pure.

use super::story::{Branch, Story};
use super::watch::Left;
use crate::failure::{INTERRUPTED, NOT_APPLIED, SETUP_FAILED, WORK_FAILED};
use crate::render::patch::{self, Changed};
use crate::render::spans::Spans;
use crate::render::{style, text, time};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// A patch that is longer is not shown.
const SHORT_PATCH: usize = 60;

pub struct Ending<'a> {
    pub left: Left,
    pub story: &'a Story,
    /// Somebody here pressed Ctrl-C, or ended the program.
    pub interrupted: bool,
    pub sandbox: &'a str,
    pub elapsed: Duration,
    /// The repository, as it was named.
    pub repo: Option<&'a Path>,
    /// Whether the user's shell is in it.
    pub in_repo: bool,
    pub patch: Option<&'a str>,
    /// Where everything is kept; the server on it ends with this program.
    pub inside: Option<&'a Path>,
}

impl Ending<'_> {
    pub fn exit(&self) -> u8 {
        let end = match (self.left, &self.story.end) {
            (Left::Aborted | Left::Running, _) => return INTERRUPTED,
            (Left::Kept, _) => return 0,
            (Left::Ended, Some(end)) => end,
            (Left::Ended, None) => return SETUP_FAILED,
        };
        let code = end.code.as_deref().unwrap_or_default();
        match (end.state.as_str(), end.outcome.as_str()) {
            ("completed", "succeeded") => 0,
            _ if self.interrupted => INTERRUPTED,
            ("completed", _) => WORK_FAILED,
            _ if code.starts_with("results_") => NOT_APPLIED,
            _ if !self.story.ran || code == "sandbox_lost" => SETUP_FAILED,
            _ => WORK_FAILED,
        }
    }

    /// The last line for a program.
    pub fn object(&self) -> Value {
        let end = self.story.end.as_ref();
        let mut done = json!({
            "type": "done",
            "state": end.map_or("running", |end| end.state.as_str()),
            "outcome": end.map(|end| end.outcome.as_str()),
            "exit": self.exit(),
        });
        if let Some((code, end)) = end.and_then(|end| Some((end.code.as_ref()?, end))) {
            done["reason"] = json!({ "code": code, "detail": end.detail });
        }
        if let Some(branch) = &self.story.branch {
            done["branch"] = branch.name.as_str().into();
        }
        done
    }

    pub fn lines(&self) -> Vec<Spans> {
        let mut lines = vec![Spans::new(), self.head()];
        if self.left == Left::Running || self.left == Left::Kept {
            lines.extend(self.how_to_come_back());
            return lines;
        }
        lines.extend(self.memory());
        lines.extend(self.changes());
        lines.extend(self.how_to_look());
        lines
    }

    fn head(&self) -> Spans {
        let elapsed = time::span(self.elapsed);
        let turns = match self.story.turn {
            None | Some(0) => String::new(),
            Some(1) => ", 1 turn".to_owned(),
            Some(turns) => format!(", {turns} turns"),
        };
        let end = match (self.left, &self.story.end) {
            (Left::Running, _) => {
                return Spans::new().put(style::WARN, format!("{} goes on without you", self.sandbox));
            }
            (Left::Kept, _) => return Spans::new().put(style::GOOD, format!("the agent waits in {}", self.sandbox)),
            (Left::Aborted, _) | (Left::Ended, None) => {
                return Spans::new().put(style::WARN, format!("broken off after {elapsed}"));
            }
            (Left::Ended, Some(end)) => end,
        };
        let code = end.code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
        // What stands right above is not said again.
        let told = self.story.failed.as_ref().map(|failed| &failed.detail);
        let why = end.detail.as_ref().filter(|detail| Some(*detail) != told);
        let why = why.map_or_else(|| code.clone(), |detail| format!(": {detail}{code}"));
        let (style, words) = match (end.state.as_str(), end.outcome.as_str()) {
            ("completed", "succeeded") => (style::GOOD, format!("✓ done in {elapsed}{turns}")),
            ("completed", _) => (style::WARN, format!("stopped after {elapsed}{turns}{why}")),
            _ => (style::BAD, format!("✗ failed after {elapsed}{turns}{why}")),
        };
        Spans::new().put(style, text::inline(&words))
    }

    fn memory(&self) -> Option<Spans> {
        let (limit, peak) = self.story.failed.as_ref()?.memory?;
        let words = format!("  its memory is limited to {}, it reached {}", size(limit), size(peak));
        Some(Spans::new().put(style::FAINT, words))
    }

    fn changes(&self) -> Vec<Spans> {
        let indented = |line: Spans| Spans::new().plain("  ").then(line);
        let files = self.files();
        let mut lines = Vec::new();
        if files.is_empty() {
            return lines;
        }
        lines.push(Spans::new());
        if self.repo.is_none() {
            lines.push(Spans::new().put(style::FAINT, "  made in the workspace, which is gone with the sandbox:"));
        }
        lines.extend(patch::summary(&files).into_iter().map(indented));
        if let Some(patch) = self.patch.filter(|patch| patch.lines().count() <= SHORT_PATCH) {
            lines.push(Spans::new());
            lines.extend(patch::lines(patch).into_iter().map(indented));
        }
        lines
    }

    /// What git says was changed, else what was seen while it was edited.
    fn files(&self) -> Vec<Changed> {
        match &self.story.branch {
            Some(branch) if !branch.files.is_empty() => branch.files.clone(),
            _ if self.repo.is_some() => Vec::new(),
            _ => self.story.edits(),
        }
    }

    fn how_to_look(&self) -> Vec<Spans> {
        let mut lines = vec![Spans::new()];
        match (&self.story.branch, self.repo) {
            (Some(branch), Some(repo)) => lines.extend(self.branch(branch, repo)),
            (None, Some(_)) if self.story.nothing_changed => lines.push(named("branch", "none: nothing was changed")),
            (None, Some(_)) if self.story.ran => lines.push(named("branch", "none")),
            _ => {}
        }
        match self.inside {
            Some(dir) => {
                lines.push(named("log", &format!("atoll logs {}, while `atoll serve` runs", self.sandbox)));
                lines.push(named("data", &dir.display().to_string()));
            }
            None => lines.push(named("log", &format!("atoll logs {}", self.sandbox))),
        }
        lines
    }

    fn branch(&self, branch: &Branch, repo: &Path) -> Vec<Spans> {
        let name = &branch.name;
        let base: Option<String> = branch.base.as_ref().map(|base| base.chars().take(8).collect());
        let commits = match branch.commits {
            None => String::new(),
            Some(1) => " (1 commit)".to_owned(),
            Some(commits) => format!(" ({commits} commits)"),
        };
        let place = if self.in_repo { String::new() } else { format!(" -C {}", crate::worker_start::quoted(repo)) };
        let look = match &base {
            Some(base) => format!("git{place} diff {base}..{name}"),
            None => format!("git{place} log -p {name}"),
        };
        let mut lines = vec![named("branch", &format!("{name}{commits} in {}", repo.display()))];
        if !branch.flagged.is_empty() {
            let words = format!("look twice: it changes what machines run: {}", branch.flagged.join(", "));
            lines.push(Spans::new().plain(" ".repeat(10)).put(style::WARN, text::inline(&words)));
        }
        lines.push(named("look", &look));
        lines.push(named("take", &format!("git{place} merge {name}, or: git{place} switch {name}")));
        lines
    }

    fn how_to_come_back(&self) -> Vec<Spans> {
        let id = self.sandbox;
        vec![
            Spans::new(),
            named("watch", &format!("atoll logs {id} --follow")),
            named("talk", &format!("atoll send {id} \"…\"")),
            named("end", &format!("atoll sandbox stop {id}")),
        ]
    }
}

fn named(name: &str, value: &str) -> Spans {
    Spans::new().put(style::FAINT, format!("  {name:<8}")).plain(text::inline(value))
}

/// Bytes for people.
fn size(bytes: i64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "it is shown with one digit")]
    let megabytes = bytes as f64 / f64::from(1 << 20);
    if megabytes < 1024.0 { format!("{megabytes:.0} MB") } else { format!("{:.1} GB", megabytes / 1024.0) }
}

#[cfg(test)]
#[path = "ending_tests.rs"]
mod tests;
