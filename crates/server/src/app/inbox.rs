//! The inbox: sending, leasing, acknowledging. `atoll_core::inbox::step` decides, this writes.

use super::{Work, continuous, fence, lifecycle};
use crate::problem::{Problem, Result};
use atoll_core::bounds;
use atoll_core::event::{NewEvent, Source, kind};
use atoll_core::id::{LeaseId, MessageId, SandboxId, SessionId};
use atoll_core::inbox::{Lease, Refused, Standing, Step, step};
use atoll_core::message::{Delivery, How, MessageState, MessageType};
use atoll_core::sandbox::{Activity, TurnState};
use atoll_protocol::{Ack, LeaseAnswer, LeaseRequest, LeasedMessage, Nack};
use atoll_store::messages::{self, Message};
use atoll_store::sandboxes::{self, Sandbox};
use atoll_store::sessions::{self, Session};
use serde_json::json;

/// How much of a message's words stands in the log.
const EXCERPT: usize = 2000;

/// What somebody wants to say.
#[derive(Debug, Clone)]
pub struct Draft {
    pub content: String,
    pub message_type: MessageType,
    pub delivery: Delivery,
    pub sender: Option<String>,
}

/// Takes a step of the pure rule; says whether anything changed.
pub fn advance(message: &mut Message, taken: Step, work: &Work<'_>) -> Result<bool, Refused> {
    let after = step(message.standing, taken, work.steady)?;
    let changed = after != message.standing;
    message.standing = after;
    if changed {
        message.updated_at = work.now;
    }
    Ok(changed)
}

fn said(event_type: &'static str, work: &Work<'_>, message: &Message) -> NewEvent {
    let data = json!({
        "message_id": message.id,
        "type": message.message_type,
        "delivery": message.delivery,
        "position": message.position,
        "content": lifecycle::bounded(&message.content, EXCERPT),
        "content_bytes": message.content.len(),
    });
    NewEvent::system(event_type, work.now, &data)
}

fn became(event_type: &'static str, work: &Work<'_>, message: &Message) -> NewEvent {
    let data = json!({
        "message_id": message.id,
        "state": message.standing.state,
        "how": message.standing.how,
        "reason": message.reason,
    });
    let mut event = NewEvent::system(event_type, work.now, &data);
    event.turn = message.standing.turn;
    event
}

/// The log that a session's news stand in: its live sandbox's, else its newest one's.
pub async fn home(work: &mut Work<'_>, session: &Session) -> Result<Option<Sandbox>> {
    match session.sandbox_id.or(session.last_sandbox_id) {
        Some(id) => Ok(sandboxes::get(work.tx, id).await?),
        None => Ok(None),
    }
}

async fn note(work: &mut Work<'_>, session: &Session, event: NewEvent) -> Result<()> {
    if let Some(mut sandbox) = home(work, session).await? {
        work.log(&mut sandbox, vec![event]).await?;
        sandboxes::update(work.tx, &mut sandbox).await?;
    }
    Ok(())
}

/// Puts a message into the inbox. The caller holds the session's lock and has checked the words' bound.
pub async fn queue(work: &mut Work<'_>, session: &mut Session, draft: Draft) -> Result<Message> {
    let message = Message {
        id: MessageId::new(),
        session_id: session.id,
        position: session.next_position,
        message_type: draft.message_type,
        delivery: draft.delivery,
        content: work.redacted(session.project_id, draft.content),
        sender: draft.sender.clone(),
        standing: Standing::QUEUED,
        reason: None,
        created_at: work.now,
        updated_at: work.now,
    };
    session.next_position += 1;
    session.updated_at = work.now;
    sessions::update(work.tx, session).await?;
    messages::insert(work.tx, &message).await?;
    let source = match (draft.message_type, draft.sender.as_deref()) {
        (_, Some(atoll_core::guardian::SENDER)) => Source::Guardian,
        (MessageType::System, _) | (_, Some(atoll_core::limit::SENDER)) => Source::System,
        (MessageType::UserMessage | MessageType::Interrupt | MessageType::GuardianNudge, _) => Source::User,
    };
    let event = said(kind::MESSAGE_QUEUED, work, &message).by(source, draft.sender);
    note(work, session, event).await?;
    if draft.message_type == MessageType::Interrupt
        && let Some(live) = session.sandbox_id
        && let Some(mut sandbox) = sandboxes::get(work.tx, live).await?
    {
        continuous::interrupted(work, &mut sandbox).await?;
    }
    work.out.inboxes.push(session.id);
    metrics::counter!(crate::metrics::MESSAGES_QUEUED).increment(1);
    Ok(message)
}

/// What may be changed of a queued message.
#[derive(Debug, Clone, Default)]
pub struct Edit {
    pub content: Option<String>,
    pub delivery: Option<Delivery>,
    /// Goes right before this one.
    pub before: Option<MessageId>,
}

