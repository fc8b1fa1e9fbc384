//! Projects and their members.

use crate::error::{Error, Result};
use crate::sql::{Row, Tx, first_row, text_param, time_param};
use atoll_core::budget::Budget;
use atoll_core::id::{ProjectId, UserId};
use atoll_core::principal::Role;
use atoll_core::sandbox::Repo;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Default settings of a project's sandboxes, as JSON that the API layer interprets.
pub type DefaultsJson = serde_json::Map<String, serde_json::Value>;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProjectRow {
    pub id: ProjectId,
    pub name: String,
    pub is_default: bool,
    pub repo: Option<Repo>,
    pub defaults: DefaultsJson,
    /// Spending limit for models.
    pub budget: Option<Budget>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

const SELECT_BY_ID: &str =
    "SELECT id, name, is_default, repo, defaults, budget, created_at, updated_at FROM projects WHERE id = ?1";

fn project_from_row(row: Row) -> Result<ProjectRow> {
    Ok(ProjectRow {
        id: row.parse("id")?,
        name: row.text("name")?,
        is_default: row.bool("is_default")?,
        repo: row.opt_json("repo")?,
        defaults: row.json("defaults")?,
        budget: row.opt_json("budget")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}

fn to_json_text(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(Error::internal)
}

fn describe_duplicate_name(error: Error, name: &str) -> Error {
    match error {
        Error::AlreadyExists { .. } => Error::AlreadyExists { what: format!("a project named `{name}`") },
        other => other,
    }
}

pub async fn insert_project(tx: &mut dyn Tx, p: &ProjectRow) -> Result<()> {
    let (repo, budget) =
        (p.repo.as_ref().map(to_json_text).transpose()?, p.budget.as_ref().map(to_json_text).transpose()?);
    let params = [
        text_param(p.id),
        (&p.name).into(),
        p.is_default.into(),
        repo.as_deref().into(),
        to_json_text(&p.defaults)?.into(),
        budget.as_deref().into(),
        time_param(p.created_at),
        time_param(p.updated_at),
    ];
    let inserted = tx
        .execute(
            "INSERT INTO projects (id, name, is_default, repo, defaults, budget, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            &params,
        )
        .await;
    inserted.map(drop).map_err(|error| describe_duplicate_name(error, &p.name))
}

pub async fn update_project(tx: &mut dyn Tx, p: &ProjectRow) -> Result<()> {
    let (repo, budget) =
        (p.repo.as_ref().map(to_json_text).transpose()?, p.budget.as_ref().map(to_json_text).transpose()?);
    let params = [
        text_param(p.id),
        (&p.name).into(),
        repo.as_deref().into(),
        to_json_text(&p.defaults)?.into(),
        budget.as_deref().into(),
        time_param(p.updated_at),
    ];
    let updated = tx
        .execute(
            "UPDATE projects SET name = ?2, repo = ?3, defaults = ?4, budget = ?5, updated_at = ?6 WHERE id = ?1",
            &params,
        )
        .await;
    updated.map(drop).map_err(|error| describe_duplicate_name(error, &p.name))
}

pub async fn find_project(tx: &mut dyn Tx, id: ProjectId) -> Result<Option<ProjectRow>> {
    let rows = tx.query(SELECT_BY_ID, &[text_param(id)]).await?;
    first_row(rows).map(project_from_row).transpose()
}

pub async fn find_default_project(tx: &mut dyn Tx) -> Result<Option<ProjectRow>> {
    let sql = "SELECT id, name, is_default, repo, defaults, budget, created_at, updated_at FROM projects WHERE is_default = 1";
    first_row(tx.query(sql, &[]).await?).map(project_from_row).transpose()
}

/// Set of projects to filter a list by, as one text with their ids. Both databases can search it for a row's project,
/// so one statement serves any number of projects.
#[derive(Debug, Clone, Default)]
pub struct ProjectFilter(String);

impl ProjectFilter {
    pub fn all() -> Self {
        Self(String::new())
    }

    pub fn from_ids(projects: &[ProjectId]) -> Self {
        // Never empty: an empty text means all projects.
        Self(projects.iter().fold("among:".to_owned(), |text, id| format!("{text} {id}")))
    }

    pub(crate) fn as_param(&self) -> crate::sql::SqlParam<'_> {
        self.0.as_str().into()
    }
}

pub async fn list_projects(
    tx: &mut dyn Tx,
    among: &ProjectFilter,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<ProjectRow>> {
    let sql = "SELECT id, name, is_default, repo, defaults, budget, created_at, updated_at FROM projects
               WHERE id > ?1 AND (?2 = '' OR ?2 LIKE '%' || id || '%') ORDER BY id LIMIT ?3";
    let rows = tx.query(sql, &[after.unwrap_or("").into(), among.as_param(), limit.into()]).await?;
    rows.into_iter().map(project_from_row).collect()
}

/// Deletes a project. Returns false if it is still in use.
pub async fn delete_project(tx: &mut dyn Tx, id: ProjectId) -> Result<bool> {
    let used = tx.query("SELECT 1 FROM sessions WHERE project_id = ?1 LIMIT 1", &[text_param(id)]).await?;
    if !used.is_empty() || crate::tickets::has_tickets(tx, id).await? || crate::tasks::has_tasks(tx, id).await? {
        return Ok(false);
    }
    tx.execute("DELETE FROM projects WHERE id = ?1", &[text_param(id)]).await?;
    Ok(true)
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub user_id: UserId,
    pub role: Role,
}

pub async fn list_members(tx: &mut dyn Tx, id: ProjectId) -> Result<Vec<Member>> {
    let sql = "SELECT user_id, role FROM members WHERE project_id = ?1 ORDER BY user_id";
    let rows = tx.query(sql, &[text_param(id)]).await?;
    rows.into_iter().map(|row| Ok(Member { user_id: row.parse("user_id")?, role: row.parse("role")? })).collect()
}

pub async fn find_member_role(tx: &mut dyn Tx, id: ProjectId, user: UserId) -> Result<Option<Role>> {
    let sql = "SELECT role FROM members WHERE project_id = ?1 AND user_id = ?2";
    let rows = tx.query(sql, &[text_param(id), text_param(user)]).await?;
    first_row(rows).map(|row| row.parse("role")).transpose()
}

pub async fn set_member(tx: &mut dyn Tx, id: ProjectId, user: UserId, role: Role) -> Result<()> {
    let sql = "INSERT INTO members (project_id, user_id, role) VALUES (?1, ?2, ?3)
               ON CONFLICT (project_id, user_id) DO UPDATE SET role = excluded.role";
    tx.execute(sql, &[text_param(id), text_param(user), text_param(role)]).await?;
    Ok(())
}

pub async fn remove_member(tx: &mut dyn Tx, id: ProjectId, user: UserId) -> Result<bool> {
    let sql = "DELETE FROM members WHERE project_id = ?1 AND user_id = ?2";
    Ok(tx.execute(sql, &[text_param(id), text_param(user)]).await? > 0)
}

/// Returns the projects of a user, with the user's role.
pub async fn list_user_projects(tx: &mut dyn Tx, user: UserId) -> Result<Vec<(ProjectId, Role)>> {
    let rows = tx.query("SELECT project_id, role FROM members WHERE user_id = ?1", &[text_param(user)]).await?;
    rows.into_iter().map(|row| Ok((row.parse("project_id")?, row.parse("role")?))).collect()
}
