//! The step `merge`: waits until checks and reviews allow the merge, and merges exactly the pushed commit.
//!
//! No undo: a merge is final.

use super::pull_request_step::connect;
use super::step_report::{StepFailure, StepReport, StepResult};
use crate::state::App;
use atoll_api::events::{EventData, GitPullRequestEnded};
use atoll_core::pull_request::{MergeVerdict, PullRequestState, decide_merge};
use atoll_core::ticket::TicketStep;
use atoll_forges::{MergeOutcome, MergeRequest};
use atoll_store::branch_workflows::{BranchWorkflowRow, StoredPullRequest, WorkflowRecord};

pub(super) async fn merge_pull_request(app: &App, row: &BranchWorkflowRow, record: &mut WorkflowRecord) -> StepResult {
    let Some(pull) = record.pull_request.clone() else {
        return Err(StepFailure::refused("no_pull_request", "the branch has no pull request"));
    };
    let connection = connect(app, row, record).await?;
    let failed = |error| StepFailure::of_forge(&connection, &error);
    let (forge, repository) = (&connection.forge, &connection.repository);
    let status = forge.read_status(repository, pull.number).await.map_err(failed)?;
    if status.state == PullRequestState::Closed {
        record.pull_request = Some(StoredPullRequest { state: PullRequestState::Closed, ..pull.clone() });
    }
    let moved = || StepFailure::outdated("branch_moved", "the remote branch has other commits than the pushed ones");
    match decide_merge(&status) {
        MergeVerdict::Allowed if record.remote_commit.as_ref() != Some(&status.head) => Err(moved()),
        MergeVerdict::Allowed => {
            let merge = MergeRequest {
                number: pull.number,
                expected_head: status.head.clone(),
                method: record.merge_method,
                title: format!("{} (#{})", pull.title, pull.number),
            };
            match forge.merge_pull_request(repository, &merge).await.map_err(failed)? {
                MergeOutcome::Merged { commit } => Ok(record_merge(record, pull, status.head, Some(commit))),
                MergeOutcome::HeadMoved => Err(moved()),
                MergeOutcome::NotMergeable { detail } => Err(StepFailure::undecided("merge_not_possible", detail)),
            }
        }
        MergeVerdict::AlreadyMerged => Ok(record_merge(record, pull, status.head, None)),
        MergeVerdict::Wait(reason) => Err(StepFailure::undecided("merge_waits", reason)),
        MergeVerdict::Refused(reason) => Err(StepFailure::refused("merge_refused", reason)),
        MergeVerdict::Conflict => Err(StepFailure::outdated("merge_conflict", "the branch conflicts with its base")),
        MergeVerdict::Behind => {
            Err(StepFailure::outdated("branch_behind", "the branch needs the newest commits of its base"))
        }
    }
}

fn record_merge(
    record: &mut WorkflowRecord,
    pull: StoredPullRequest,
    head: String,
    commit: Option<String>,
) -> StepReport {
    let branch = record.repo.branch.clone().unwrap_or_default();
    let ended = GitPullRequestEnded { number: pull.number, url: pull.url.clone(), branch, commit };
    record.pull_request = Some(StoredPullRequest { state: PullRequestState::Merged, ..pull });
    record.merged_head = Some(head);
    let events = vec![EventData::GitMergeCompleted(ended)];
    StepReport { ticket: Some(TicketStep::Merge), ..StepReport::with_events(events) }
}
