//! Secrets: sealed values, and what each may be used for. Nothing here can open one.

use crate::error::{Error, Result};
use crate::projects::Among;
use crate::sql::{Row, Tx, first, micros, opt_text, text};
use atoll_core::id::{ProjectId, SecretId};
use atoll_core::secret::Exposure;
use atoll_core::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    pub id: SecretId,
    /// `None`: the deployment's, for every project.
    pub project_id: Option<ProjectId>,
    pub name: String,
    pub sealed: String,
    pub key_id: String,
    /// Hosts that the value may be sent to.
    pub upstreams: Vec<String>,
    /// What it is inside a sandbox, if it is wanted there.
    pub expose: Option<Exposure>,
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

fn secret(mut row: Row) -> Result<Secret> {
    Ok(Secret {
        id: row.parse()?,
        project_id: row.opt_parse()?,
        name: row.text()?,
        sealed: row.text()?,
        key_id: row.text()?,
        upstreams: row.json()?,
        expose: exposure(row.opt_text()?, row.opt_text()?),
        created_by: row.opt_text()?,
        created_at: row.time()?,
        updated_at: row.time()?,
    })
}

fn exposure(variable: Option<String>, file: Option<String>) -> Option<Exposure> {
    // Nothing writes both; and a file that somebody adds to a row keeps it from being opened.
    file.map(Exposure::File).or_else(|| variable.map(Exposure::Variable))
}

/// The two columns.
fn written(exposure: Option<&Exposure>) -> (Option<&str>, Option<&str>) {
    match exposure {
        None => (None, None),
        Some(Exposure::Variable(name)) => (Some(name), None),
        Some(Exposure::File(path)) => (None, Some(path)),
    }
}

/// As the index has it.
fn scope<'a>(project: Option<ProjectId>) -> crate::sql::Val<'a> {
    project.map(|id| id.to_string()).unwrap_or_default().into()
}

fn upstreams(secret: &Secret) -> Result<String> {
    serde_json::to_string(&secret.upstreams).map_err(Error::internal)
}

/// The one of exactly this project, or of the deployment.
pub async fn get(tx: &mut dyn Tx, project: Option<ProjectId>, name: &str) -> Result<Option<Secret>> {
    let sql = "SELECT id, project_id, name, sealed, key_id, upstreams, expose, expose_file, created_by, created_at,
                      updated_at
               FROM secrets WHERE COALESCE(project_id, '') = ?1 AND name = ?2";
    first(tx.query(sql, &[scope(project), name.into()]).await?).map(secret).transpose()
}

/// The one that a project's sandboxes know by this name: its own, else the deployment's.
pub async fn find(tx: &mut dyn Tx, project: ProjectId, name: &str) -> Result<Option<Secret>> {
    match get(tx, Some(project), name).await? {
        Some(own) => Ok(Some(own)),
        None => get(tx, None, name).await,
    }
}

/// Holds up others who want to change the secrets of the same project; of the deployment: all of them.
pub async fn lock(tx: &mut dyn Tx, project: Option<ProjectId>) -> Result<()> {
    match project {
        Some(id) => tx.lock("SELECT id FROM projects WHERE id = ?1", &[text(id)]).await.map(drop),
        None => tx.lock("SELECT key FROM meta WHERE key = 'deployment'", &[]).await.map(drop),
    }
}

pub async fn count(tx: &mut dyn Tx, project: Option<ProjectId>) -> Result<i64> {
    let sql = "SELECT COUNT(*) FROM secrets WHERE COALESCE(project_id, '') = ?1";
    first(tx.query(sql, &[scope(project)]).await?).ok_or_else(|| Error::internal("no count"))?.int()
}

pub async fn insert(tx: &mut dyn Tx, new: &Secret) -> Result<()> {
    let sql = "INSERT INTO secrets
               (id, project_id, name, sealed, key_id, upstreams, expose, expose_file, created_by, created_at, updated_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
    let (variable, file) = written(new.expose.as_ref());
    let params = [
        text(new.id),
        opt_text(new.project_id),
        (&new.name).into(),
        (&new.sealed).into(),
        (&new.key_id).into(),
        upstreams(new)?.into(),
        variable.into(),
        file.into(),
        new.created_by.as_deref().into(),
        micros(new.created_at),
        micros(new.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

/// Everything but whose it is, its name and who made it.
pub async fn update(tx: &mut dyn Tx, changed: &Secret) -> Result<()> {
    let sql =
        "UPDATE secrets SET sealed = ?2, key_id = ?3, upstreams = ?4, expose = ?5, expose_file = ?6, updated_at = ?7
               WHERE id = ?1";
    let (variable, file) = written(changed.expose.as_ref());
    let params = [
        text(changed.id),
        (&changed.sealed).into(),
        (&changed.key_id).into(),
        upstreams(changed)?.into(),
        variable.into(),
        file.into(),
        micros(changed.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn delete(tx: &mut dyn Tx, id: SecretId) -> Result<bool> {
    Ok(tx.execute("DELETE FROM secrets WHERE id = ?1", &[text(id)]).await? > 0)
}

/// Those of the projects and the deployment's, in the order of their making; with `project` those that it can use.
pub async fn list(
    tx: &mut dyn Tx,
    among: &Among,
    project: Option<ProjectId>,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<Secret>> {
    let sql = "SELECT id, project_id, name, sealed, key_id, upstreams, expose, expose_file, created_by, created_at,
                      updated_at
               FROM secrets WHERE id > ?1 AND (project_id IS NULL OR (?2 = '' OR ?2 LIKE '%' || project_id || '%'))
               AND (?3 = '' OR project_id IS NULL OR project_id = ?3) ORDER BY id LIMIT ?4";
    let rows = tx.query(sql, &[after.unwrap_or("").into(), among.val(), scope(project), limit.into()]).await?;
    rows.into_iter().map(secret).collect()
}

const PAGE: &str =
    "SELECT id, project_id, name, sealed, key_id, upstreams, expose, expose_file, created_by, created_at,
                      updated_at
                    FROM secrets WHERE id > ?1 ORDER BY id LIMIT ?2";

/// All there are, a page at a time.
pub async fn page(tx: &mut dyn Tx, after: Option<SecretId>, limit: i64) -> Result<Vec<Secret>> {
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    tx.query(PAGE, &[after.into(), limit.into()]).await?.into_iter().map(secret).collect()
}

/// The same, and nobody else changes them meanwhile.
pub async fn page_locked(tx: &mut dyn Tx, after: Option<SecretId>, limit: i64) -> Result<Vec<Secret>> {
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    tx.lock(PAGE, &[after.into(), limit.into()]).await?.into_iter().map(secret).collect()
}
