//! The branches of tickets that depend on a merged one.

use super::{log_events, put_record, restart_row, store_and_schedule};
use crate::app::sessions::lock_session;
use crate::problem::Result;
use crate::repositories::BranchRepository;
use crate::state::App;
use atoll_api::events::EventData;
use atoll_core::branch_workflow::{WorkflowGoal, WorkflowState};
use atoll_core::id::SessionId;
use atoll_core::session_key::identify_repository;
use atoll_core::ticket::TicketStatus;
use atoll_core::ticket::dependencies::list_dependants;
use atoll_forge::remote::RemoteError;
use atoll_store::branch_workflows::{self as rows, BranchWorkflowRow, DependantBranch, WorkflowRecord};
use atoll_store::tickets::{self, TicketRow};
use atoll_store::{sandboxes, sessions};
use std::collections::BTreeSet;

/// Lists the branches of unfinished dependent tickets with their commits, in the order of the dependencies, and stores the
/// list.
pub async fn plan_dependants(
    app: &App,
    row: &BranchWorkflowRow,
    record: &mut WorkflowRecord,
    repository: &BranchRepository,
) -> std::result::Result<Vec<DependantBranch>, crate::problem::Problem> {
    let (session, project) = (row.session_id, row.project_id);
    let location = record.repo.url.as_deref().map(identify_repository).unwrap_or_default();
    let found: Vec<TicketRow> = app
        .read(async move |tx| {
            let Some(merged) = tickets::find_session_ticket(tx, session).await? else { return Ok(Vec::new()) };
            let dependencies = tickets::load_dependencies(tx, project).await?;
            let mut found = Vec::new();
            for id in list_dependants(&dependencies, &merged.id) {
                let Some(ticket) = tickets::find_ticket(tx, id).await? else { continue };
                let is_open = ticket.status != TicketStatus::Done && ticket.branch.is_some();
                if is_open && works_on(tx, &ticket, &location).await? {
                    found.push(ticket);
                }
            }
            Ok(found)
        })
        .await?;
    let listed = repository.run(move |own| {
        let stored = own.mirror.repository()?;
        let mut plan = Vec::new();
        for TicketRow { id, session_id, branch, .. } in found {
            let Some(branch) = branch else { continue };
            if let Some(previous) = stored.branch_commit(&branch)? {
                plan.push(DependantBranch { ticket_id: id, session_id, branch, previous, is_done: false });
            }
        }
        Ok::<_, RemoteError>(plan)
    });
    let plan = listed.await.map_err(crate::problem::Problem::internal)?;
    record.dependants = Some(plan.clone());
    super::store_record(app, session, record).await?;
    Ok(plan)
}

/// True if the ticket's session works on this repository. The branch of a ticket without a session is in any.
async fn works_on(tx: &mut dyn atoll_store::Tx, ticket: &TicketRow, location: &str) -> Result<bool> {
    let Some(session) = ticket.session_id else { return Ok(true) };
    let last = sessions::find_session(tx, session).await?.and_then(|session| session.last_sandbox_id);
    let Some(last) = last else { return Ok(true) };
    let repo = sandboxes::find_sandbox(tx, last).await?.and_then(|sandbox| sandbox.settings.repo);
    let url = repo.and_then(|repo| repo.url);
    Ok(url.is_some_and(|url| identify_repository(&url) == location))
}

/// Records that a dependent branch was looked at, and continues its own workflow, which pushes it or resolves its conflict.
/// Both are one transaction: a killed server must neither forget the dependant nor continue it twice.
pub async fn continue_dependant(
    app: &App,
    merged: SessionId,
    record: &WorkflowRecord,
    dependant: &DependantBranch,
    event: Option<EventData>,
) -> Result<()> {
    let (record, dependant) = (record.clone(), dependant.session_id);
    app.write(async move |work| {
        // In the order of the ids, so that two of these transactions cannot wait for each other.
        for session in BTreeSet::from_iter([merged].into_iter().chain(dependant)) {
            lock_session(work, session).await?;
        }
        put_record(work, merged, record).await?;
        let Some(session) = dependant else { return Ok(()) };
        let session = lock_session(work, session).await?;
        log_events(work, &session, event.into_iter().collect()).await?;
        let Some(row) = rows::find_workflow(work.tx, session.id).await? else { return Ok(()) };
        let is_published = row.record.remote_commit.is_some();
        match row.record.progress.state {
            WorkflowState::Done | WorkflowState::Failed if is_published => {
                let mut row = restart_row(work, row, WorkflowGoal::Push);
                row.record.progress.needs_base = true;
                store_and_schedule(work, &row).await
            }
            WorkflowState::Done
            | WorkflowState::Failed
            | WorkflowState::Running
            | WorkflowState::Waiting
            | WorkflowState::WaitingAgent => Ok(()),
        }
    })
    .await
}
