//! Responses stored under a caller's idempotency key, in the same transaction as the operation: a repeated request
//! runs once.

use crate::error::{Error, Result};
use crate::sql::{Tx, first_row, time_param};
use atoll_core::time::Timestamp;

/// The caller, operation, key and body of a request.
#[derive(Debug, Clone)]
pub struct IdempotencyClaim {
    pub principal: String,
    pub route: String,
    pub key: String,
    pub body_hash: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdempotencyLookup {
    New,
    /// The same request, with its stored response.
    Replay {
        status: i64,
        response_body: String,
    },
    /// The key was used for a different request.
    DifferentRequest,
}

/// Claims the key for the transaction, or returns the earlier response. A second caller with the same key waits until
/// the first one's transaction has ended.
pub async fn claim_key(
    tx: &mut dyn Tx,
    claim: &IdempotencyClaim,
    now: Timestamp,
    not_before: Timestamp,
) -> Result<IdempotencyLookup> {
    let forget_old = "DELETE FROM idempotency WHERE principal = ?1 AND route = ?2 AND key = ?3 AND created_at < ?4";
    let who = [(&claim.principal).into(), (&claim.route).into(), (&claim.key).into(), time_param(not_before)];
    tx.execute(forget_old, &who).await?;
    let take = "INSERT INTO idempotency (principal, route, key, body_hash, status, answer, created_at)
                VALUES (?1, ?2, ?3, ?4, 0, '', ?5) ON CONFLICT DO NOTHING";
    let params = [
        (&claim.principal).into(),
        (&claim.route).into(),
        (&claim.key).into(),
        (&claim.body_hash).into(),
        time_param(now),
    ];
    if tx.execute(take, &params).await? == 1 {
        return Ok(IdempotencyLookup::New);
    }
    match find_response(tx, claim, not_before).await? {
        IdempotencyLookup::New => Err(Error::Conflict { what: "Idempotency-Key" }),
        found => Ok(found),
    }
}

/// Returns the response stored under the key, without claiming it.
pub async fn find_response(
    tx: &mut dyn Tx,
    claim: &IdempotencyClaim,
    not_before: Timestamp,
) -> Result<IdempotencyLookup> {
    let sql = "SELECT body_hash, status, answer FROM idempotency
               WHERE principal = ?1 AND route = ?2 AND key = ?3 AND created_at >= ?4";
    let who = [(&claim.principal).into(), (&claim.route).into(), (&claim.key).into(), time_param(not_before)];
    let Some(row) = first_row(tx.query(sql, &who).await?) else { return Ok(IdempotencyLookup::New) };
    let (hash, status, answer) = (row.text("body_hash")?, row.int("status")?, row.text("answer")?);
    Ok(if hash == claim.body_hash {
        IdempotencyLookup::Replay { status, response_body: answer }
    } else {
        IdempotencyLookup::DifferentRequest
    })
}

/// Stores the response under the claimed key.
pub async fn store_response(tx: &mut dyn Tx, claim: &IdempotencyClaim, status: i64, answer: &str) -> Result<()> {
    let sql = "UPDATE idempotency SET status = ?4, answer = ?5 WHERE principal = ?1 AND route = ?2 AND key = ?3";
    let params = [(&claim.principal).into(), (&claim.route).into(), (&claim.key).into(), status.into(), answer.into()];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn delete_expired_keys(tx: &mut dyn Tx, before: Timestamp) -> Result<u64> {
    let sql = "DELETE FROM idempotency WHERE created_at < ?1";
    tx.execute(sql, &[time_param(before)]).await
}
