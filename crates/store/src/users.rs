//! People.

use crate::error::{Error, Result};
use crate::sql::{Row, Tx, first, micros, text};
use atoll_core::id::UserId;
use atoll_core::principal::Role;
use atoll_core::time::Timestamp;
use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct User {
    pub id: UserId,
    pub name: String,
    pub role: Role,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

fn user(mut row: Row) -> Result<User> {
    Ok(User {
        id: row.parse()?,
        name: row.text()?,
        role: row.parse()?,
        created_at: row.time()?,
        updated_at: row.time()?,
    })
}

fn taken(error: Error, name: &str) -> Error {
    match error {
        Error::Taken { .. } => Error::Taken { what: format!("a user named `{name}`") },
        other => other,
    }
}

pub async fn insert(tx: &mut dyn Tx, u: &User) -> Result<()> {
    let sql = "INSERT INTO users (id, name, role, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5)";
    let params = [text(u.id), (&u.name).into(), text(u.role), micros(u.created_at), micros(u.updated_at)];
    tx.execute(sql, &params).await.map(drop).map_err(|error| taken(error, &u.name))
}

pub async fn update(tx: &mut dyn Tx, u: &User) -> Result<()> {
    let sql = "UPDATE users SET name = ?2, role = ?3, updated_at = ?4 WHERE id = ?1";
    let params = [text(u.id), (&u.name).into(), text(u.role), micros(u.updated_at)];
    tx.execute(sql, &params).await.map(drop).map_err(|error| taken(error, &u.name))
}

pub async fn get(tx: &mut dyn Tx, id: UserId) -> Result<Option<User>> {
    let sql = "SELECT id, name, role, created_at, updated_at FROM users WHERE id = ?1";
    first(tx.query(sql, &[text(id)]).await?).map(user).transpose()
}

pub async fn list(tx: &mut dyn Tx, after: Option<&str>, limit: i64) -> Result<Vec<User>> {
    let sql = "SELECT id, name, role, created_at, updated_at FROM users WHERE id > ?1 ORDER BY id LIMIT ?2";
    let rows = tx.query(sql, &[after.unwrap_or("").into(), limit.into()]).await?;
    rows.into_iter().map(user).collect()
}

pub async fn admins(tx: &mut dyn Tx) -> Result<i64> {
    let rows = tx.query("SELECT COUNT(*) FROM users WHERE role = ?1", &[text(Role::Admin)]).await?;
    first(rows).ok_or_else(|| Error::internal("no count"))?.int()
}

pub async fn delete(tx: &mut dyn Tx, id: UserId) -> Result<()> {
    tx.execute("DELETE FROM users WHERE id = ?1", &[text(id)]).await?;
    Ok(())
}
