//! Model spending of projects per day, and agents paused by their project's budget.

use crate::error::{Error, Result};
use crate::sql::{Tx, first_row, text_param};
use atoll_core::budget::{Budget, BudgetPause, DayNumber, Period};
use atoll_core::id::{ProjectId, SandboxId};

pub async fn add_cost(tx: &mut dyn Tx, project: ProjectId, day: DayNumber, cost_micros: i64) -> Result<()> {
    let sql = "INSERT INTO project_costs (project_id, day, cost_micros) VALUES (?1, ?2, ?3)
               ON CONFLICT (project_id, day)
               DO UPDATE SET cost_micros = project_costs.cost_micros + excluded.cost_micros";
    tx.execute(sql, &[text_param(project), day.into(), cost_micros.into()]).await.map(drop)
}

/// Returns the spending since the first day of a period, including later days written before the clock was set back.
pub async fn sum_costs(tx: &mut dyn Tx, project: ProjectId, period: &Period) -> Result<i64> {
    let sql = "SELECT CAST(COALESCE(SUM(cost_micros), 0) AS BIGINT) AS cost_micros FROM project_costs
               WHERE project_id = ?1 AND day >= ?2";
    let rows = tx.query(sql, &[text_param(project), period.first_day.unwrap_or(DayNumber::MIN).into()]).await?;
    first_row(rows).ok_or_else(|| Error::internal("no sum"))?.int("cost_micros")
}

/// Records the budget that pauses a sandbox's agent.
pub async fn record_budget_pause(tx: &mut dyn Tx, sandbox: SandboxId, pause: &BudgetPause) -> Result<()> {
    let sql = "INSERT INTO budget_holds (sandbox_id, held) VALUES (?1, ?2)
               ON CONFLICT (sandbox_id) DO UPDATE SET held = excluded.held";
    let written = serde_json::to_string(pause).map_err(Error::internal)?;
    tx.execute(sql, &[text_param(sandbox), written.into()]).await.map(drop)
}

pub async fn find_budget_pause(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Option<BudgetPause>> {
    let rows = tx.query("SELECT held FROM budget_holds WHERE sandbox_id = ?1", &[text_param(sandbox)]).await?;
    first_row(rows).map(|row| row.json("held")).transpose()
}

pub async fn delete_budget_pause(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<()> {
    tx.execute("DELETE FROM budget_holds WHERE sandbox_id = ?1", &[text_param(sandbox)]).await.map(drop)
}

/// An agent that is or was paused by its project's budget.
#[derive(Debug, Clone, PartialEq)]
pub struct BudgetPausedAgent {
    pub sandbox: SandboxId,
    pub budget_pause: BudgetPause,
    /// True if the sandbox is still paused.
    pub is_paused: bool,
    /// The project's current budget.
    pub budget: Option<Budget>,
}

/// Lists all paused agents, oldest first. Not paged: their number is small.
pub async fn list_paused_agents(tx: &mut dyn Tx) -> Result<Vec<BudgetPausedAgent>> {
    let sql = "SELECT h.sandbox_id, h.held,
               CASE WHEN s.limit_paused = 'project_budget' THEN 1 ELSE 0 END AS is_paused, p.budget
               FROM budget_holds h JOIN sandboxes s ON s.id = h.sandbox_id JOIN projects p ON p.id = s.project_id
               ORDER BY h.sandbox_id";
    let rows = tx.query(sql, &[]).await?;
    let waiting = rows.into_iter().map(|row| {
        Ok(BudgetPausedAgent {
            sandbox: row.parse("sandbox_id")?,
            budget_pause: row.json("held")?,
            is_paused: row.bool("is_paused")?,
            budget: row.opt_json("budget")?,
        })
    });
    waiting.collect()
}

/// A project with its budget.
#[derive(Debug, Clone, PartialEq)]
pub struct BudgetedProject {
    pub id: ProjectId,
    pub budget: Budget,
}

pub async fn list_budgeted_projects(tx: &mut dyn Tx) -> Result<Vec<BudgetedProject>> {
    let rows = tx.query("SELECT id, budget FROM projects WHERE budget IS NOT NULL ORDER BY id", &[]).await?;
    rows.into_iter().map(|row| Ok(BudgetedProject { id: row.parse("id")?, budget: row.json("budget")? })).collect()
}

/// Lists the running sandboxes of a project whose agents wait for a message, the longest idle first.
pub async fn list_idle_sandboxes(tx: &mut dyn Tx, project: ProjectId) -> Result<Vec<SandboxId>> {
    let sql = "SELECT id FROM sandboxes WHERE project_id = ?1 AND state = 'running' AND activity = 'waiting_message'
               AND limit_paused IS NULL ORDER BY work_at, id";
    let rows = tx.query(sql, &[text_param(project)]).await?;
    rows.into_iter().map(|row| row.parse("id")).collect()
}
