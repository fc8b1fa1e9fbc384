//! Previews: links to a port of a sandbox. Only a hash of the link's token is stored.

use crate::error::{Error, Result};
use crate::sql::{Row, Tx, first_row, opt_text_param, text_param, time_param};
use atoll_core::id::{PreviewId, SandboxId, SignInId, TokenId};
use atoll_core::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewRow {
    pub id: PreviewId,
    pub sandbox: SandboxId,
    pub port: u16,
    pub hash: String,
    /// The token of its creator. The preview ends when the token loses access to the sandbox.
    pub token: TokenId,
    /// The sign-in of its creator, if the page created it.
    pub sign_in: Option<SignInId>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

fn preview_from_row(row: Row) -> Result<PreviewRow> {
    Ok(PreviewRow {
        id: row.parse("id")?,
        sandbox: row.parse("sandbox_id")?,
        port: u16::try_from(row.int("port")?).map_err(Error::internal)?,
        hash: row.text("hash")?,
        token: row.parse("token_id")?,
        sign_in: row.opt_parse("sign_in_id")?,
        created_at: row.time("created_at")?,
        expires_at: row.time("expires_at")?,
    })
}

pub async fn insert_preview(tx: &mut dyn Tx, p: &PreviewRow) -> Result<()> {
    let sql = "INSERT INTO previews (id, sandbox_id, port, hash, token_id, sign_in_id, created_at, expires_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let params = [
        text_param(p.id),
        text_param(p.sandbox),
        i64::from(p.port).into(),
        (&p.hash).into(),
        text_param(p.token),
        opt_text_param(p.sign_in),
        time_param(p.created_at),
        time_param(p.expires_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

/// Finds a preview by the hash of its token.
pub async fn find_by_hash(tx: &mut dyn Tx, hash: &str) -> Result<Option<PreviewRow>> {
    let sql = "SELECT id, sandbox_id, port, hash, token_id, sign_in_id, created_at, expires_at
               FROM previews WHERE hash = ?1";
    first_row(tx.query(sql, &[hash.into()]).await?).map(preview_from_row).transpose()
}

/// Lists the previews of a sandbox that have not expired, the oldest first.
pub async fn list_previews(tx: &mut dyn Tx, sandbox: SandboxId, now: Timestamp) -> Result<Vec<PreviewRow>> {
    let sql = "SELECT id, sandbox_id, port, hash, token_id, sign_in_id, created_at, expires_at
               FROM previews WHERE sandbox_id = ?1 AND expires_at > ?2 ORDER BY id";
    let rows = tx.query(sql, &[text_param(sandbox), time_param(now)]).await?;
    rows.into_iter().map(preview_from_row).collect()
}

pub async fn delete_preview(tx: &mut dyn Tx, id: PreviewId) -> Result<()> {
    tx.execute("DELETE FROM previews WHERE id = ?1", &[text_param(id)]).await.map(drop)
}

/// Deletes the previews that expired before this time.
pub async fn delete_expired_previews(tx: &mut dyn Tx, before: Timestamp) -> Result<u64> {
    tx.execute("DELETE FROM previews WHERE expires_at < ?1", &[time_param(before)]).await
}
