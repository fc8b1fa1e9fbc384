//! The output of a call: lines for people, or lines of JSON with a defined first and last one.

use crate::failure::{EXPORT_FAILED, Failure, Result, SETUP_FAILED};
use crate::output::Output;
use crate::render::text;
use atoll_api::Sandbox;
use atoll_forge::worktree::{ChangeCounts, Conflict};
use serde_json::json;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Conflicts that a message names.
const MAX_NAMED_CONFLICTS: usize = 20;

/// A step of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallPhase {
    SyncIn,
    Agent,
    SyncOut,
}

impl CallPhase {
    const fn name(self) -> &'static str {
        match self {
            Self::SyncIn => "sync_in",
            Self::Agent => "agent",
            Self::SyncOut => "sync_out",
        }
    }
}

#[derive(Debug, Default)]
struct CallTotals {
    sandbox: Option<String>,
    session: Option<String>,
    counts: ChangeCounts,
    conflicts: usize,
}

pub struct CallReport<'a> {
    output: &'a Output,
    totals: Mutex<CallTotals>,
}

impl<'a> CallReport<'a> {
    pub fn new(output: &'a Output) -> Self {
        Self { output, totals: Mutex::default() }
    }

    fn totals(&self) -> std::sync::MutexGuard<'_, CallTotals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn print_started(&self, sandbox: &Sandbox, is_new: bool) -> Result {
        let (id, session) = (sandbox.id.to_string(), sandbox.session_id.to_string());
        if self.output.json {
            self.output.print_object(&json!({ "type": "started", "sandbox": id, "session": session }))?;
        } else {
            let agent = text::escape_line(sandbox.agent.as_deref().unwrap_or_default());
            let kind = if is_new { "new sandbox" } else { "sandbox" };
            self.output.print_line(&format!("{kind} {id} ({}, agent {agent})", sandbox.provider))?;
        }
        let mut totals = self.totals();
        (totals.sandbox, totals.session) = (Some(id), Some(session));
        drop(totals);
        self.output.flush()
    }

    pub fn print_phase(&self, phase: CallPhase) -> Result {
        if self.output.json {
            self.output.print_object(&json!({ "type": "phase", "phase": phase.name() }))?;
        }
        self.output.flush()
    }

    pub fn print_note(&self, note: &str) {
        self.output.print_note(note);
    }

    pub fn print_applied(&self, root: &Path, counts: ChangeCounts) -> Result<u8> {
        self.totals().counts = counts;
        self.print_text(&match counts {
            ChangeCounts { changed: 0, deleted: 0 } => "nothing changed".to_owned(),
            counts => format!("{} in {}; undo with: atoll code --undo", describe_counts(counts), root.display()),
        })?;
        Ok(0)
    }

    pub fn print_undone(&self, root: &Path, counts: ChangeCounts) -> Result<u8> {
        self.totals().counts = counts;
        self.print_text(&format!("undone: {} in {}", describe_counts(counts), root.display()))?;
        Ok(0)
    }

    pub fn print_branch(&self, branch: &str) -> Result<u8> {
        if self.output.json {
            self.output.print_object(&json!({ "type": "branch", "branch": branch }))?;
        }
        self.print_text(&format!("the result is on branch {branch}; look: git log -p {branch} -1"))?;
        Ok(0)
    }

    /// Reports that the work was not applied.
    pub fn print_left(&self) -> Result<u8> {
        self.print_text("the changes stay in the sandbox; bring them with: atoll code --pull")?;
        Ok(0)
    }

    pub fn print_conflicts(&self, conflicts: &[Conflict], is_undo: bool) -> Result<u8> {
        self.totals().conflicts = conflicts.len();
        let named: Vec<String> = conflicts
            .iter()
            .take(MAX_NAMED_CONFLICTS)
            .map(|conflict| format!("{} ({})", conflict.path, conflict.kind))
            .collect();
        let detail = format!("the worktree and the sandbox changed the same places: {}", named.join(", "));
        let failure = Failure::work("conflict", detail).with_hint(if is_undo {
            "Nothing was changed. Use `atoll code --undo` with --ours to keep your edits, or --theirs to undo them too."
        } else {
            "Nothing was changed. Use `atoll code --pull` with --ours, --theirs or --as-branch NAME, or edit the files."
        });
        self.print_error(&failure, "work")?;
        Ok(EXPORT_FAILED)
    }

    fn print_text(&self, line: &str) -> Result {
        if self.output.json { Ok(()) } else { self.output.print_line(&text::escape_line(line)) }
    }

    /// Prints an error in place: as a line of JSON, or on stderr.
    pub fn print_error(&self, failure: &Failure, kind: &str) -> Result {
        let Failure::Reported(reported) = failure else { return Ok(()) };
        if self.output.json {
            let (code, detail) = (&reported.code, &reported.detail);
            return self.output.print_object(&json!({ "type": "error", "kind": kind, "code": code, "detail": detail }));
        }
        self.output.flush()?;
        failure.to_text(false).iter().for_each(|text| self.output.print_note(text));
        Ok(())
    }

    /// Prints the last line and returns the exit code as the command's result.
    pub fn finish(&self, done: Result<u8>) -> Result {
        if !self.output.json {
            return match done {
                Ok(0) => Ok(()),
                Ok(exit) => Err(Failure::Silent(exit)),
                Err(failure) => Err(failure),
            };
        }
        let exit = match &done {
            Ok(exit) => *exit,
            Err(Failure::PipeClosed) => return Err(Failure::PipeClosed),
            Err(failure) => {
                let kind = if failure.exit_code() == SETUP_FAILED { "provider" } else { "work" };
                self.print_error(failure, kind)?;
                failure.exit_code()
            }
        };
        let totals = self.totals();
        self.output.print_object(&json!({
            "type": "done",
            "files_changed": totals.counts.changed,
            "files_deleted": totals.counts.deleted,
            "conflicts": totals.conflicts,
            "session": totals.session,
            "sandbox": totals.sandbox,
            "exit": exit,
        }))?;
        self.output.flush()?;
        if exit == 0 { Ok(()) } else { Err(Failure::Silent(exit)) }
    }
}

fn describe_counts(ChangeCounts { changed, deleted }: ChangeCounts) -> String {
    let files = |count: u64| if count == 1 { "1 file".to_owned() } else { format!("{count} files") };
    match (changed, deleted) {
        (changed, 0) => format!("{} changed", files(changed)),
        (0, deleted) => format!("{} deleted", files(deleted)),
        (changed, deleted) => format!("{} changed, {deleted} deleted", files(changed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_well() {
        let describe = |changed, deleted| describe_counts(ChangeCounts { changed, deleted });
        assert_eq!(describe(1, 0), "1 file changed");
        assert_eq!(describe(0, 2), "2 files deleted");
        assert_eq!(describe(3, 1), "3 files changed, 1 deleted");
    }
}