pub async fn edit(
    work: &mut Work<'_>,
    session: &Session,
    id: MessageId,
    change: Edit,
    actor: String,
) -> Result<Message> {
    let mut message = find(work, session, id).await?;
    advance(&mut message, Step::Edit, work)?;
    if let Some(content) = change.content {
        // The prompt keeps its own, larger bound.
        let most = if message.position == 0 { bounds::PROMPT_BYTES } else { bounds::MESSAGE_BYTES };
        bounds::content("content", &content, most)?;
        message.content = work.redacted(session.project_id, content);
    }
    message.delivery = change.delivery.unwrap_or(message.delivery);
    message.updated_at = work.now;
    messages::update(work.tx, &message).await?;
    if let Some(before) = change.before {
        move_before(work, session, id, before).await?;
        message = find(work, session, id).await?;
    }
    let event = said(kind::MESSAGE_EDITED, work, &message).by(Source::User, Some(actor));
    note(work, session, event).await?;
    work.out.inboxes.push(session.id);
    Ok(message)
}

/// The queued messages take the places they had, in the new order.
async fn move_before(work: &mut Work<'_>, session: &Session, id: MessageId, before: MessageId) -> Result<()> {
    let mut queued = messages::open(work.tx, session.id).await?;
    queued.retain(|message| message.standing.state == MessageState::Queued);
    let places: Vec<i64> = queued.iter().map(|message| message.position).collect();
    let mut order: Vec<MessageId> = queued.iter().map(|message| message.id).filter(|other| *other != id).collect();
    let at = match order.iter().position(|other| *other == before) {
        Some(at) => at,
        None if before == id => return Ok(()),
        None => return Err(Problem::invalid("before: must name another queued message of this session")),
    };
    order.insert(at, id);
    let moved: Vec<(MessageId, i64)> = order.into_iter().zip(places).collect();
    Ok(messages::place(work.tx, &moved).await?)
}

pub async fn cancel(work: &mut Work<'_>, session: &mut Session, id: MessageId, actor: String) -> Result<Message> {
    let mut message = find(work, session, id).await?;
    advance(&mut message, Step::Cancel, work)?;
    messages::update(work.tx, &message).await?;
    let event = became(kind::MESSAGE_CANCELLED, work, &message).by(Source::User, Some(actor));
    note(work, session, event).await?;
    if let Some(mut sandbox) = home(work, session).await? {
        lifecycle::finish_if_done(work, session, &mut sandbox).await?;
    }
    Ok(message)
}

async fn find(work: &mut Work<'_>, session: &Session, id: MessageId) -> Result<Message> {
    messages::get(work.tx, session.id, id).await?.ok_or_else(|| Problem::not_found("message"))
}

/// Hands messages to a worker, and renews what it holds.
pub async fn lease(work: &mut Work<'_>, id: SandboxId, request: &LeaseRequest) -> Result<LeaseAnswer> {
    let (session, mut sandbox) = work.locked(id).await?;
    refuse_ended(&sandbox)?;
    let version = (sandbox.stream, sandbox.boot);
    fence::admit(work, &session, &mut sandbox, request.stream, request.boot).await?;
    if version != (sandbox.stream, sandbox.boot) {
        sandboxes::update(work.tx, &mut sandbox).await?;
    }
    let mut answer = LeaseAnswer::default();
    for lease in &request.renew {
        if !renew(work, &session, *lease).await? {
            answer.lost.push(*lease);
        }
    }
    if sandbox.state.takes_messages() {
        let most = i64::from(request.max).min(bounds::LEASES_AT_ONCE as i64);
        for message in messages::available(work.tx, session.id, sandbox.turn_state, work.steady, most).await? {
            answer.items.push(take(work, message, request.stream).await?);
        }
    } else {
        answer.state = Some(sandbox.state);
    }
    Ok(answer)
}

async fn renew(work: &mut Work<'_>, session: &Session, lease: LeaseId) -> Result<bool> {
    let Some(mut message) = messages::by_lease(work.tx, session.id, lease).await? else { return Ok(false) };
    let until = work.steady + work.policy.lease;
    if advance(&mut message, Step::Renew { lease, until }, work).is_err() {
        return Ok(false);
    }
    messages::update(work.tx, &message).await?;
    Ok(true)
}

async fn take(work: &mut Work<'_>, mut message: Message, stream: uuid::Uuid) -> Result<LeasedMessage> {
    let lease = Lease { id: LeaseId::new(), stream, until: work.steady + work.policy.lease };
    advance(&mut message, Step::Lease(lease), work)?;
    messages::update(work.tx, &message).await?;
    Ok(leased(message, lease))
}

fn leased(message: Message, lease: Lease) -> LeasedMessage {
    LeasedMessage {
        id: message.id,
        session_id: message.session_id,
        message_type: message.message_type,
        delivery: message.delivery,
        content: message.content,
        sender: message.sender,
        position: message.position,
        created_at: message.created_at,
        lease: lease.id,
        lease_until: lease.until,
    }
}

/// What a worker holds already: it may not have heard of all of it.
pub async fn held(tx: &mut dyn atoll_store::Tx, session: SessionId, stream: uuid::Uuid) -> Result<Vec<LeasedMessage>> {
    let open = messages::open(tx, session).await?;
    let held = open.into_iter().filter(|message| message.standing.held_by(stream).is_some());
    Ok(held.filter_map(|message| message.standing.lease.map(|lease| leased(message, lease))).collect())
}

