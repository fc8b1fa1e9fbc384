//! The branch workflow's job: runs the steps of a session's workflow, one at a time.
//!
//! `core::branch_workflow` decides what follows from a step. One transaction stores the step's effects on the row, its
//! events and the ticket. A server that is killed before that runs the step again, and the step finds what it did.

mod after_merge;
mod merge_step;
mod pull_request_step;
mod push_step;
mod step_report;
mod update_step;

use super::JobOutcome;
use crate::app::branch_workflow::store_step;
use crate::app::live_results;
use crate::problem::{Problem, Result};
use crate::repositories::BranchRepository;
use crate::state::App;
use atoll_core::branch_workflow::{WorkflowEffect, WorkflowState, WorkflowStep};
use atoll_core::id::SessionId;
use atoll_core::sandbox::{Repo, ResultsState, SandboxState};
use atoll_core::time::Timestamp;
use atoll_store::branch_workflows::{self, BranchWorkflowRow, WorkflowRecord};
use atoll_store::jobs::Job;
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions;
use std::sync::Arc;
use std::time::Duration;
use step_report::{StepFailure, StepResult};

pub use step_report::StepReport;

pub(crate) async fn run_job(app: &Arc<App>, job: &Job) -> Result<JobOutcome> {
    let id = job.sandbox_id;
    let row = app.read(async move |tx| Ok(branch_workflows::find_workflow_of_job(tx, id).await?)).await?;
    let Some(row) = row else { return Ok(JobOutcome::Finished) };
    match run_steps(app, row.session_id).await? {
        Some(delay) => Ok(JobOutcome::RetryAfter(delay)),
        None => Ok(JobOutcome::Finished),
    }
}

/// Runs the steps of a session's workflow until it rests. Returns the time until the next step, if there is one.
pub(crate) async fn run_steps(app: &Arc<App>, session: SessionId) -> Result<Option<Duration>> {
    let _lock = app.workflow_locks.lock(session).await;
    loop {
        let row = app.read(async move |tx| Ok(branch_workflows::find_workflow(tx, session).await?)).await?;
        let Some(row) = row.filter(|row| is_active(row.record.progress.state)) else { return Ok(None) };
        let mut record = row.record.clone();
        let began = app.clock.now();
        let report = match run_step(app, &row, &mut record).await {
            Ok(report) => report,
            Err(failure) if failure.is_rejected_credential() && is_login_newer(app, &row, began).await? => {
                failure.into_retry().into_report()
            }
            Err(failure) => failure.into_report(),
        };
        tracing::debug!(%session, step = %row.record.progress.step, outcome = ?report.outcome, "ran a step of a branch workflow");
        match store_step(app, row, record, report).await? {
            WorkflowEffect::RunStep(delay) if delay.is_zero() => {}
            WorkflowEffect::RunStep(delay) => return Ok(Some(delay)),
            WorkflowEffect::Rest => return Ok(None),
        }
    }
}

/// True if the requester's login was renewed while a step ran. A renewal ends the token that the step began with.
async fn is_login_newer(app: &App, row: &BranchWorkflowRow, began: Timestamp) -> Result<bool> {
    let Some(user) = row.requested_by else { return Ok(false) };
    Ok(app.forge_logins.find_login(user).await?.is_some_and(|login| login.updated_at >= began))
}

const fn is_active(state: WorkflowState) -> bool {
    match state {
        WorkflowState::Running | WorkflowState::Waiting => true,
        WorkflowState::WaitingAgent | WorkflowState::Done | WorkflowState::Failed => false,
    }
}

async fn run_step(app: &Arc<App>, row: &BranchWorkflowRow, record: &mut WorkflowRecord) -> StepResult {
    match row.record.progress.step {
        WorkflowStep::Export => export_work(app, row, record).await,
        WorkflowStep::Update => update_step::update_branch(app, row, record).await,
        WorkflowStep::Push => push_step::push_branch(app, row, record).await,
        WorkflowStep::PullRequest => pull_request_step::open_pull_request(app, row, record).await,
        WorkflowStep::Merge => merge_step::merge_pull_request(app, row, record).await,
        WorkflowStep::DeleteBranch => after_merge::delete_branch(app, row, record).await,
        WorkflowStep::UpdateDependants => after_merge::update_dependants(app, row, record).await,
    }
}

/// Puts the current work of a running sandbox on the session's branch.
async fn export_work(app: &Arc<App>, row: &BranchWorkflowRow, record: &mut WorkflowRecord) -> StepResult {
    match find_live_sandbox(app, row.session_id).await? {
        Some(live) if live.state == SandboxState::Running => {
            live_results::export_current_work(Arc::clone(app), live.id).await?;
        }
        Some(live) if is_exporting(&live) => {
            return Err(StepFailure::undecided("results_pending", "the sandbox's results are being exported"));
        }
        Some(_) | None => {}
    }
    let id = row.session_id;
    let session = app.read(async move |tx| Ok(sessions::find_session(tx, id).await?)).await?;
    let session = session.ok_or_else(|| Problem::not_found("session"))?;
    if session.branch.is_none() {
        return Err(StepFailure::refused("nothing_to_publish", "the session has no branch: it has no results yet"));
    }
    record.repo = Repo { branch: session.branch, ..record.repo.clone() };
    if record.repo.target.is_none() {
        let repository = BranchRepository::connect(app, row, &record.repo).await?;
        record.repo.target = repository.run(|own| Ok(own.mirror.default_branch()?)).await?;
    }
    Ok(StepReport::finished())
}

fn is_exporting(sandbox: &SandboxRow) -> bool {
    sandbox.state == SandboxState::Completing && sandbox.results == ResultsState::Pending
}

/// The sandbox that works on the session's branch. One that waits for this workflow has finished its work.
async fn find_live_sandbox(app: &App, session: SessionId) -> Result<Option<SandboxRow>> {
    let found = app.read(async move |tx| {
        let session = sessions::find_session(tx, session).await?;
        match session.and_then(|session| session.sandbox_id) {
            Some(id) => Ok(sandboxes::find_sandbox(tx, id).await?),
            None => Ok(None),
        }
    });
    Ok(found.await?.filter(|row| row.state != SandboxState::Completing || is_exporting(row)))
}
