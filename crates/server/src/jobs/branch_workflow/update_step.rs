//! The step `update`: adds commits of the remote branch and of the base to the session's branch where it needs them.
//!
//! Git merges in the server's mirror, without a workspace. A conflict becomes a commit with conflict markers on the session's
//! branch, so that the session's next sandbox starts with it; the workflow never pushes that commit while markers are left.
//! Undo: if the agent cannot get the conflict, the branch returns to its commit (`app::branch_workflow`).

use super::find_live_sandbox;
use super::step_report::{StepFailure, StepReport, StepResult};
use crate::app::branch_workflow::{conflict_message, store_record};
use crate::repositories::BranchRepository;
use crate::state::App;
use atoll_api::events::{EventData, GitBranchUpdated, GitConflict};
use atoll_core::branch_workflow::StepOutcome;
use atoll_core::git_settings::UpdateMethod;
use atoll_forge::remote::RemoteError;
use atoll_forge::{Author, BranchUpdate, HostRepository, MergeConflict, UpdateStrategy};
use atoll_store::branch_workflows::{BranchWorkflowRow, StoredConflict, WorkflowRecord};
use std::time::Duration;

/// The parts of the workflow that an update uses.
#[derive(Debug, Clone)]
struct UpdatePlan {
    branch: String,
    target: String,
    method: UpdateMethod,
    needs_base: bool,
    /// False while a sandbox works on the branch: its results must build on the branch's commit.
    may_move: bool,
    remote_commit: Option<String>,
    conflict: Option<StoredConflict>,
    author: Author,
}

/// The outcome of an update.
enum BranchState {
    Ready {
        remote_commit: Option<String>,
        base: Option<String>,
        events: Vec<EventData>,
    },
    /// The session's branch has no commit that the base lacks.
    Empty,
    /// The branch has to move, but a sandbox works on it.
    Busy,
    Conflict {
        found: MergeConflict,
        previous: String,
        base: String,
        /// True if `base` is the target, false if it is the remote branch.
        is_target: bool,
        remote_commit: Option<String>,
    },
    /// The agent left conflict markers.
    Unresolved {
        paths: Vec<String>,
    },
}

pub(super) async fn update_branch(app: &App, row: &BranchWorkflowRow, record: &mut WorkflowRecord) -> StepResult {
    let live = find_live_sandbox(app, row.session_id).await?;
    let repository = BranchRepository::connect(app, row, &record.repo).await?;
    let plan = UpdatePlan {
        branch: record.repo.branch.clone().unwrap_or_default(),
        target: record.repo.target.clone().unwrap_or_default(),
        method: record.update,
        needs_base: record.progress.needs_base,
        may_move: live.is_none(),
        remote_commit: record.remote_commit.clone(),
        conflict: record.conflict.clone(),
        author: Author::default(),
    };
    let unsent = record.conflict.clone().filter(|conflict| !conflict.is_sent);
    if let Some(conflict) = unsent {
        return place_conflict(&repository, record, conflict).await;
    }
    let state = repository.run(move |repository| run_update(repository, &plan)).await?;
    match state {
        BranchState::Ready { remote_commit, base, events } => {
            record.remote_commit = remote_commit;
            record.conflict = None;
            if let Some(base) = base {
                record.repo.base = Some(base);
            }
            Ok(StepReport::with_events(events))
        }
        BranchState::Empty => {
            let target = record.repo.target.as_deref().unwrap_or_default();
            let detail = format!("the branch has no commits that {target} lacks");
            Err(StepFailure::refused("nothing_to_publish", detail))
        }
        BranchState::Busy => {
            let detail = "the branch needs commits of its base, and a sandbox works on it; \
                          the workflow continues when the sandbox has ended";
            Err(StepFailure::undecided("session_busy", detail))
        }
        BranchState::Conflict { found, previous, base, is_target, remote_commit } => {
            let MergeConflict { commit, paths } = found;
            if is_target {
                record.repo.base = Some(base.clone());
            }
            let conflict = StoredConflict { commit, previous, base, paths, is_sent: false };
            record.remote_commit = remote_commit;
            record.conflict = Some(conflict.clone());
            // Before the branch moves: a later run must know that its commit has conflict markers.
            store_record(app, row.session_id, record).await?;
            place_conflict(&repository, record, conflict).await
        }
        BranchState::Unresolved { paths } => {
            let conflict = record.conflict.clone().ok_or_else(|| StepFailure::refused("conflict", "no conflict"))?;
            report_conflict(&repository, record, StoredConflict { paths, ..conflict }).await
        }
    }
}

/// Moves the branch to the commit with conflict markers.
async fn place_conflict(
    repository: &BranchRepository,
    record: &mut WorkflowRecord,
    conflict: StoredConflict,
) -> StepResult {
    let (branch, from, to) =
        (record.repo.branch.clone().unwrap_or_default(), conflict.previous.clone(), conflict.commit.clone());
    let moved = repository.run(move |own| Ok(own.mirror.repository()?.move_branch(&branch, &from, &to)?)).await?;
    if !moved {
        // Another update is newer than this conflict.
        record.conflict = None;
        return Err(StepFailure::new(
            StepOutcome::Retry { after: Some(Duration::ZERO) },
            "branch_moved",
            "the branch moved meanwhile",
        ));
    }
    report_conflict(repository, record, conflict).await
}