/// The first message for a worker that starts: what it already holds, else the next in line.
pub async fn first_message(
    work: &mut Work<'_>,
    session: &Session,
    sandbox: &Sandbox,
    stream: uuid::Uuid,
) -> Result<Option<LeasedMessage>> {
    for message in messages::open(work.tx, session.id).await? {
        if let (MessageState::Leased, Some(lease)) = (message.standing.state, message.standing.lease)
            && lease.stream == stream
        {
            return Ok(Some(leased(message, lease)));
        }
    }
    let next = messages::available(work.tx, session.id, sandbox.turn_state, work.steady, 1).await?;
    match next.into_iter().next() {
        Some(message) => Ok(Some(take(work, message, stream).await?)),
        None => Ok(None),
    }
}

pub(super) fn refuse_ended(sandbox: &Sandbox) -> Result<()> {
    if sandbox.state.has_ended() { Err(Problem::unauthorized()) } else { Ok(()) }
}

/// The agent has it.
pub async fn ack(work: &mut Work<'_>, id: SandboxId, message: MessageId, ack: &Ack) -> Result<()> {
    let (mut session, mut sandbox) = work.locked(id).await?;
    refuse_ended(&sandbox)?;
    fence::admit(work, &session, &mut sandbox, ack.stream, None).await?;
    let mut message = find(work, &session, message).await?;
    let lease = message.standing.held_by(ack.stream).unwrap_or(ack.lease);
    if advance(&mut message, Step::Ack { lease, how: ack.how, turn: ack.turn }, work)? {
        messages::update(work.tx, &message).await?;
        turn_opened(&mut sandbox, ack);
        let event = became(kind::MESSAGE_ACKNOWLEDGED, work, &message);
        work.log(&mut sandbox, vec![event]).await?;
        metrics::counter!(crate::metrics::MESSAGES_ACKNOWLEDGED).increment(1);
    }
    sandboxes::update(work.tx, &mut sandbox).await?;
    lifecycle::finish_if_done(work, &mut session, &mut sandbox).await
}

/// A message that began a turn: the turn is open until the agent ends it.
fn turn_opened(sandbox: &mut Sandbox, ack: &Ack) {
    let begins = match (ack.how, ack.turn) {
        (_, Some(turn)) => sandbox.turn.is_none_or(|current| turn > current),
        (How::NewTurn | How::Restarted, None) => true,
        (How::Injected, None) => false,
    };
    if begins {
        sandbox.turn = ack.turn.or(sandbox.turn);
        sandbox.turn_state = TurnState::Open;
        if sandbox.activity == Activity::WaitingMessage {
            sandbox.activity = Activity::Working;
        }
    }
}

/// The agent does not have it, or nobody can say.
pub async fn nack(work: &mut Work<'_>, id: SandboxId, message: MessageId, nack: &Nack) -> Result<()> {
    let (mut session, mut sandbox) = work.locked(id).await?;
    refuse_ended(&sandbox)?;
    fence::admit(work, &session, &mut sandbox, nack.stream, None).await?;
    let mut message = find(work, &session, message).await?;
    // What is given back goes to somebody else next: only the lease itself says that it is still one's own.
    let gives_back = !nack.handed && nack.retry;
    let lease = message.standing.held_by(nack.stream).filter(|_| !gives_back).unwrap_or(nack.lease);
    let taken = Step::Nack { lease, handed: nack.handed, retry: nack.retry };
    if advance(&mut message, taken, work)? {
        let reason = work.redacted(sandbox.project_id, nack.reason.clone());
        message.reason = Some(lifecycle::bounded(&reason, 500)).filter(|reason| !reason.is_empty());
        messages::update(work.tx, &message).await?;
        match message.standing.state {
            MessageState::Undeliverable => {
                let event = became(kind::MESSAGE_UNDELIVERABLE, work, &message);
                work.log(&mut sandbox, vec![event]).await?;
            }
            MessageState::DeliveredUnconfirmed => {
                let event = became(kind::MESSAGE_UNCONFIRMED, work, &message);
                work.log(&mut sandbox, vec![event]).await?;
            }
            MessageState::Queued | MessageState::Leased | MessageState::Acknowledged | MessageState::Cancelled => {
                work.out.inboxes.push(session.id);
            }
        }
    }
    sandboxes::update(work.tx, &mut sandbox).await?;
    lifecycle::finish_if_done(work, &mut session, &mut sandbox).await
}

/// Closing a session: what was not delivered will not be.
pub async fn close(work: &mut Work<'_>, session: &Session) -> Result<()> {
    for mut message in messages::open(work.tx, session.id).await? {
        if advance(&mut message, Step::SessionClosed, work)? {
            message.reason = Some("session_closed".into());
            messages::update(work.tx, &message).await?;
            let event = became(kind::MESSAGE_UNDELIVERABLE, work, &message);
            note(work, session, event).await?;
        }
    }
    Ok(())
}
