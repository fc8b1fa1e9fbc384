//! The steps after the merge: the branch is deleted, and the branches of dependent tickets move to the new base.
//!
//! Both use leases and find what an earlier run did. Neither needs an undo: the merged commits are in the base, and a
//! dependent branch that cannot move stays where it is.

use super::find_live_sandbox;
use super::step_report::{StepReport, StepResult};
use crate::app::branch_workflow::dependants::{continue_dependant, plan_dependants};
use crate::repositories::BranchRepository;
use crate::state::App;
use atoll_api::events::{EventData, GitBranchDeleted, GitBranchUpdated};
use atoll_core::git_settings::UpdateMethod;
use atoll_forge::remote::{PushRefusal, RemoteError, delete_branch as delete_remote_branch};
use atoll_forge::{Author, BranchUpdate, UpdateStrategy};
use atoll_store::branch_workflows::{BranchWorkflowRow, DependantBranch, WorkflowRecord};
use std::time::Duration;

/// Deletes the branch at the remote and in the mirror, unless it has commits that were not merged.
pub(super) async fn delete_branch(app: &App, row: &BranchWorkflowRow, record: &mut WorkflowRecord) -> StepResult {
    let Some(merged) = record.merged_head.clone() else { return Ok(StepReport::finished()) };
    let repository = BranchRepository::connect(app, row, &record.repo).await?;
    let branch = record.repo.branch.clone().unwrap_or_default();
    let (named, head) = (branch.clone(), merged.clone());
    let deleted = repository
        .run(move |own| {
            own.mirror.repository()?.remove_branch(&named, &head)?;
            match delete_remote_branch(&own.mirror, own.mirror.url(), &own.credential, &named, &head) {
                Ok(_) => Ok(true),
                // Newer commits than the merged ones stay.
                Err(RemoteError::PushRefused { refusal: PushRefusal::BranchMoved, .. }) => Ok(false),
                Err(other) => Err(other),
            }
        })
        .await?;
    if !deleted {
        return Ok(StepReport::finished());
    }
    record.remote_commit = None;
    let removed = GitBranchDeleted { branch, previous: merged };
    Ok(StepReport::with_events(vec![EventData::GitBranchRemoved(removed)]))
}

/// Moves the branches of dependent tickets to the new base, in the order of their dependencies.
pub(super) async fn update_dependants(app: &App, row: &BranchWorkflowRow, record: &mut WorkflowRecord) -> StepResult {
    let repository = BranchRepository::connect(app, row, &record.repo).await?;
    let target = record.repo.target.clone().unwrap_or_default();
    let base = repository
        .run(move |own| {
            own.mirror.fetch(&own.credential, Duration::ZERO)?;
            Ok(own.mirror.remote_branch(&target)?)
        })
        .await?;
    let Some(base) = base else { return Ok(StepReport::finished()) };
    record.repo.base = Some(base.clone());
    // The plan is stored before a branch moves: it has the commits before.
    let mut plan = match record.dependants.clone() {
        Some(plan) => plan,
        None => plan_dependants(app, row, record, &repository).await?,
    };
    // Old and new commits of branches that others may build on.
    let mut moved: Vec<(String, String)> = record.merged_head.iter().map(|head| (head.clone(), base.clone())).collect();
    for place in 0..plan.len() {
        let dependant = plan[place].clone();
        if !dependant.is_done {
            if let Some(session) = dependant.session_id
                && find_live_sandbox(app, session).await?.is_some()
            {
                // Its own workflow adds the base when its sandbox has ended.
                continue;
            }
            let event = move_dependant(&repository, &dependant, &moved).await?;
            plan[place].is_done = true;
            record.dependants = Some(plan.clone());
            continue_dependant(app, row.session_id, record, &dependant, event).await?;
        }
        let branch = dependant.branch.clone();
        let head = repository.run(move |own| Ok(own.mirror.repository()?.branch_commit(&branch)?)).await?;
        moved.extend(head.filter(|head| *head != dependant.previous).map(|head| (dependant.previous, head)));
    }
    record.dependants = None;
    Ok(StepReport::finished())
}

/// Moves one branch. Returns the event, also of a move that a killed server did not record; `None` if the branch needs no
/// change or conflicts.
async fn move_dependant(
    repository: &BranchRepository,
    dependant: &DependantBranch,
    moved: &[(String, String)],
) -> Result<Option<EventData>, RemoteError> {
    let (dependant, moved) = (dependant.clone(), moved.to_vec());
    let moving = repository.run(move |own| {
        let stored = own.mirror.repository()?;
        let DependantBranch { branch, previous, .. } = dependant;
        let Some(head) = stored.branch_commit(&branch)? else { return Ok(None) };
        // The newest branch that this one builds on; without one, the new base.
        let mut onto = moved.first().map(|(_, base)| (None, base.clone()));
        for (old, new) in &moved {
            if stored.contains_commit(&head, old)? {
                onto = Some((Some(old.clone()), new.clone()));
            } else if stored.contains_commit(&head, new)? {
                onto = Some((None, new.clone()));
            }
        }
        let Some((without, onto)) = onto else { return Ok(None) };
        let strategy = UpdateStrategy::Replay { without: without.as_deref() };
        let message = format!("Merge the new base into {branch}");
        let updated = stored.update_commit(&head, &onto, strategy, &Author::default(), &message)?;
        let commit = match updated {
            BranchUpdate::Updated { commit } if stored.move_branch(&branch, &head, &commit)? => commit,
            BranchUpdate::UpToDate if head != previous => head,
            BranchUpdate::Updated { .. } | BranchUpdate::UpToDate | BranchUpdate::Conflict(_) => return Ok(None),
        };
        let method = UpdateMethod::Rebase;
        Ok(Some(EventData::GitBranchUpdated(GitBranchUpdated { branch, commit, previous, base: onto, method })))
    });
    moving.await
}
