//! Projects and their members.

use crate::error::{Error, Result};
use crate::sql::{Row, Tx, first, micros, text};
use atoll_core::budget::Budget;
use atoll_core::id::{ProjectId, UserId};
use atoll_core::principal::Role;
use atoll_core::sandbox::Repo;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// What a project's sandboxes have unless they say otherwise, as JSON that the edge understands.
pub type Defaults = serde_json::Map<String, serde_json::Value>;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Project {
    pub id: ProjectId,
    pub name: String,
    pub is_default: bool,
    pub repo: Option<Repo>,
    pub defaults: Defaults,
    /// What it may spend on models.
    pub budget: Option<Budget>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

const SELECT: &str =
    "SELECT id, name, is_default, repo, defaults, budget, created_at, updated_at FROM projects WHERE id = ?1";

fn project(mut row: Row) -> Result<Project> {
    Ok(Project {
        id: row.parse()?,
        name: row.text()?,
        is_default: row.flag()?,
        repo: row.opt_json()?,
        defaults: row.json()?,
        budget: row.opt_json()?,
        created_at: row.time()?,
        updated_at: row.time()?,
    })
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(Error::internal)
}

fn taken(error: Error, name: &str) -> Error {
    match error {
        Error::Taken { .. } => Error::Taken { what: format!("a project named `{name}`") },
        other => other,
    }
}

pub async fn insert(tx: &mut dyn Tx, p: &Project) -> Result<()> {
    let (repo, budget) = (p.repo.as_ref().map(json).transpose()?, p.budget.as_ref().map(json).transpose()?);
    let params = [
        text(p.id),
        (&p.name).into(),
        p.is_default.into(),
        repo.as_deref().into(),
        json(&p.defaults)?.into(),
        budget.as_deref().into(),
        micros(p.created_at),
        micros(p.updated_at),
    ];
    let inserted = tx
        .execute(
            "INSERT INTO projects (id, name, is_default, repo, defaults, budget, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            &params,
        )
        .await;
    inserted.map(drop).map_err(|error| taken(error, &p.name))
}

pub async fn update(tx: &mut dyn Tx, p: &Project) -> Result<()> {
    let (repo, budget) = (p.repo.as_ref().map(json).transpose()?, p.budget.as_ref().map(json).transpose()?);
    let params = [
        text(p.id),
        (&p.name).into(),
        repo.as_deref().into(),
        json(&p.defaults)?.into(),
        budget.as_deref().into(),
        micros(p.updated_at),
    ];
    let updated = tx
        .execute(
            "UPDATE projects SET name = ?2, repo = ?3, defaults = ?4, budget = ?5, updated_at = ?6 WHERE id = ?1",
            &params,
        )
        .await;
    updated.map(drop).map_err(|error| taken(error, &p.name))
}

pub async fn get(tx: &mut dyn Tx, id: ProjectId) -> Result<Option<Project>> {
    let rows = tx.query(SELECT, &[text(id)]).await?;
    first(rows).map(project).transpose()
}

pub async fn the_default(tx: &mut dyn Tx) -> Result<Option<Project>> {
    let sql = "SELECT id, name, is_default, repo, defaults, budget, created_at, updated_at FROM projects WHERE is_default = 1";
    first(tx.query(sql, &[]).await?).map(project).transpose()
}

/// The projects that a list is narrowed to, as one text that holds their ids: both databases can
/// look for a row's project in it without a statement of its own for every number of projects.
#[derive(Debug, Clone, Default)]
pub struct Among(String);

impl Among {
    pub fn all() -> Self {
        Self(String::new())
    }

    pub fn these(projects: &[ProjectId]) -> Self {
        // Never empty, which would mean all.
        Self(projects.iter().fold("among:".to_owned(), |text, id| format!("{text} {id}")))
    }

    pub(crate) fn val(&self) -> crate::sql::Val<'_> {
        self.0.as_str().into()
    }
}

pub async fn list(tx: &mut dyn Tx, among: &Among, after: Option<&str>, limit: i64) -> Result<Vec<Project>> {
    let sql = "SELECT id, name, is_default, repo, defaults, budget, created_at, updated_at FROM projects
               WHERE id > ?1 AND (?2 = '' OR ?2 LIKE '%' || id || '%') ORDER BY id LIMIT ?3";
    let rows = tx.query(sql, &[after.unwrap_or("").into(), among.val(), limit.into()]).await?;
    rows.into_iter().map(project).collect()
}

/// False when something still belongs to it.
pub async fn delete(tx: &mut dyn Tx, id: ProjectId) -> Result<bool> {
    let used = tx.query("SELECT 1 FROM sessions WHERE project_id = ?1 LIMIT 1", &[text(id)]).await?;
    if !used.is_empty() {
        return Ok(false);
    }
    tx.execute("DELETE FROM projects WHERE id = ?1", &[text(id)]).await?;
    Ok(true)
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub user_id: UserId,
    pub role: Role,
}

pub async fn members(tx: &mut dyn Tx, id: ProjectId) -> Result<Vec<Member>> {
    let sql = "SELECT user_id, role FROM members WHERE project_id = ?1 ORDER BY user_id";
    let rows = tx.query(sql, &[text(id)]).await?;
    rows.into_iter().map(|mut row| Ok(Member { user_id: row.parse()?, role: row.parse()? })).collect()
}

pub async fn role_of(tx: &mut dyn Tx, id: ProjectId, user: UserId) -> Result<Option<Role>> {
    let sql = "SELECT role FROM members WHERE project_id = ?1 AND user_id = ?2";
    let rows = tx.query(sql, &[text(id), text(user)]).await?;
    first(rows).map(|mut row| row.parse()).transpose()
}

pub async fn set_member(tx: &mut dyn Tx, id: ProjectId, user: UserId, role: Role) -> Result<()> {
    let sql = "INSERT INTO members (project_id, user_id, role) VALUES (?1, ?2, ?3)
               ON CONFLICT (project_id, user_id) DO UPDATE SET role = excluded.role";
    tx.execute(sql, &[text(id), text(user), text(role)]).await?;
    Ok(())
}

pub async fn remove_member(tx: &mut dyn Tx, id: ProjectId, user: UserId) -> Result<bool> {
    let sql = "DELETE FROM members WHERE project_id = ?1 AND user_id = ?2";
    Ok(tx.execute(sql, &[text(id), text(user)]).await? > 0)
}

/// The projects that a user is a member of.
pub async fn of_user(tx: &mut dyn Tx, user: UserId) -> Result<Vec<(ProjectId, Role)>> {
    let rows = tx.query("SELECT project_id, role FROM members WHERE user_id = ?1", &[text(user)]).await?;
    rows.into_iter().map(|mut row| Ok((row.parse()?, row.parse()?))).collect()
}
