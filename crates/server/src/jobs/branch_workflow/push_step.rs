//! The step `push`: sets the remote branch to the session's branch.
//!
//! No undo: the branch stays pushed if a later step fails. A push that was not recorded finds its commit in place.

use super::step_report::{StepFailure, StepReport, StepResult};
use crate::app::branch_workflow::report_flagged;
use crate::repositories::BranchRepository;
use crate::state::App;
use atoll_api::events::{EventData, GitPushed};
use atoll_forge::remote::{Lease, PushRefusal, RemoteError, push_commit};
use atoll_store::branch_workflows::{BranchWorkflowRow, WorkflowRecord};

/// Flagged files that the record and the event list.
const MAX_LISTED_FILES: usize = 100;

pub(super) async fn push_branch(app: &App, row: &BranchWorkflowRow, record: &mut WorkflowRecord) -> StepResult {
    let repository = BranchRepository::connect(app, row, &record.repo).await?;
    let (branch, base) = (record.repo.branch.clone().unwrap_or_default(), record.repo.base.clone().unwrap_or_default());
    let named = branch.clone();
    let found = repository
        .run(move |own| {
            let stored = own.mirror.repository()?;
            let Some(head) = stored.branch_commit(&named)? else { return Ok(None) };
            Ok(Some((stored.list_sensitive_changes(&base, &head)?, head)))
        })
        .await?;
    let Some((flagged, head)) = found else {
        return Err(StepFailure::refused("nothing_to_publish", format!("the branch {branch} is gone")));
    };
    if record.remote_commit.as_ref() == Some(&head) {
        return Ok(StepReport::finished());
    }
    let count = flagged.len();
    record.flagged = flagged.into_iter().take(MAX_LISTED_FILES).collect();
    if count > 0 && record.flagged_commit.as_ref() != Some(&head) {
        record.flagged_commit = Some(head.clone());
        report_flagged(app, row.session_id, record, count).await?;
    }
    let lease = record.remote_commit.clone().map_or(Lease::Create, Lease::Expect);
    let (commit, named) = (head.clone(), branch.clone());
    let pushed = repository
        .run(move |own| push_commit(&own.mirror, own.mirror.url(), &own.credential, &commit, &named, &lease))
        .await;
    match pushed {
        Ok(_) => {}
        Err(RemoteError::PushRefused { refusal: PushRefusal::Declined { detail }, .. }) => {
            return Err(StepFailure::refused(
                "push_declined",
                format!("the remote repository refused the push: {detail}"),
            ));
        }
        Err(error) => return Err(error.into()),
    }
    let previous = record.remote_commit.replace(head.clone());
    let repo = record.repo.url.clone().unwrap_or_default();
    Ok(StepReport::with_events(vec![EventData::GitPushed(GitPushed { branch, commit: head, previous, repo })]))
}
