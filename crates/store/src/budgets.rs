//! What projects spent on models by day, and whose agents wait for their project's budget.

use crate::error::{Error, Result};
use crate::sql::{Tx, first, text};
use atoll_core::budget::{Budget, Day, Held, Period};
use atoll_core::id::{ProjectId, SandboxId};

pub async fn add_cost(tx: &mut dyn Tx, project: ProjectId, day: Day, cost_micros: i64) -> Result<()> {
    let sql = "INSERT INTO project_costs (project_id, day, cost_micros) VALUES (?1, ?2, ?3)
               ON CONFLICT (project_id, day)
               DO UPDATE SET cost_micros = project_costs.cost_micros + excluded.cost_micros";
    tx.execute(sql, &[text(project), day.into(), cost_micros.into()]).await.map(drop)
}

/// From the first day of a period on: what a clock that was set back has written later counts, too.
pub async fn spent(tx: &mut dyn Tx, project: ProjectId, period: &Period) -> Result<i64> {
    let sql = "SELECT CAST(COALESCE(SUM(cost_micros), 0) AS BIGINT) FROM project_costs
               WHERE project_id = ?1 AND day >= ?2";
    let rows = tx.query(sql, &[text(project), period.first.unwrap_or(Day::MIN).into()]).await?;
    first(rows).ok_or_else(|| Error::internal("no sum"))?.int()
}

/// Notes what a sandbox's agent is held back by.
pub async fn hold(tx: &mut dyn Tx, sandbox: SandboxId, held: &Held) -> Result<()> {
    let sql = "INSERT INTO budget_holds (sandbox_id, held) VALUES (?1, ?2)
               ON CONFLICT (sandbox_id) DO UPDATE SET held = excluded.held";
    let written = serde_json::to_string(held).map_err(Error::internal)?;
    tx.execute(sql, &[text(sandbox), written.into()]).await.map(drop)
}

pub async fn held(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Option<Held>> {
    let rows = tx.query("SELECT held FROM budget_holds WHERE sandbox_id = ?1", &[text(sandbox)]).await?;
    first(rows).map(|mut row| row.json()).transpose()
}

pub async fn release(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<()> {
    tx.execute("DELETE FROM budget_holds WHERE sandbox_id = ?1", &[text(sandbox)]).await.map(drop)
}

/// One that is held back, or was.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    pub sandbox: SandboxId,
    pub held: Held,
    /// Whether it still stands in the sandbox.
    pub is_held: bool,
    /// The project's budget now.
    pub budget: Option<Budget>,
}

/// All that are held back, oldest first; nobody keeps thousands of paused agents.
pub async fn waiting(tx: &mut dyn Tx) -> Result<Vec<Waiting>> {
    let sql = "SELECT h.sandbox_id, h.held,
               CASE WHEN s.limit_paused = 'project_budget' THEN 1 ELSE 0 END, p.budget
               FROM budget_holds h JOIN sandboxes s ON s.id = h.sandbox_id JOIN projects p ON p.id = s.project_id
               ORDER BY h.sandbox_id";
    let rows = tx.query(sql, &[]).await?;
    let waiting = rows.into_iter().map(|mut row| {
        Ok(Waiting { sandbox: row.parse()?, held: row.json()?, is_held: row.flag()?, budget: row.opt_json()? })
    });
    waiting.collect()
}
