//! Tasks, their dependencies and their attempts.

use crate::error::{Error, Result};
use crate::projects::ProjectFilter;
use crate::sql::{Row, Tx, first_row, opt_text_param, opt_time_param, text_param, time_param};
use atoll_core::id::{ProjectId, SandboxId, SessionId, TaskId, TicketId, TokenId};
use atoll_core::sandbox::{ProviderKind, Reason};
use atoll_core::task::{FailureClass, OwnedFiles, Standing, TaskPhase, TaskState, TaskWait};
use atoll_core::ticket::dependencies::DependencyMap;
use atoll_core::ticket::{TicketPriority, TicketType};
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    pub id: TaskId,
    pub project_id: ProjectId,
    pub ticket_id: Option<TicketId>,
    /// The actor who created the task.
    pub owner: String,
    pub task_type: TicketType,
    pub priority: TicketPriority,
    /// Its counters are in the details.
    pub phase: TaskPhase,
    /// Set while the task is queued.
    pub wait: Option<TaskWait>,
    /// The task whose files it waits for.
    pub holder_id: Option<TaskId>,
    pub standing: Standing,
    /// When its standing changes by itself; set while it waits for a slot.
    pub level_due_at: Option<Timestamp>,
    pub queued_since: Timestamp,
    pub available_at: Option<Timestamp>,
    pub deadline: Option<Timestamp>,
    pub open_dependencies: i64,
    /// Tasks that have not ended and depend on this one.
    pub blocked_tasks: i64,
    /// Number of the newest claim. Only it can give the task a sandbox.
    pub claim: i64,
    pub claimed_by: Option<String>,
    pub claim_expires_at: Option<Timestamp>,
    pub provider: ProviderKind,
    pub session_id: Option<SessionId>,
    pub owned_files: OwnedFiles,
    pub details: TaskDetails,
    pub version: i64,
    pub state_since: Timestamp,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The fields of a task that no query needs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskDetails {
    pub title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The settings of its sandboxes, as a request.
    #[serde(default)]
    pub sandbox: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    pub required_capabilities: Vec<String>,
    pub timeout_s: u32,
    pub max_retries: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_usd: Option<f64>,
    #[serde(default)]
    pub needs_validation: bool,
    /// The token that created the task, for services.
    pub token: Option<TokenId>,
    /// The creator used the server's own machine.
    #[serde(default)]
    pub is_local: bool,
    #[serde(default)]
    pub retries: u32,
    #[serde(default)]
    pub revisions: u32,
    #[serde(default)]
    pub is_revision: bool,
    /// The last validation's feedback, until an attempt got it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
    /// The result that the worker reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The worker's report that the current attempt's work is done, or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_success: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Reason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_class: Option<FailureClass>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

macro_rules! select_tasks {
    ($rest:literal) => {
        concat!(
            "SELECT t.id, t.project_id, t.ticket_id, t.owner, t.type, t.priority, t.state, t.wait, t.holder_id, t.standing,
             t.level_due_at, t.queued_since, t.available_at, t.deadline, t.open_dependencies, t.blocked_tasks, t.claim, t.claimed_by,
             t.claim_expires_at, t.provider, t.sandbox_id, t.session_id, t.owned_files, t.details, t.version,
             t.state_since, t.created_at, t.updated_at FROM tasks t ",
            $rest
        )
    };
}
pub(crate) use select_tasks;

pub(crate) fn task_from_row(row: Row) -> Result<TaskRow> {
    let details: TaskDetails = row.json("details")?;
    Ok(TaskRow {
        id: row.parse("id")?,
        project_id: row.parse("project_id")?,
        ticket_id: row.opt_parse("ticket_id")?,
        owner: row.text("owner")?,
        task_type: row.parse("type")?,
        priority: row.parse("priority")?,
        phase: TaskPhase {
            state: row.parse("state")?,
            sandbox: row.opt_parse("sandbox_id")?,
            retries: details.retries,
            revisions: details.revisions,
            is_revision: details.is_revision,
        },
        wait: row.opt_parse("wait")?,
        holder_id: row.opt_parse("holder_id")?,
        standing: Standing::from_units(row.int("standing")?),
        level_due_at: row.opt_time("level_due_at")?,
        queued_since: row.time("queued_since")?,
        available_at: row.opt_time("available_at")?,
        deadline: row.opt_time("deadline")?,
        open_dependencies: row.int("open_dependencies")?,
        blocked_tasks: row.int("blocked_tasks")?,
        claim: row.int("claim")?,
        claimed_by: row.opt_text("claimed_by")?,
        claim_expires_at: row.opt_time("claim_expires_at")?,
        provider: row.parse("provider")?,
        session_id: row.opt_parse("session_id")?,
        owned_files: row.json("owned_files")?,
        details,
        version: row.int("version")?,
        state_since: row.time("state_since")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}

fn details_json(task: &TaskRow) -> Result<(String, String)> {
    let TaskPhase { retries, revisions, is_revision, .. } = task.phase;
    let details = TaskDetails { retries, revisions, is_revision, ..task.details.clone() };
    let files = serde_json::to_string(&task.owned_files).map_err(Error::internal)?;
    Ok((files, serde_json::to_string(&details).map_err(Error::internal)?))
}

pub async fn insert_task(tx: &mut dyn Tx, t: &TaskRow) -> Result<()> {
    let sql = "INSERT INTO tasks (id, project_id, ticket_id, owner, type, priority, state, wait, holder_id, standing,
               level_due_at, queued_since, available_at, deadline, open_dependencies, blocked_tasks, is_active, claim,
               claimed_by, claim_expires_at, provider, sandbox_id, session_id, owned_files, details, version, state_since, created_at,
               updated_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21,
               ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29)";
    let (files, details) = details_json(t)?;
    let params = [
        text_param(t.id),
        text_param(t.project_id),
        opt_text_param(t.ticket_id),
        (&t.owner).into(),
        text_param(t.task_type),
        text_param(t.priority),
        text_param(t.phase.state),
        opt_text_param(t.wait),
        opt_text_param(t.holder_id),
        t.standing.as_units().into(),
        opt_time_param(t.level_due_at),
        time_param(t.queued_since),
        opt_time_param(t.available_at),
        opt_time_param(t.deadline),
        t.open_dependencies.into(),
        t.blocked_tasks.into(),
        t.phase.state.is_active().into(),
        t.claim.into(),
        t.claimed_by.as_deref().into(),
        opt_time_param(t.claim_expires_at),
        text_param(t.provider),
        opt_text_param(t.phase.sandbox),
        opt_text_param(t.session_id),
        files.into(),
        details.into(),
        t.version.into(),
        time_param(t.state_since),
        time_param(t.created_at),
        time_param(t.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

/// Writes the row if its version is still the stored one, and counts the version. Otherwise nothing changes.
pub async fn update_task(tx: &mut dyn Tx, t: &mut TaskRow) -> Result<()> {
    let sql = "UPDATE tasks SET ticket_id = ?3, type = ?4, priority = ?5, state = ?6, wait = ?7, holder_id = ?8,
               standing = ?9, level_due_at = ?10, queued_since = ?11, available_at = ?12, deadline = ?13,
               open_dependencies = ?14, blocked_tasks = ?15, is_active = ?16, claim = ?17, claimed_by = ?18,
               claim_expires_at = ?19, provider = ?20, sandbox_id = ?21, session_id = ?22, owned_files = ?23, details = ?24,
               version = version + 1, state_since = ?25, updated_at = ?26 WHERE id = ?1 AND version = ?2";
    let (files, details) = details_json(t)?;
    let params = [
        text_param(t.id),
        t.version.into(),
        opt_text_param(t.ticket_id),
        text_param(t.task_type),
        text_param(t.priority),
        text_param(t.phase.state),
        opt_text_param(t.wait),
        opt_text_param(t.holder_id),
        t.standing.as_units().into(),
        opt_time_param(t.level_due_at),
        time_param(t.queued_since),
        opt_time_param(t.available_at),
        opt_time_param(t.deadline),
        t.open_dependencies.into(),
        t.blocked_tasks.into(),
        t.phase.state.is_active().into(),
        t.claim.into(),
        t.claimed_by.as_deref().into(),
        opt_time_param(t.claim_expires_at),
        text_param(t.provider),
        opt_text_param(t.phase.sandbox),
        opt_text_param(t.session_id),
        files.into(),
        details.into(),
        time_param(t.state_since),
        time_param(t.updated_at),
    ];
    match tx.execute(sql, &params).await? {
        1 => {
            t.version += 1;
            Ok(())
        }
        _ => Err(Error::Conflict { what: "task" }),
    }
}

pub async fn find_task(tx: &mut dyn Tx, id: TaskId) -> Result<Option<TaskRow>> {
    first_row(tx.query(select_tasks!("WHERE t.id = ?1"), &[text_param(id)]).await?).map(task_from_row).transpose()
}

/// Returns the task and locks it until the transaction ends. A caller that also locks a session does that first.
pub async fn lock_task(tx: &mut dyn Tx, id: TaskId) -> Result<Option<TaskRow>> {
    let rows = tx.query_for_update(select_tasks!("WHERE t.id = ?1"), &[text_param(id)]).await?;
    first_row(rows).map(task_from_row).transpose()
}

/// Locks the task whose current attempt runs in the sandbox.
pub async fn lock_current_task(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Option<TaskRow>> {
    let rows = tx.query_for_update(select_tasks!("WHERE t.sandbox_id = ?1"), &[text_param(sandbox)]).await?;
    first_row(rows).map(task_from_row).transpose()
}

/// Finds the task that the sandbox works on, or worked on.
pub async fn find_task_id(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Option<TaskId>> {
    let sql = "SELECT task_id FROM task_attempts WHERE sandbox_id = ?1 LIMIT 1";
    first_row(tx.query(sql, &[text_param(sandbox)]).await?).map(|row| row.parse("task_id")).transpose()
}

/// Filter of a list.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    pub visible_projects: ProjectFilter,
    pub project: Option<ProjectId>,
    pub state: Option<TaskState>,
    pub wait: Option<TaskWait>,
    pub task_type: Option<TicketType>,
    pub priority: Option<TicketPriority>,
    pub ticket: Option<TicketId>,
    pub session: Option<SessionId>,
    pub owner: Option<String>,
    /// Only tasks that have not ended.
    pub is_open: bool,
}

/// Lists tasks, newest first, from before `before`.
pub async fn list_tasks(
    tx: &mut dyn Tx,
    filter: &TaskFilter,
    before: Option<&str>,
    limit: i64,
) -> Result<Vec<TaskRow>> {
    let sql = select_tasks!(
        "WHERE t.id < ?1 AND (?2 = '' OR t.project_id = ?2) AND (?3 = '' OR ?3 LIKE '%' || t.project_id || '%')
         AND (?4 = '' OR t.state = ?4) AND (?5 = '' OR t.wait = ?5) AND (?6 = '' OR t.type = ?6)
         AND (?7 = '' OR t.priority = ?7) AND (?8 = '' OR t.ticket_id = ?8) AND (?9 = '' OR t.session_id = ?9)
         AND (?10 = '' OR t.owner = ?10)
         AND (?11 = 0 OR t.state NOT IN ('completed', 'failed', 'cancelled')) ORDER BY t.id DESC LIMIT ?12"
    );
    let params = [
        before.unwrap_or("~").into(),
        text_param(filter.project.map(|id| id.to_string()).unwrap_or_default()),
        filter.visible_projects.as_param(),
        text_param(filter.state.map(TaskState::as_str).unwrap_or_default()),
        text_param(filter.wait.map(TaskWait::as_str).unwrap_or_default()),
        text_param(filter.task_type.map(TicketType::as_str).unwrap_or_default()),
        text_param(filter.priority.map(TicketPriority::as_str).unwrap_or_default()),
        text_param(filter.ticket.map(|id| id.to_string()).unwrap_or_default()),
        text_param(filter.session.map(|id| id.to_string()).unwrap_or_default()),
        filter.owner.as_deref().unwrap_or_default().into(),
        filter.is_open.into(),
        limit.into(),
    ];
    tx.query(sql, &params).await?.into_iter().map(task_from_row).collect()
}

/// Returns true if the project has tasks.
pub async fn has_tasks(tx: &mut dyn Tx, project: ProjectId) -> Result<bool> {
    Ok(!tx.query("SELECT 1 FROM tasks WHERE project_id = ?1 LIMIT 1", &[text_param(project)]).await?.is_empty())
}

/// Locks the dependencies between the tasks of a project: two changes could form a cycle together.
pub async fn lock_dependencies(tx: &mut dyn Tx, project: ProjectId) -> Result<()> {
    tx.query_for_update("SELECT id FROM projects WHERE id = ?1", &[text_param(project)]).await.map(drop)
}

/// Replaces the dependencies of a task.
pub async fn set_dependencies(tx: &mut dyn Tx, task: TaskId, depends_on: &BTreeSet<TaskId>) -> Result<()> {
    tx.execute("DELETE FROM task_dependencies WHERE task_id = ?1", &[text_param(task)]).await?;
    for need in depends_on {
        let sql = "INSERT INTO task_dependencies (task_id, depends_on) VALUES (?1, ?2)";
        tx.execute(sql, &[text_param(task), text_param(need)]).await?;
    }
    Ok(())
}

/// A task as a dependency or dependant of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelatedTask {
    pub id: TaskId,
    pub state: TaskState,
}

fn related_from_row(row: Row) -> Result<RelatedTask> {
    Ok(RelatedTask { id: row.parse("id")?, state: row.parse("state")? })
}

/// Lists the tasks that a task depends on.
pub async fn list_dependencies(tx: &mut dyn Tx, task: TaskId) -> Result<Vec<RelatedTask>> {
    let sql = "SELECT t.id, t.state FROM task_dependencies d JOIN tasks t ON t.id = d.depends_on
               WHERE d.task_id = ?1 ORDER BY t.id";
    tx.query(sql, &[text_param(task)]).await?.into_iter().map(related_from_row).collect()
}

/// Lists the tasks that depend on a task, in the order in which transactions lock them.
pub async fn list_dependants(tx: &mut dyn Tx, task: TaskId) -> Result<Vec<RelatedTask>> {
    let sql = "SELECT t.id, t.state FROM task_dependencies d JOIN tasks t ON t.id = d.task_id
               WHERE d.depends_on = ?1 ORDER BY t.id";
    tx.query(sql, &[text_param(task)]).await?.into_iter().map(related_from_row).collect()
}

/// Returns the dependencies of a task and of everything that it depends on.
pub async fn load_reachable_dependencies(tx: &mut dyn Tx, task: TaskId) -> Result<DependencyMap<TaskId>> {
    let sql = "WITH RECURSIVE reachable (id) AS (
                   SELECT depends_on FROM task_dependencies WHERE task_id = ?1
                   UNION SELECT d.depends_on FROM task_dependencies d JOIN reachable r ON d.task_id = r.id)
               SELECT d.task_id, d.depends_on FROM task_dependencies d WHERE d.task_id = ?1
               OR d.task_id IN (SELECT id FROM reachable)";
    let mut map = DependencyMap::new();
    for row in tx.query(sql, &[text_param(task)]).await? {
        map.entry(row.parse("task_id")?).or_insert_with(BTreeSet::new).insert(row.parse("depends_on")?);
    }
    Ok(map)
}

/// One sandbox that worked on a task, or a claim that found no sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskAttempt {
    pub number: i64,
    pub sandbox_id: Option<SandboxId>,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// How it ended: `succeeded`, `cancelled`, `failed` or `waited`.
    pub outcome: Option<String>,
    pub class: Option<FailureClass>,
    pub reason: Option<Reason>,
}

/// Adds an attempt, with the next number.
pub async fn insert_attempt(tx: &mut dyn Tx, task: TaskId, attempt: &TaskAttempt) -> Result<()> {
    let sql = "INSERT INTO task_attempts (task_id, number, sandbox_id, started_at, ended_at, outcome, class, reason)
               SELECT ?1, COALESCE(MAX(number), 0) + 1, ?2, ?3, ?4, ?5, ?6, ?7 FROM task_attempts WHERE task_id = ?1";
    let reason = attempt.reason.as_ref().map(serde_json::to_string).transpose().map_err(Error::internal)?;
    let params = [
        text_param(task),
        opt_text_param(attempt.sandbox_id),
        time_param(attempt.started_at),
        opt_time_param(attempt.ended_at),
        attempt.outcome.as_deref().into(),
        opt_text_param(attempt.class),
        reason.as_deref().into(),
    ];
    tx.execute(sql, &params).await.map(drop)
}

/// Records the end of the attempt in a sandbox.
pub async fn end_attempt(
    tx: &mut dyn Tx,
    sandbox: SandboxId,
    ended_at: Timestamp,
    outcome: &str,
    class: Option<FailureClass>,
    reason: Option<&Reason>,
) -> Result<()> {
    let sql = "UPDATE task_attempts SET ended_at = ?2, outcome = ?3, class = ?4, reason = ?5
               WHERE sandbox_id = ?1 AND ended_at IS NULL";
    let reason = reason.map(serde_json::to_string).transpose().map_err(Error::internal)?;
    let params =
        [text_param(sandbox), time_param(ended_at), outcome.into(), opt_text_param(class), reason.as_deref().into()];
    tx.execute(sql, &params).await.map(drop)
}

/// Lists the newest attempts of a task, oldest first.
pub async fn list_attempts(tx: &mut dyn Tx, task: TaskId, limit: i64) -> Result<Vec<TaskAttempt>> {
    let sql = "SELECT number, sandbox_id, started_at, ended_at, outcome, class, reason FROM task_attempts
               WHERE task_id = ?1 ORDER BY number DESC LIMIT ?2";
    let mut attempts = Vec::new();
    for row in tx.query(sql, &[text_param(task), limit.into()]).await? {
        attempts.push(TaskAttempt {
            number: row.int("number")?,
            sandbox_id: row.opt_parse("sandbox_id")?,
            started_at: row.time("started_at")?,
            ended_at: row.opt_time("ended_at")?,
            outcome: row.opt_text("outcome")?,
            class: row.opt_parse("class")?,
            reason: row.opt_json("reason")?,
        });
    }
    attempts.reverse();
    Ok(attempts)
}
