//! Exports a sandbox's work as a branch of its repository: git packs the commits in the sandbox, and the host imports them.
//!
//! The results job exports the work of an ended sandbox, `live_results` that of a running one.

use super::{Work, ticket_work};
use crate::problem::Result;
use crate::repositories::{self, GitSource, ImportPlan, ScratchDir};
use crate::state::App;
use atoll_agents::Agent;
use atoll_api::events::{EventData, GitBranchCreated, GitNothingChanged};
use atoll_core::event::{EventSource, EventTypePattern, NewEvent, kind};
use atoll_core::id::{SandboxId, SessionId};
use atoll_core::provider::{CommandExit, Error, GitOperation, GitResult, Provider, ProviderId};
use atoll_core::sandbox::Repo;
use atoll_forge::{ImportNote, ImportOutcome, ImportedResult};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::{self, SessionRow};
use atoll_store::{Tx, events};
use serde_json::{Value, json};

pub enum ExportError {
    /// A transient error.
    Retry(String),
    /// A permanent error: reason code and detail.
    Permanent(&'static str, String),
}

impl From<Error> for ExportError {
    fn from(error: Error) -> Self {
        match error {
            Error::Gone => {
                Self::Permanent(RESULTS_LOST, "the provider lost the sandbox before its results were exported".into())
            }
            error if error.is_retryable() => Self::Retry(error.to_string()),
            error => Self::Permanent("results_failed", error.to_string()),
        }
    }
}

/// The reason code of results whose files are gone.
pub const RESULTS_LOST: &str = "results_lost";

/// Agents have no mailbox; git needs an address.
const AGENT_EMAIL: &str = "atoll@localhost";

const RESTORED: &str = "the agent removed or broke its git repository; the branch has the difference to the commit that the work started from";

/// The exported work of a sandbox.
pub struct ExportedWork {
    pub outcome: ImportOutcome,
    /// Remarks of git in the sandbox.
    pub warnings: Vec<String>,
    /// Submodules and large files with work that the branch lacks.
    pub unsaved: Vec<String>,
}

impl ExportedWork {
    /// The sentence for a user whose work in submodules or large files is not on the branch.
    pub fn describe_unsaved(&self) -> Option<String> {
        let (first, more) = (self.unsaved.first()?, self.unsaved.len() - 1);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(format!(
            "the results lack the work in {first}{more}: a branch has only the ids of submodules' commits and of large files"
        ))
    }
}

/// The use of the workspace during an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceUse {
    /// The agent works on it later, so a missing repository is an error.
    Continues,
    /// No process uses it any more. A missing repository is created again around the files.
    Ended,
}

/// Exports the work of a sandbox while none of its processes writes to the workspace.
pub async fn export_branch(
    app: &App,
    provider: &dyn Provider,
    id: &ProviderId,
    (session, row): (&SessionRow, &SandboxRow),
    workspace: WorkspaceUse,
) -> std::result::Result<ExportedWork, ExportError> {
    let Some(repo) = row.settings.repo.clone() else {
        return Err(ExportError::Permanent("results_failed", "the sandbox has no repository".into()));
    };
    let refused = |problem: crate::problem::Problem| ExportError::Permanent("results_failed", problem.detail);
    let later = |error: std::io::Error| ExportError::Retry(format!("cannot create a file for the results: {error}"));
    let scratch = ScratchDir::new(app, row.id).map_err(later)?;
    let author = repositories::repository_author(app, &repo).await.map_err(refused)?;
    let start = find_start_commit(app, row).await;
    let base = repo.base.clone().unwrap_or_default();
    let co_author = row.agent.as_deref().filter(|_| app.config.git.co_author);
    let pack = GitOperation::ExportBundle { base, message: commit_message(&session.title, co_author), author };
    let mut packed = provider.git(id, &pack, scratch.create("results").map_err(later)?).await?;
    let is_restored = workspace == WorkspaceUse::Ended && has_no_repository(&packed);
    if is_restored {
        let origin = GitSource::open_stored(app, &repo).map_err(refused)?;
        let bundled = repositories::bundle_commit(&origin, &scratch, repo.clone(), start.clone()).await;
        let source = bundled.map_err(refused)?;
        let restore = GitOperation::RestoreRepository(source);
        require_success(&provider.git(id, &restore, scratch.create("restored").map_err(later)?).await?)?;
        packed = provider.git(id, &pack, scratch.recreate("results").map_err(later)?).await?;
    }
    require_success(&packed)?;
    let mut warnings = repositories::git_report_texts(&packed.error_output, "warnings");
    warnings.extend(is_restored.then(|| RESTORED.to_owned()));
    let unsaved = repositories::git_report_texts(&packed.error_output, "unsaved");
    let is_own = session.branch.is_some() && session.branch == repo.branch;
    let plan = ImportPlan { repo, start, is_own, protected: row.settings.protected.clone() };
    let outcome = repositories::import_results(app, scratch, plan).await.map_err(refused)?;
    Ok(ExportedWork { outcome, warnings, unsaved })
}

