//! Sign-ins of the web page: only a hash of the cookie's secret is stored.

use crate::error::Result;
use crate::sql::{Row, Tx, first_row, opt_text_param, text_param, time_param};
use atoll_core::id::{SignInId, TokenId, UserId};
use atoll_core::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignInRow {
    pub id: SignInId,
    pub hash: String,
    /// The token that it was made with, whose rights it has.
    pub token: TokenId,
    pub user_agent: Option<String>,
    pub created_at: Timestamp,
    pub last_used_at: Timestamp,
    pub expires_at: Timestamp,
}

fn sign_in_from_row(row: Row) -> Result<SignInRow> {
    Ok(SignInRow {
        id: row.parse("id")?,
        hash: row.text("hash")?,
        token: row.parse("token_id")?,
        user_agent: row.opt_text("user_agent")?,
        created_at: row.time("created_at")?,
        last_used_at: row.time("last_used_at")?,
        expires_at: row.time("expires_at")?,
    })
}

pub async fn insert_sign_in(tx: &mut dyn Tx, s: &SignInRow) -> Result<()> {
    let sql = "INSERT INTO sign_ins (id, hash, token_id, user_agent, created_at, last_used_at, expires_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let params = [
        text_param(s.id),
        (&s.hash).into(),
        text_param(s.token),
        opt_text_param(s.user_agent.as_deref()),
        time_param(s.created_at),
        time_param(s.last_used_at),
        time_param(s.expires_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn find_sign_in(tx: &mut dyn Tx, id: SignInId) -> Result<Option<SignInRow>> {
    let sql = "SELECT id, hash, token_id, user_agent, created_at, last_used_at, expires_at FROM sign_ins WHERE id = ?1";
    first_row(tx.query(sql, &[text_param(id)]).await?).map(sign_in_from_row).transpose()
}

/// Lists the sign-ins of a user's tokens, or of one token if it belongs to no user. The oldest comes first.
pub async fn list_sign_ins(tx: &mut dyn Tx, user: Option<UserId>, token: TokenId) -> Result<Vec<SignInRow>> {
    let sql = "SELECT s.id, s.hash, s.token_id, s.user_agent, s.created_at, s.last_used_at, s.expires_at
               FROM sign_ins s JOIN tokens t ON t.id = s.token_id
               WHERE t.user_id = ?1 OR (?1 = '' AND t.id = ?2) ORDER BY s.id";
    let user = user.map(|id| id.to_string()).unwrap_or_default();
    let rows = tx.query(sql, &[user.into(), text_param(token)]).await?;
    rows.into_iter().map(sign_in_from_row).collect()
}

pub async fn record_use(tx: &mut dyn Tx, id: SignInId, now: Timestamp) -> Result<()> {
    let sql = "UPDATE sign_ins SET last_used_at = ?2 WHERE id = ?1";
    tx.execute(sql, &[text_param(id), time_param(now)]).await.map(drop)
}

pub async fn delete_sign_in(tx: &mut dyn Tx, id: SignInId) -> Result<bool> {
    Ok(tx.execute("DELETE FROM sign_ins WHERE id = ?1", &[text_param(id)]).await? > 0)
}

/// Deletes the sign-ins that have expired or were last used before `idle_since`.
pub async fn delete_ended_sign_ins(tx: &mut dyn Tx, now: Timestamp, idle_since: Timestamp) -> Result<u64> {
    let sql = "DELETE FROM sign_ins WHERE expires_at <= ?1 OR last_used_at <= ?2";
    tx.execute(sql, &[time_param(now), time_param(idle_since)]).await
}
