//! The inbox of a session.

use crate::error::Result;
use crate::sql::{Row, SqlParam, Tx, first_row, opt_text_param, opt_time_param, text_param, time_param};
use atoll_core::id::{LeaseId, MessageId, SessionId};
use atoll_core::inbox::{DeliveryState, Lease};
use atoll_core::message::{Delivery, MessageState, MessageType};
use atoll_core::sandbox::TurnState;
use atoll_core::time::Timestamp;
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq)]
pub struct MessageRow {
    pub id: MessageId,
    pub session_id: SessionId,
    pub position: i64,
    pub message_type: MessageType,
    pub delivery: Delivery,
    pub content: String,
    pub sender: Option<String>,
    pub delivery_status: DeliveryState,
    pub reason: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, session_id, position, type, delivery, content, sender, state, lease, lease_stream,
             lease_until, how, turn, reason, created_at, updated_at FROM messages ",
            $rest
        )
    };
}

fn message_from_row(mut row: Row) -> Result<MessageRow> {
    let id = row.parse("id")?;
    let session_id = row.parse("session_id")?;
    let position = row.int("position")?;
    let message_type = row.parse("type")?;
    let delivery = row.parse("delivery")?;
    let content = row.take_text("content")?;
    let sender = row.opt_text("sender")?;
    let state = row.parse("state")?;
    let lease: (Option<LeaseId>, Option<Uuid>, Option<Timestamp>) =
        (row.opt_parse("lease")?, row.opt_parse("lease_stream")?, row.opt_time("lease_until")?);
    let lease = match lease {
        (Some(id), Some(stream), Some(until)) => Some(Lease { id, stream, expires_at: until }),
        _ => None,
    };
    let standing = DeliveryState { state, lease, delivery_method: row.opt_parse("how")?, turn: row.opt_int("turn")? };
    Ok(MessageRow {
        id,
        session_id,
        position,
        message_type,
        delivery,
        content,
        sender,
        delivery_status: standing,
        reason: row.opt_text("reason")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}

pub async fn insert_message(tx: &mut dyn Tx, m: &MessageRow) -> Result<()> {
    let sql = "INSERT INTO messages
               (id, session_id, position, type, delivery, content, sender, state, created_at, updated_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let params = [
        text_param(m.id),
        text_param(m.session_id),
        m.position.into(),
        text_param(m.message_type),
        text_param(m.delivery),
        (&m.content).into(),
        m.sender.as_deref().into(),
        text_param(m.delivery_status.state),
        time_param(m.created_at),
        time_param(m.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn update_message(tx: &mut dyn Tx, m: &MessageRow) -> Result<()> {
    let sql = "UPDATE messages SET delivery = ?2, content = ?3, state = ?4, lease = ?5, lease_stream = ?6,
               lease_until = ?7, how = ?8, turn = ?9, reason = ?10, updated_at = ?11 WHERE id = ?1";
    let lease = m.delivery_status.lease;
    let params = [
        text_param(m.id),
        text_param(m.delivery),
        (&m.content).into(),
        text_param(m.delivery_status.state),
        opt_text_param(lease.map(|lease| lease.id)),
        opt_text_param(lease.map(|lease| lease.stream)),
        opt_time_param(lease.map(|lease| lease.expires_at)),
        opt_text_param(m.delivery_status.delivery_method),
        m.delivery_status.turn.into(),
        m.reason.as_deref().into(),
        time_param(m.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn find_message(tx: &mut dyn Tx, session: SessionId, id: MessageId) -> Result<Option<MessageRow>> {
    let sql = select!("WHERE id = ?1 AND session_id = ?2");
    first_row(tx.query(sql, &[text_param(id), text_param(session)]).await?).map(message_from_row).transpose()
}

pub async fn find_message_by_lease(tx: &mut dyn Tx, session: SessionId, lease: LeaseId) -> Result<Option<MessageRow>> {
    let sql = select!("WHERE lease = ?1 AND session_id = ?2");
    first_row(tx.query(sql, &[text_param(lease), text_param(session)]).await?).map(message_from_row).transpose()
}

/// Lists messages by position, from after `after`.
pub async fn list_messages(
    tx: &mut dyn Tx,
    session: SessionId,
    state: Option<MessageState>,
    after: i64,
    limit: i64,
) -> Result<Vec<MessageRow>> {
    let sql = select!("WHERE session_id = ?1 AND position > ?2 AND (?3 = '' OR state = ?3) ORDER BY position LIMIT ?4");
    let state = state.map(MessageState::as_str).unwrap_or_default();
    let params: [SqlParam<'_>; 4] = [text_param(session), after.into(), state.into(), limit.into()];
    tx.query(sql, &params).await?.into_iter().map(message_from_row).collect()
}

/// Returns messages that a worker can lease at `now`: interrupts first, then by position. During a turn, messages with
/// `queue` delivery stay in the inbox and can still be changed.
pub async fn list_leasable_messages(
    tx: &mut dyn Tx,
    session: SessionId,
    turn: TurnState,
    now: Timestamp,
    limit: i64,
) -> Result<Vec<MessageRow>> {
    let sql = select!(
        "WHERE session_id = ?1 AND (state = 'queued' OR (state = 'leased' AND lease_until <= ?2))
         AND (?3 = 0 OR type = 'interrupt' OR delivery <> 'queue')
         ORDER BY CASE WHEN type = 'interrupt' THEN 0 ELSE 1 END, position LIMIT ?4"
    );
    let in_turn = turn == TurnState::Open;
    let params = [text_param(session), time_param(now), in_turn.into(), limit.into()];
    tx.query(sql, &params).await?.into_iter().map(message_from_row).collect()
}

/// Lists queued and leased messages.
pub async fn list_open_messages(tx: &mut dyn Tx, session: SessionId) -> Result<Vec<MessageRow>> {
    let sql = select!("WHERE session_id = ?1 AND state IN ('queued', 'leased') ORDER BY position");
    tx.query(sql, &[text_param(session)]).await?.into_iter().map(message_from_row).collect()
}

/// Returns true if any message is queued or leased.
pub async fn has_open_messages(tx: &mut dyn Tx, session: SessionId) -> Result<bool> {
    let sql = "SELECT 1 FROM messages WHERE session_id = ?1 AND state IN ('queued', 'leased') LIMIT 1";
    Ok(!tx.query(sql, &[text_param(session)]).await?.is_empty())
}

/// Reorders messages: permutes the positions that they already have.
pub async fn reorder_messages(tx: &mut dyn Tx, places: &[(MessageId, i64)]) -> Result<()> {
    // Positions are unique: use negative ones temporarily.
    for (id, position) in places {
        tx.execute(SET_POSITION, &[text_param(*id), (-1 - position).into()]).await?;
    }
    for (id, position) in places {
        tx.execute(SET_POSITION, &[text_param(*id), (*position).into()]).await?;
    }
    Ok(())
}

const SET_POSITION: &str = "UPDATE messages SET position = ?2 WHERE id = ?1";

/// Counts the waiting messages of each live sandbox's session that has any.
pub async fn count_waiting_by_session(tx: &mut dyn Tx) -> Result<Vec<(SessionId, u32)>> {
    let sql = "SELECT m.session_id, COUNT(*) AS count FROM sandboxes s JOIN messages m ON m.session_id = s.session_id
               WHERE s.state IN ('pending', 'creating', 'running', 'completing') AND m.state IN ('queued', 'leased')
               GROUP BY m.session_id";
    let rows = tx.query(sql, &[]).await?.into_iter();
    rows.map(|row| Ok((row.parse("session_id")?, u32::try_from(row.int("count")?).unwrap_or(u32::MAX)))).collect()
}

/// Counts the queued and the leased messages of live sandboxes.
pub async fn count_waiting_messages(tx: &mut dyn Tx) -> Result<Vec<(MessageState, i64)>> {
    let sql = "SELECT m.state, COUNT(*) AS count FROM sandboxes s JOIN messages m ON m.session_id = s.session_id
               WHERE s.state IN ('pending', 'creating', 'running', 'completing') AND m.state IN ('queued', 'leased')
               GROUP BY m.state";
    let rows = tx.query(sql, &[]).await?;
    rows.into_iter().map(|row| Ok((row.parse("state")?, row.int("count")?))).collect()
}
