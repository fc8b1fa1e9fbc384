//! Users.

use crate::error::{Error, Result};
use crate::sql::{Row, Tx, first_row, text_param, time_param};
use atoll_core::id::UserId;
use atoll_core::principal::Role;
use atoll_core::time::Timestamp;
use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UserRow {
    pub id: UserId,
    pub name: String,
    pub role: Role,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

fn user_from_row(row: Row) -> Result<UserRow> {
    Ok(UserRow {
        id: row.parse("id")?,
        name: row.text("name")?,
        role: row.parse("role")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}

fn describe_duplicate_name(error: Error, name: &str) -> Error {
    match error {
        Error::AlreadyExists { .. } => Error::AlreadyExists { what: format!("a user named `{name}`") },
        other => other,
    }
}

pub async fn insert_user(tx: &mut dyn Tx, u: &UserRow) -> Result<()> {
    let sql = "INSERT INTO users (id, name, role, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5)";
    let params =
        [text_param(u.id), (&u.name).into(), text_param(u.role), time_param(u.created_at), time_param(u.updated_at)];
    tx.execute(sql, &params).await.map(drop).map_err(|error| describe_duplicate_name(error, &u.name))
}

pub async fn update_user(tx: &mut dyn Tx, u: &UserRow) -> Result<()> {
    let sql = "UPDATE users SET name = ?2, role = ?3, updated_at = ?4 WHERE id = ?1";
    let params = [text_param(u.id), (&u.name).into(), text_param(u.role), time_param(u.updated_at)];
    tx.execute(sql, &params).await.map(drop).map_err(|error| describe_duplicate_name(error, &u.name))
}

pub async fn find_user(tx: &mut dyn Tx, id: UserId) -> Result<Option<UserRow>> {
    let sql = "SELECT id, name, role, created_at, updated_at FROM users WHERE id = ?1";
    first_row(tx.query(sql, &[text_param(id)]).await?).map(user_from_row).transpose()
}

pub async fn list_users(tx: &mut dyn Tx, after: Option<&str>, limit: i64) -> Result<Vec<UserRow>> {
    let sql = "SELECT id, name, role, created_at, updated_at FROM users WHERE id > ?1 ORDER BY id LIMIT ?2";
    let rows = tx.query(sql, &[after.unwrap_or("").into(), limit.into()]).await?;
    rows.into_iter().map(user_from_row).collect()
}

pub async fn count_admins(tx: &mut dyn Tx) -> Result<i64> {
    let rows = tx.query("SELECT COUNT(*) AS count FROM users WHERE role = ?1", &[text_param(Role::Admin)]).await?;
    first_row(rows).ok_or_else(|| Error::internal("no count"))?.int("count")
}

pub async fn delete_user(tx: &mut dyn Tx, id: UserId) -> Result<()> {
    tx.execute("DELETE FROM users WHERE id = ?1", &[text_param(id)]).await?;
    Ok(())
}
