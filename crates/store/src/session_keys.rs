//! Session keys: names by which events of other systems find a session.

use crate::error::Result;
use crate::sql::{Tx, first_row, text_param, time_param};
use atoll_core::id::SessionId;
use atoll_core::time::Timestamp;

/// Gives a session a key. The newest session keeps it.
pub async fn set_session_key(tx: &mut dyn Tx, key: &str, session: SessionId, now: Timestamp) -> Result<()> {
    let sql = "INSERT INTO session_keys (key, session_id, created_at) VALUES (?1, ?2, ?3)
               ON CONFLICT (key) DO UPDATE SET session_id = excluded.session_id";
    tx.execute(sql, &[key.into(), text_param(session), time_param(now)]).await.map(drop)
}

pub async fn find_session_by_key(tx: &mut dyn Tx, key: &str) -> Result<Option<SessionId>> {
    let rows = tx.query("SELECT session_id FROM session_keys WHERE key = ?1", &[key.into()]).await?;
    first_row(rows).map(|row| row.parse("session_id")).transpose()
}

pub async fn list_session_keys(tx: &mut dyn Tx, session: SessionId) -> Result<Vec<String>> {
    let sql = "SELECT key FROM session_keys WHERE session_id = ?1 ORDER BY key";
    tx.query(sql, &[text_param(session)]).await?.into_iter().map(|row| row.text("key")).collect()
}
