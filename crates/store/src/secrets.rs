//! Secrets: encrypted values and their permitted uses. This module cannot decrypt them.

use crate::error::{Error, Result};
use crate::projects::ProjectFilter;
use crate::sql::{Row, Tx, first_row, opt_text_param, text_param, time_param};
use atoll_core::id::{ProjectId, SecretId};
use atoll_core::secret::Exposure;
use atoll_core::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRow {
    pub id: SecretId,
    /// `None`: a secret of the deployment, for every project.
    pub project_id: Option<ProjectId>,
    pub name: String,
    pub sealed: String,
    pub key_id: String,
    /// Hosts that the value may be sent to.
    pub upstreams: Vec<String>,
    /// Form in which a sandbox gets the value, if exposed.
    pub expose: Option<Exposure>,
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

fn secret_from_row(row: Row) -> Result<SecretRow> {
    Ok(SecretRow {
        id: row.parse("id")?,
        project_id: row.opt_parse("project_id")?,
        name: row.text("name")?,
        sealed: row.text("sealed")?,
        key_id: row.text("key_id")?,
        upstreams: row.json("upstreams")?,
        expose: exposure_from_columns(row.opt_text("expose")?, row.opt_text("expose_file")?),
        created_by: row.opt_text("created_by")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}

fn exposure_from_columns(variable: Option<String>, file: Option<String>) -> Option<Exposure> {
    // Only one is ever set. If both are, prefer the file: a tampered row then fails to decrypt.
    file.map(Exposure::File).or_else(|| variable.map(Exposure::Variable))
}

/// Returns the values of the two columns.
fn exposure_columns(exposure: Option<&Exposure>) -> (Option<&str>, Option<&str>) {
    match exposure {
        None => (None, None),
        Some(Exposure::Variable(name)) => (Some(name), None),
        Some(Exposure::File(path)) => (None, Some(path)),
    }
}

/// Returns the scope as stored in the index.
fn scope_param<'a>(project: Option<ProjectId>) -> crate::sql::SqlParam<'a> {
    project.map(|id| id.to_string()).unwrap_or_default().into()
}

fn upstreams_to_json(secret: &SecretRow) -> Result<String> {
    serde_json::to_string(&secret.upstreams).map_err(Error::internal)
}

/// Returns the secret of exactly this project, or of the deployment.
pub async fn find_secret_in_scope(
    tx: &mut dyn Tx,
    project: Option<ProjectId>,
    name: &str,
) -> Result<Option<SecretRow>> {
    let sql = "SELECT id, project_id, name, sealed, key_id, upstreams, expose, expose_file, created_by, created_at,
                      updated_at
               FROM secrets WHERE COALESCE(project_id, '') = ?1 AND name = ?2";
    first_row(tx.query(sql, &[scope_param(project), name.into()]).await?).map(secret_from_row).transpose()
}

/// Returns the secret that a project's sandboxes know by this name: the project's own, or the deployment's.
pub async fn resolve_secret(tx: &mut dyn Tx, project: ProjectId, name: &str) -> Result<Option<SecretRow>> {
    match find_secret_in_scope(tx, Some(project), name).await? {
        Some(own) => Ok(Some(own)),
        None => find_secret_in_scope(tx, None, name).await,
    }
}

/// Locks the secrets of a project against concurrent changes; for the deployment: all secrets.
pub async fn lock_secrets(tx: &mut dyn Tx, project: Option<ProjectId>) -> Result<()> {
    match project {
        Some(id) => tx.query_for_update("SELECT id FROM projects WHERE id = ?1", &[text_param(id)]).await.map(drop),
        None => tx.query_for_update("SELECT key FROM meta WHERE key = 'deployment'", &[]).await.map(drop),
    }
}

pub async fn count_secrets(tx: &mut dyn Tx, project: Option<ProjectId>) -> Result<i64> {
    let sql = "SELECT COUNT(*) AS count FROM secrets WHERE COALESCE(project_id, '') = ?1";
    first_row(tx.query(sql, &[scope_param(project)]).await?).ok_or_else(|| Error::internal("no count"))?.int("count")
}

pub async fn insert_secret(tx: &mut dyn Tx, new: &SecretRow) -> Result<()> {
    let sql = "INSERT INTO secrets
               (id, project_id, name, sealed, key_id, upstreams, expose, expose_file, created_by, created_at, updated_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
    let (variable, file) = exposure_columns(new.expose.as_ref());
    let params = [
        text_param(new.id),
        opt_text_param(new.project_id),
        (&new.name).into(),
        (&new.sealed).into(),
        (&new.key_id).into(),
        upstreams_to_json(new)?.into(),
        variable.into(),
        file.into(),
        new.created_by.as_deref().into(),
        time_param(new.created_at),
        time_param(new.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

/// Updates everything except scope, name and creator.
pub async fn update_secret(tx: &mut dyn Tx, changed: &SecretRow) -> Result<()> {
    let sql =
        "UPDATE secrets SET sealed = ?2, key_id = ?3, upstreams = ?4, expose = ?5, expose_file = ?6, updated_at = ?7
               WHERE id = ?1";
    let (variable, file) = exposure_columns(changed.expose.as_ref());
    let params = [
        text_param(changed.id),
        (&changed.sealed).into(),
        (&changed.key_id).into(),
        upstreams_to_json(changed)?.into(),
        variable.into(),
        file.into(),
        time_param(changed.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn delete_secret(tx: &mut dyn Tx, id: SecretId) -> Result<bool> {
    Ok(tx.execute("DELETE FROM secrets WHERE id = ?1", &[text_param(id)]).await? > 0)
}

/// Lists the secrets of projects and deployment by creation; with `project`, those that it can use.
pub async fn list_secrets(
    tx: &mut dyn Tx,
    among: &ProjectFilter,
    project: Option<ProjectId>,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<SecretRow>> {
    let sql = "SELECT id, project_id, name, sealed, key_id, upstreams, expose, expose_file, created_by, created_at,
                      updated_at
               FROM secrets WHERE id > ?1 AND (project_id IS NULL OR (?2 = '' OR ?2 LIKE '%' || project_id || '%'))
               AND (?3 = '' OR project_id IS NULL OR project_id = ?3) ORDER BY id LIMIT ?4";
    let rows =
        tx.query(sql, &[after.unwrap_or("").into(), among.as_param(), scope_param(project), limit.into()]).await?;
    rows.into_iter().map(secret_from_row).collect()
}

const SELECT_PAGE: &str =
    "SELECT id, project_id, name, sealed, key_id, upstreams, expose, expose_file, created_by, created_at,
                      updated_at
                    FROM secrets WHERE id > ?1 ORDER BY id LIMIT ?2";

/// Lists all secrets, page by page.
pub async fn read_secret_page(tx: &mut dyn Tx, after: Option<SecretId>, limit: i64) -> Result<Vec<SecretRow>> {
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    tx.query(SELECT_PAGE, &[after.into(), limit.into()]).await?.into_iter().map(secret_from_row).collect()
}

/// Like `page`, and locks the rows.
pub async fn read_secret_page_for_update(
    tx: &mut dyn Tx,
    after: Option<SecretId>,
    limit: i64,
) -> Result<Vec<SecretRow>> {
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    tx.query_for_update(SELECT_PAGE, &[after.into(), limit.into()]).await?.into_iter().map(secret_from_row).collect()
}
