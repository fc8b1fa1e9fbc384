//! The inbox of a session.

use crate::error::Result;
use crate::sql::{Row, Tx, Val, first, micros, opt_micros, opt_text, text};
use atoll_core::id::{LeaseId, MessageId, SessionId};
use atoll_core::inbox::{Lease, Standing};
use atoll_core::message::{Delivery, MessageState, MessageType};
use atoll_core::sandbox::TurnState;
use atoll_core::time::Timestamp;
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub id: MessageId,
    pub session_id: SessionId,
    pub position: i64,
    pub message_type: MessageType,
    pub delivery: Delivery,
    pub content: String,
    pub sender: Option<String>,
    pub standing: Standing,
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

fn message(mut row: Row) -> Result<Message> {
    let id = row.parse()?;
    let session_id = row.parse()?;
    let position = row.int()?;
    let message_type = row.parse()?;
    let delivery = row.parse()?;
    let content = row.text()?;
    let sender = row.opt_text()?;
    let state = row.parse()?;
    let lease: (Option<LeaseId>, Option<Uuid>, Option<Timestamp>) =
        (row.opt_parse()?, row.opt_parse()?, row.opt_time()?);
    let lease = match lease {
        (Some(id), Some(stream), Some(until)) => Some(Lease { id, stream, until }),
        _ => None,
    };
    let standing = Standing { state, lease, how: row.opt_parse()?, turn: row.opt_int()? };
    Ok(Message {
        id,
        session_id,
        position,
        message_type,
        delivery,
        content,
        sender,
        standing,
        reason: row.opt_text()?,
        created_at: row.time()?,
        updated_at: row.time()?,
    })
}

pub async fn insert(tx: &mut dyn Tx, m: &Message) -> Result<()> {
    let sql = "INSERT INTO messages
               (id, session_id, position, type, delivery, content, sender, state, created_at, updated_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let params = [
        text(m.id),
        text(m.session_id),
        m.position.into(),
        text(m.message_type),
        text(m.delivery),
        (&m.content).into(),
        m.sender.as_deref().into(),
        text(m.standing.state),
        micros(m.created_at),
        micros(m.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn update(tx: &mut dyn Tx, m: &Message) -> Result<()> {
    let sql = "UPDATE messages SET delivery = ?2, content = ?3, state = ?4, lease = ?5, lease_stream = ?6,
               lease_until = ?7, how = ?8, turn = ?9, reason = ?10, updated_at = ?11 WHERE id = ?1";
    let lease = m.standing.lease;
    let params = [
        text(m.id),
        text(m.delivery),
        (&m.content).into(),
        text(m.standing.state),
        opt_text(lease.map(|lease| lease.id)),
        opt_text(lease.map(|lease| lease.stream)),
        opt_micros(lease.map(|lease| lease.until)),
        opt_text(m.standing.how),
        m.standing.turn.into(),
        m.reason.as_deref().into(),
        micros(m.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn get(tx: &mut dyn Tx, session: SessionId, id: MessageId) -> Result<Option<Message>> {
    let sql = select!("WHERE id = ?1 AND session_id = ?2");
    first(tx.query(sql, &[text(id), text(session)]).await?).map(message).transpose()
}

pub async fn by_lease(tx: &mut dyn Tx, session: SessionId, lease: LeaseId) -> Result<Option<Message>> {
    let sql = select!("WHERE lease = ?1 AND session_id = ?2");
    first(tx.query(sql, &[text(lease), text(session)]).await?).map(message).transpose()
}

/// In the order of positions, after `after`.
pub async fn list(
    tx: &mut dyn Tx,
    session: SessionId,
    state: Option<MessageState>,
    after: i64,
    limit: i64,
) -> Result<Vec<Message>> {
    let sql = select!("WHERE session_id = ?1 AND position > ?2 AND (?3 = '' OR state = ?3) ORDER BY position LIMIT ?4");
    let state = state.map(MessageState::as_str).unwrap_or_default();
    let params: [Val<'_>; 4] = [text(session), after.into(), state.into(), limit.into()];
    tx.query(sql, &params).await?.into_iter().map(message).collect()
}

/// What can be handed out at `now`: interrupts first, then by position. While the agent is in a
/// turn, what is to wait for its end is not handed out yet, and can still be changed.
pub async fn available(
    tx: &mut dyn Tx,
    session: SessionId,
    turn: TurnState,
    now: Timestamp,
    limit: i64,
) -> Result<Vec<Message>> {
    let sql = select!(
        "WHERE session_id = ?1 AND (state = 'queued' OR (state = 'leased' AND lease_until <= ?2))
         AND (?3 = 0 OR type = 'interrupt' OR delivery <> 'queue')
         ORDER BY CASE WHEN type = 'interrupt' THEN 0 ELSE 1 END, position LIMIT ?4"
    );
    let in_turn = turn == TurnState::Open;
    let params = [text(session), micros(now), in_turn.into(), limit.into()];
    tx.query(sql, &params).await?.into_iter().map(message).collect()
}

/// Messages in one of the two states that are not an end.
pub async fn open(tx: &mut dyn Tx, session: SessionId) -> Result<Vec<Message>> {
    let sql = select!("WHERE session_id = ?1 AND state IN ('queued', 'leased') ORDER BY position");
    tx.query(sql, &[text(session)]).await?.into_iter().map(message).collect()
}

/// Whether anything is queued or leased.
pub async fn any_open(tx: &mut dyn Tx, session: SessionId) -> Result<bool> {
    let sql = "SELECT 1 FROM messages WHERE session_id = ?1 AND state IN ('queued', 'leased') LIMIT 1";
    Ok(!tx.query(sql, &[text(session)]).await?.is_empty())
}

/// Gives messages new places; the places are those that the same messages had.
pub async fn place(tx: &mut dyn Tx, places: &[(MessageId, i64)]) -> Result<()> {
    // Places are unique: step aside into the negatives first.
    for (id, position) in places {
        tx.execute(PLACE, &[text(*id), (-1 - position).into()]).await?;
    }
    for (id, position) in places {
        tx.execute(PLACE, &[text(*id), (*position).into()]).await?;
    }
    Ok(())
}

const PLACE: &str = "UPDATE messages SET position = ?2 WHERE id = ?1";