/// Hands the conflict to the agent.
async fn report_conflict(
    repository: &BranchRepository,
    record: &mut WorkflowRecord,
    conflict: StoredConflict,
) -> StepResult {
    let (branch, paths) = (record.repo.branch.clone().unwrap_or_default(), conflict.paths.clone());
    let excerpt = repository
        .run(move |own| {
            let found = own.mirror.repository()?;
            let head = found.branch_commit(&branch)?.unwrap_or_default();
            Ok(found.excerpt_conflicts(&head, &paths)?)
        })
        .await?;
    let message = conflict_message(&record.repo, &conflict.paths, &excerpt);
    let event = EventData::GitConflict(GitConflict {
        branch: record.repo.branch.clone().unwrap_or_default(),
        commit: conflict.previous.clone(),
        base: conflict.base.clone(),
        paths: conflict.paths.clone(),
    });
    let detail = format!("the agent resolves conflicts in {}", conflict.paths.join(", "));
    record.conflict = Some(StoredConflict { is_sent: true, ..conflict });
    let failure = StepFailure::new(StepOutcome::Conflict, "conflict", detail);
    Ok(StepReport { events: vec![event], message: Some(message), ..failure.into_report() })
}

fn run_update(own: &BranchRepository, plan: &UpdatePlan) -> Result<BranchState, RemoteError> {
    own.mirror.fetch(&own.credential, Duration::ZERO)?;
    let repository = own.mirror.repository()?;
    let missing = |base: &str| RemoteError::BranchMissing { url: own.mirror.url().to_string(), base: base.to_owned() };
    let target = own.mirror.remote_branch(&plan.target)?.ok_or_else(|| missing(&plan.target))?;
    let Some(head) = repository.branch_commit(&plan.branch)? else { return Ok(BranchState::Empty) };
    if let Some(conflict) = &plan.conflict {
        let paths = repository.list_unresolved(&head, &conflict.paths)?;
        if !paths.is_empty() {
            return Ok(BranchState::Unresolved { paths });
        }
    }
    let remote = own.mirror.remote_branch(&plan.branch)?;
    let mut update = BranchUpdateRun { repository: &repository, plan, head, events: Vec::new() };
    if let Some(remote) = remote.as_ref().filter(|remote| plan.remote_commit.as_ref() != Some(remote))
        && let Some(stop) = update.add_commits(remote, Some(remote.clone()))?
    {
        return Ok(stop);
    }
    let needs_target = plan.needs_base || !repository.merges_cleanly(&update.head, &target)?;
    if needs_target && let Some(stop) = update.add_commits(&target, remote.clone())? {
        return Ok(stop);
    }
    if repository.contains_commit(&target, &update.head)? {
        return Ok(BranchState::Empty);
    }
    let base = repository.contains_commit(&update.head, &target)?.then_some(target);
    Ok(BranchState::Ready { remote_commit: remote, base, events: update.events })
}

struct BranchUpdateRun<'a> {
    repository: &'a HostRepository,
    plan: &'a UpdatePlan,
    head: String,
    events: Vec<EventData>,
}

impl BranchUpdateRun<'_> {
    /// Adds the commits of `other` to the branch. Returns the state that ends the update.
    fn add_commits(&mut self, other: &str, remote_commit: Option<String>) -> Result<Option<BranchState>, RemoteError> {
        let UpdatePlan { branch, method, author, .. } = self.plan;
        let strategy = match method {
            UpdateMethod::Merge => UpdateStrategy::Merge,
            UpdateMethod::Rebase => UpdateStrategy::Replay { without: None },
        };
        let message = format!("Merge {} into {branch}", self.plan.target);
        match self.repository.update_commit(&self.head, other, strategy, author, &message)? {
            BranchUpdate::UpToDate => Ok(None),
            BranchUpdate::Updated { .. } | BranchUpdate::Conflict(_) if !self.plan.may_move => {
                Ok(Some(BranchState::Busy))
            }
            BranchUpdate::Updated { commit } => {
                let previous = std::mem::replace(&mut self.head, commit.clone());
                if !self.repository.move_branch(branch, &previous, &commit)? {
                    return Ok(Some(BranchState::Busy));
                }
                let (branch, base, method) = (branch.clone(), other.to_owned(), *method);
                let updated = GitBranchUpdated { branch, commit, previous, base, method };
                self.events.push(EventData::GitBranchUpdated(updated));
                Ok(None)
            }
            BranchUpdate::Conflict(found) => {
                let (previous, base) = (self.head.clone(), other.to_owned());
                let is_target = remote_commit.as_deref() != Some(other);
                Ok(Some(BranchState::Conflict { found, previous, base, is_target, remote_commit }))
            }
        }
    }
}
