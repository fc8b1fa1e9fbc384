//! Branch workflows, at most one per session.

use crate::error::{Error, Result};
use crate::projects::ProjectFilter;
use crate::sql::{Row, Tx, first_row, opt_text_param, text_param, time_param};
use atoll_core::branch_workflow::WorkflowProgress;
use atoll_core::git_settings::UpdateMethod;
use atoll_core::id::{ProjectId, SandboxId, SessionId, TicketId, UserId};
use atoll_core::pull_request::{MergeMethod, PullRequestState};
use atoll_core::sandbox::{Reason, Repo};
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq)]
pub struct BranchWorkflowRow {
    pub session_id: SessionId,
    pub project_id: ProjectId,
    /// The sandbox that the workflow's job belongs to.
    pub sandbox_id: SandboxId,
    /// The user whose credentials the forge gets.
    pub requested_by: Option<UserId>,
    pub record: WorkflowRecord,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkflowRecord {
    pub progress: WorkflowProgress,
    /// The repository with its branch and target. `base` is the commit of the target that the branch contains.
    pub repo: Repo,
    pub merge_method: MergeMethod,
    pub update: UpdateMethod,
    /// The commit of the remote branch, as far as the server knows.
    #[serde(default)]
    pub remote_commit: Option<String>,
    #[serde(default)]
    pub pull_request: Option<StoredPullRequest>,
    #[serde(default)]
    pub conflict: Option<StoredConflict>,
    /// The last failure, or what the workflow waits for.
    #[serde(default)]
    pub reason: Option<Reason>,
    #[serde(default)]
    pub flagged: Vec<String>,
    /// The commit whose flagged files are reported.
    #[serde(default)]
    pub flagged_commit: Option<String>,
    /// The branch's commit that was merged.
    #[serde(default)]
    pub merged_head: Option<String>,
    /// The plan for the branches of dependent tickets, in order.
    #[serde(default)]
    pub dependants: Option<Vec<DependantBranch>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPullRequest {
    pub number: u64,
    pub url: String,
    pub title: String,
    pub state: PullRequestState,
    /// The commit that its title and body describe.
    #[serde(default)]
    pub described_commit: Option<String>,
}

/// A conflict between the session's branch and its base, or the remote branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredConflict {
    /// The merge commit whose files have conflict markers. Only the server's copy of the repository has it.
    pub commit: String,
    /// The branch's commit before.
    pub previous: String,
    pub base: String,
    pub paths: Vec<String>,
    /// True once the agent has the message.
    pub is_sent: bool,
}

/// The branch of a ticket that depends on a merged one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DependantBranch {
    pub ticket_id: TicketId,
    pub session_id: Option<SessionId>,
    pub branch: String,
    /// Its commit before the update.
    pub previous: String,
    pub is_done: bool,
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT session_id, project_id, sandbox_id, requested_by, record, created_at, updated_at
             FROM branch_workflows ",
            $rest
        )
    };
}

fn workflow_from_row(row: Row) -> Result<BranchWorkflowRow> {
    Ok(BranchWorkflowRow {
        session_id: row.parse("session_id")?,
        project_id: row.parse("project_id")?,
        sandbox_id: row.parse("sandbox_id")?,
        requested_by: row.opt_parse("requested_by")?,
        record: row.json("record")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}

pub async fn find_workflow(tx: &mut dyn Tx, session: SessionId) -> Result<Option<BranchWorkflowRow>> {
    let rows = tx.query(select!("WHERE session_id = ?1"), &[text_param(session)]).await?;
    first_row(rows).map(workflow_from_row).transpose()
}

/// Returns the workflow whose job belongs to the sandbox.
pub async fn find_workflow_of_job(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Option<BranchWorkflowRow>> {
    let rows = tx.query(select!("WHERE sandbox_id = ?1 LIMIT 1"), &[text_param(sandbox)]).await?;
    first_row(rows).map(workflow_from_row).transpose()
}

/// Adds or replaces the workflow of a session. The caller holds the session's lock.
pub async fn put_workflow(tx: &mut dyn Tx, row: &BranchWorkflowRow) -> Result<()> {
    let sql = "INSERT INTO branch_workflows (session_id, project_id, sandbox_id, requested_by, pr_state, record,
               created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
               ON CONFLICT (session_id) DO UPDATE SET requested_by = excluded.requested_by,
               pr_state = excluded.pr_state, record = excluded.record, updated_at = excluded.updated_at";
    let record = serde_json::to_string(&row.record).map_err(Error::internal)?;
    let params = [
        text_param(row.session_id),
        text_param(row.project_id),
        text_param(row.sandbox_id),
        opt_text_param(row.requested_by),
        opt_text_param(row.record.pull_request.as_ref().map(|pull| pull.state)),
        record.into(),
        time_param(row.created_at),
        time_param(row.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

/// Filter of a list of pull requests.
#[derive(Debug, Clone, Default)]
pub struct PullRequestFilter {
    pub visible_projects: ProjectFilter,
    pub project: Option<ProjectId>,
    pub state: Option<PullRequestState>,
}

/// Lists the workflows with a pull request, newest session first, from before `before`.
pub async fn list_pull_requests(
    tx: &mut dyn Tx,
    filter: &PullRequestFilter,
    before: Option<&str>,
    limit: i64,
) -> Result<Vec<BranchWorkflowRow>> {
    let sql = select!(
        "WHERE session_id < ?1 AND pr_state IS NOT NULL AND (?2 = '' OR project_id = ?2)
         AND (?3 = '' OR ?3 LIKE '%' || project_id || '%') AND (?4 = '' OR pr_state = ?4)
         ORDER BY session_id DESC LIMIT ?5"
    );
    let params = [
        before.unwrap_or("~").into(),
        text_param(filter.project.map(|id| id.to_string()).unwrap_or_default()),
        filter.visible_projects.as_param(),
        text_param(filter.state.map(PullRequestState::as_str).unwrap_or_default()),
        limit.into(),
    ];
    tx.query(sql, &params).await?.into_iter().map(workflow_from_row).collect()
}
