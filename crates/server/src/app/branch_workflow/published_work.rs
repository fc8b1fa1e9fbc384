//! Publishes the current work of a running sandbox, for the requirements `pushed` and `pull_request` of continuous mode.

use super::{new_row, restart_row, store_and_schedule};
use crate::problem::Result;
use crate::state::App;
use atoll_core::branch_workflow::{WorkflowGoal, WorkflowState};
use atoll_core::continuous::CheckVerdict;
use atoll_core::sandbox::Repo;
use atoll_store::branch_workflows::{self as rows, WorkflowRecord};
use atoll_store::sandboxes::SandboxRow;
use std::time::Duration;
use tokio::time::Instant;

/// How long a check waits for the remote repository and the forge.
const CHECK_TIMEOUT: Duration = Duration::from_secs(300);
/// A missed wake-up costs this long.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Publishes the work, and judges the outcome.
pub async fn check_published(app: &App, sandbox: &SandboxRow, goal: WorkflowGoal) -> Result<(CheckVerdict, String)> {
    let Some(repo) = sandbox.settings.repo.clone().filter(|repo| repo.url.is_some()) else {
        return Ok((CheckVerdict::Unknown, "the sandbox has no repository with a URL to push to".to_owned()));
    };
    request_publication(app, sandbox.clone(), repo, goal).await?;
    let mut news = app.hub.subscribe_news();
    let until = Instant::now() + CHECK_TIMEOUT;
    let session = sandbox.session_id;
    loop {
        let row = app.read(async move |tx| Ok(rows::find_workflow(tx, session).await?)).await?;
        let Some(row) = row else { return Ok((CheckVerdict::Unknown, "the branch workflow is gone".to_owned())) };
        if row.record.progress.state != WorkflowState::Running {
            return Ok(judge_workflow(&row.record));
        }
        if Instant::now() >= until {
            let detail = format!("the branch is not published after {} s", CHECK_TIMEOUT.as_secs());
            return Ok((CheckVerdict::Unknown, detail));
        }
        drop(tokio::time::timeout(POLL_INTERVAL, news.recv()).await);
    }
}

async fn request_publication(app: &App, sandbox: SandboxRow, repo: Repo, goal: WorkflowGoal) -> Result<()> {
    app.write(async move |work| {
        let (session, sandbox) = work.lock_sandbox(sandbox.id).await?;
        let row = match rows::find_workflow(work.tx, session.id).await? {
            Some(row) => restart_row(work, row, goal),
            None => new_row(work, &session, &sandbox, &repo, goal, None),
        };
        store_and_schedule(work, &row).await
    })
    .await
}

/// Only what the agent can change counts as failed.
fn judge_workflow(record: &WorkflowRecord) -> (CheckVerdict, String) {
    let reason = record.reason.as_ref();
    let detail = reason.map(|reason| reason.detail.clone()).unwrap_or_default();
    match record.progress.state {
        WorkflowState::Done => {
            let commit: String = record.remote_commit.iter().flat_map(|commit| commit.chars().take(12)).collect();
            let pull = record.pull_request.as_ref().map(|pull| format!(" and pull request #{}", pull.number));
            (CheckVerdict::Passed, format!("the remote branch has commit {commit}{}", pull.unwrap_or_default()))
        }
        WorkflowState::Failed
            if reason.is_some_and(|reason| matches!(reason.code.as_str(), "push_declined" | "nothing_to_publish")) =>
        {
            (CheckVerdict::Failed, detail)
        }
        WorkflowState::Failed | WorkflowState::Waiting | WorkflowState::WaitingAgent | WorkflowState::Running => {
            (CheckVerdict::Unknown, detail)
        }
    }
}
