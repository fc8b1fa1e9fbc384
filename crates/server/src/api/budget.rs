//! The budget of a project, as part of other answers and requests.

use super::sandboxes::dollars;
use crate::problem::Result;
use atoll_core::budget::{Budget, Per};
use atoll_core::id::ProjectId;
use atoll_core::time::Timestamp;
use atoll_store::{Tx, budgets};
use serde::{Deserialize, Serialize};

/// What a project may spend on models, and what it has spent.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Budget)]
pub struct BudgetView {
    /// In US dollars.
    usd: f64,
    per: Per,
    /// In the day, the month or the whole time; only where one project is asked for by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    spent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<f64>,
    /// When the day or the month began.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<Timestamp>,
    /// When the next one begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
}

impl From<Budget> for BudgetView {
    fn from(budget: Budget) -> Self {
        Self { usd: budget.usd, per: budget.per, spent: None, left: None, from: None, until: None }
    }
}

impl BudgetView {
    pub async fn of(
        tx: &mut dyn Tx,
        project: ProjectId,
        budget: Option<Budget>,
        now: Timestamp,
    ) -> Result<Option<Self>> {
        let Some(budget) = budget else { return Ok(None) };
        let period = budget.per.period(now);
        let spent = budgets::spent(tx, project, &period).await?;
        let left = budget.micros().saturating_sub(spent).max(0);
        Ok(Some(Self {
            spent: Some(dollars(spent)),
            left: Some(dollars(left)),
            from: period.from(),
            until: period.until(),
            ..budget.into()
        }))
    }
}

/// What a project may spend on models.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBudget {
    /// In US dollars, above 0.
    usd: f64,
    /// Absent: as it was, else `month`.
    per: Option<Per>,
}

impl NewBudget {
    pub fn checked(&self, before: Option<Budget>) -> Result<Budget> {
        let per = self.per.or(before.map(|budget| budget.per)).unwrap_or_default();
        let budget = Budget { usd: self.usd, per };
        budget.check("budget")?;
        Ok(budget)
    }
}
