//! Answers kept under a caller's key, in the same transaction as what they answer for: the same
//! request twice is done once.

use crate::error::{Error, Result};
use crate::sql::{Tx, first, micros};
use atoll_core::time::Timestamp;

/// Who asked for what, under which key, with which body.
#[derive(Debug, Clone)]
pub struct Claim {
    pub principal: String,
    pub route: String,
    pub key: String,
    pub body_hash: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    New,
    /// The same request: its answer.
    Replay {
        status: i64,
        answer: String,
    },
    /// The key was used for something else.
    OtherBody,
}

/// Takes the key for the transaction, or finds what was done under it. A second caller with the
/// same key waits here until the first one's transaction has ended.
pub async fn claim(tx: &mut dyn Tx, claim: &Claim, now: Timestamp, not_before: Timestamp) -> Result<Found> {
    let forget_old = "DELETE FROM idempotency WHERE principal = ?1 AND route = ?2 AND key = ?3 AND created_at < ?4";
    let who = [(&claim.principal).into(), (&claim.route).into(), (&claim.key).into(), micros(not_before)];
    tx.execute(forget_old, &who).await?;
    let take = "INSERT INTO idempotency (principal, route, key, body_hash, status, answer, created_at)
                VALUES (?1, ?2, ?3, ?4, 0, '', ?5) ON CONFLICT DO NOTHING";
    let params =
        [(&claim.principal).into(), (&claim.route).into(), (&claim.key).into(), (&claim.body_hash).into(), micros(now)];
    if tx.execute(take, &params).await? == 1 {
        return Ok(Found::New);
    }
    match find(tx, claim, not_before).await? {
        Found::New => Err(Error::Conflict { what: "Idempotency-Key" }),
        found => Ok(found),
    }
}

/// What was done under the key, without taking it.
pub async fn find(tx: &mut dyn Tx, claim: &Claim, not_before: Timestamp) -> Result<Found> {
    let sql = "SELECT body_hash, status, answer FROM idempotency
               WHERE principal = ?1 AND route = ?2 AND key = ?3 AND created_at >= ?4";
    let who = [(&claim.principal).into(), (&claim.route).into(), (&claim.key).into(), micros(not_before)];
    let Some(mut row) = first(tx.query(sql, &who).await?) else { return Ok(Found::New) };
    let (hash, status, answer) = (row.text()?, row.int()?, row.text()?);
    Ok(if hash == claim.body_hash { Found::Replay { status, answer } } else { Found::OtherBody })
}

/// Keeps the answer under the claimed key.
pub async fn keep(tx: &mut dyn Tx, claim: &Claim, status: i64, answer: &str) -> Result<()> {
    let sql = "UPDATE idempotency SET status = ?4, answer = ?5 WHERE principal = ?1 AND route = ?2 AND key = ?3";
    let params = [(&claim.principal).into(), (&claim.route).into(), (&claim.key).into(), status.into(), answer.into()];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn forget(tx: &mut dyn Tx, before: Timestamp) -> Result<u64> {
    let sql = "DELETE FROM idempotency WHERE created_at < ?1";
    tx.execute(sql, &[micros(before)]).await
}
