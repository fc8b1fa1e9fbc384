//! Projects, their members and budgets.

use crate::ModelUsage;
use atoll_core::budget::BudgetPeriod;
use atoll_core::id::{ProjectId, UserId};
use atoll_core::principal::Role;
use atoll_core::sandbox::Repo;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Fields of `POST /sandboxes` that a project sets for its sandboxes.
pub type ProjectDefaults = Map<String, Value>;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Project {
    pub id: ProjectId,
    pub name: String,
    pub is_default: bool,
    pub repo: Option<Repo>,
    /// Fields that its sandboxes have unless the request sets them.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub defaults: ProjectDefaults,
    /// Model budget of all its sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Model usage; only in responses about one project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<ModelUsage>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewProject {
    pub name: String,
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub repo: Option<Repo>,
    /// The fields of `POST /sandboxes`, for sandboxes whose request leaves them out.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub defaults: ProjectDefaults,
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub budget: Option<NewBudget>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeProject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub repo: Option<Repo>,
    /// Replaces all defaults. A variable's value `***`, as in a response, keeps the stored value.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub defaults: Option<ProjectDefaults>,
    /// `null` removes the budget.
    #[serde(default, deserialize_with = "deserialize_present_object")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<NewBudget>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Option<NewBudget>>,
}

/// Reads an object, `null`, or nothing.
fn deserialize_present_object<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<NewBudget>>, D::Error> {
    atoll_core::json::object(deserializer).map(Some)
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Member {
    pub user_id: UserId,
    pub role: Role,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetMember {
    pub role: Role,
}

/// The model budget of a project and its use so far.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Budget {
    /// In US dollars.
    pub usd: f64,
    pub per: BudgetPeriod,
    /// Spent in the current day or month, or in total; only in responses about one project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<f64>,
    /// Start of the current day or month.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// Start of the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// The model budget of a project.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewBudget {
    /// In US dollars, above 0.
    pub usd: f64,
    /// The period; by default the current one, or `month`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per: Option<BudgetPeriod>,
}