/// The message of the commit with the agent's uncommitted work: the title, and the agent as co-author of the user.
fn commit_message(title: &str, co_author: Option<&str>) -> String {
    let Some(agent) = co_author else { return title.to_owned() };
    let name = match agent.parse::<Agent>() {
        Ok(known) if known != Agent::Acp => known.display_name(),
        Ok(_) | Err(_) => agent,
    };
    // The name is part of a line of the message.
    let name: String = name.chars().filter(|c| !c.is_control() && !"<>".contains(*c)).collect();
    format!("{title}\n\nCo-Authored-By: {name} <{AGENT_EMAIL}>")
}

/// True if git failed because the agent removed or broke its repository.
fn has_no_repository(packed: &GitResult) -> bool {
    let code = repositories::git_error_code(&packed.error_output);
    matches!(code.as_deref(), Some("no_repository" | "broken_repository"))
}

fn require_success(done: &GitResult) -> std::result::Result<(), ExportError> {
    match done.exit {
        CommandExit::Exited { code: 0 } => Ok(()),
        exit => {
            let text = repositories::git_error_text(&done.error_output);
            let detail = format!("git could not read the workspace ({exit:?}): {text}");
            Err(ExportError::Permanent("results_failed", detail))
        }
    }
}

/// Finds the commit that the workspace started at.
async fn find_start_commit(app: &App, row: &SandboxRow) -> Option<String> {
    let log = (row.id, row.session_id);
    let cloned = app.read(async move |tx| find_newest_event(tx, log, kind::GIT_CLONED).await).await.ok()??;
    match cloned {
        EventData::GitCloned(cloned) => cloned.commit,
        _ => None,
    }
}

/// Reads the newest event of a type.
pub async fn find_newest_event(
    tx: &mut dyn Tx,
    log: (SandboxId, SessionId),
    event_type: &str,
) -> Result<Option<EventData>> {
    let types = vec![EventTypePattern::Exact(event_type.into())];
    let filter = events::EventLogFilter { types, ..events::EventLogFilter::default() };
    let page = events::read_event_page(tx, log, &filter, events::EventLogOrder::NewestFirst, i64::MAX, 1).await?;
    Ok(page.events.first().map(EventData::from_event))
}

/// Records the exported branch, or that nothing changed, in the log, the session and the settings. The caller writes the row.
pub async fn record_export(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
    exported: &ExportedWork,
) -> Result<()> {
    let repo = sandbox.settings.repo.clone().unwrap_or_default();
    let result = match &exported.outcome {
        ImportOutcome::Branch(result) => Some(result),
        ImportOutcome::NoNewCommits => None,
        ImportOutcome::Protected { .. } => return Ok(()),
    };
    let event = results_event(work, &repo, result, &exported.warnings);
    work.log(sandbox, vec![event]).await?;
    let Some(result) = result else { return Ok(()) };
    if session.branch.as_ref() != Some(&result.branch) {
        session.branch = Some(result.branch.clone());
        session.updated_at = work.now;
        sessions::update_session(work.tx, session).await?;
    }
    let named = Repo { branch: Some(result.branch.clone()), ..repo };
    ticket_work::record_branch_key(work, session, &named).await?;
    ticket_work::record_ticket_branch(work, session.id, &result.branch).await?;
    if sandbox.settings.repo.as_ref() != Some(&named) {
        // The branch got another name. It is the session's own from now on.
        sandbox.settings.repo = Some(named);
        sandboxes::update_settings(work.tx, sandbox).await?;
    }
    Ok(())
}

/// A note with its sentence for users.
fn describe_note(note: &ImportNote) -> Value {
    let mut described = json!(note);
    described["text"] = note.to_string().into();
    described
}

fn results_event(work: &Work<'_>, repo: &Repo, result: Option<&ImportedResult>, warnings: &[String]) -> NewEvent {
    let location = repo.location().map(str::to_owned);
    let data = match result {
        Some(result) => {
            let warnings = warnings.iter().map(|text| json!({ "note": "warning", "text": text }));
            let notes: Vec<Value> = result.notes.iter().map(describe_note).chain(warnings).collect();
            EventData::GitBranchCreated(GitBranchCreated {
                branch: result.branch.clone(),
                commit: result.commit.clone(),
                previous: result.previous.clone(),
                base: result.base.clone(),
                commits: result.commits,
                files: result.files.iter().map(|file| json!(file)).collect(),
                flagged: result.flagged.clone(),
                notes,
                repo: location,
            })
        }
        None => EventData::GitNothingChanged(GitNothingChanged { base: repo.base.clone(), repo: location }),
    };
    data.into_event(work.now).with_source(EventSource::Forge, None)
}

#[cfg(test)]
mod tests {
    use super::commit_message;

    #[test]
    fn the_agent_is_the_co_author() {
        assert_eq!(commit_message("Fix it", None), "Fix it");
        let claude = "Fix it\n\nCo-Authored-By: Claude Code <atoll@localhost>";
        assert_eq!(commit_message("Fix it", Some("claude")), claude);
        let hostile = commit_message("Fix it", Some("x\n<y>"));
        assert_eq!(hostile, "Fix it\n\nCo-Authored-By: xy <atoll@localhost>");
    }
}
