//! The inbox: sending, leasing and acknowledging messages. `atoll_core::inbox::apply_delivery_input` decides; this module stores.

use super::{Work, continuous, fence, lifecycle, pausing};
use crate::metrics::record_seconds;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_api::events::{EventData, MessageContent, MessageOutcome};
use atoll_core::agent_status::Signal;
use atoll_core::bounds;
use atoll_core::event::{EventSource, NewEvent};
use atoll_core::id::{LeaseId, MessageId, SandboxId, SessionId};
use atoll_core::inbox::{DeliveryError, DeliveryInput, DeliveryState, Lease, apply_delivery_input};
use atoll_core::job::JobKind;
use atoll_core::message::{Delivery, MessageState, MessageType};

use atoll_protocol::{Ack, LeaseAnswer, LeaseRequest, LeasedMessage, Nack};
use atoll_store::jobs;
use atoll_store::messages::{self, MessageRow};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::{self, SessionRow};

/// Longest message excerpt in the event log.
const MAX_EXCERPT_CHARS: usize = 2000;

/// A message before it is stored.
#[derive(Debug, Clone)]
pub struct MessageDraft {
    pub content: String,
    pub message_type: MessageType,
    pub delivery: Delivery,
    pub sender: Option<String>,
}

/// Applies one step of the state machine. Returns whether the message changed.
pub fn apply_step(message: &mut MessageRow, input: DeliveryInput, work: &Work<'_>) -> Result<bool, DeliveryError> {
    let after = apply_delivery_input(message.delivery_status, input, work.steady)?;
    let changed = after != message.delivery_status;
    message.delivery_status = after;
    if changed {
        message.updated_at = work.now;
    }
    Ok(changed)
}

fn content_event(event: fn(MessageContent) -> EventData, work: &Work<'_>, message: &MessageRow) -> NewEvent {
    let data = event(MessageContent {
        message_id: message.id,
        message_type: message.message_type,
        delivery: message.delivery,
        position: message.position,
        content: lifecycle::truncate_text(&message.content, MAX_EXCERPT_CHARS),
        content_bytes: message.content.len(),
    });
    data.into_event(work.now)
}

fn state_event(event: fn(MessageOutcome) -> EventData, work: &Work<'_>, message: &MessageRow) -> NewEvent {
    let data = event(MessageOutcome {
        message_id: message.id,
        state: message.delivery_status.state,
        how: message.delivery_status.delivery_method,
        reason: message.reason.clone(),
    });
    let mut event = data.into_event(work.now);
    event.turn = message.delivery_status.turn;
    event
}

/// The sandbox whose log gets the session's events: the live one, else the newest one.
pub async fn find_log_sandbox(work: &mut Work<'_>, session: &SessionRow) -> Result<Option<SandboxRow>> {
    match session.sandbox_id.or(session.last_sandbox_id) {
        Some(id) => Ok(sandboxes::find_sandbox(work.tx, id).await?),
        None => Ok(None),
    }
}

async fn log_to_session(work: &mut Work<'_>, session: &SessionRow, event: NewEvent) -> Result<()> {
    if let Some(mut sandbox) = find_log_sandbox(work, session).await? {
        work.log(&mut sandbox, vec![event]).await?;
        sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    }
    Ok(())
}

/// Queues a message. The caller holds the session's lock and has checked the content's length.
pub async fn queue_message(work: &mut Work<'_>, session: &mut SessionRow, draft: MessageDraft) -> Result<MessageRow> {
    let message = MessageRow {
        id: MessageId::new(),
        session_id: session.id,
        position: session.next_position,
        message_type: draft.message_type,
        delivery: draft.delivery,
        content: work.redact_text(session.project_id, draft.content),
        sender: draft.sender.clone(),
        delivery_status: DeliveryState::QUEUED,
        reason: None,
        created_at: work.now,
        updated_at: work.now,
    };
    session.next_position += 1;
    session.updated_at = work.now;
    sessions::update_session(work.tx, session).await?;
    messages::insert_message(work.tx, &message).await?;
    let source = match (draft.message_type, draft.sender.as_deref()) {
        (_, Some(atoll_core::guardian::GUARDIAN_SENDER)) => EventSource::Guardian,
        (MessageType::System, _) | (_, Some(atoll_core::limit::LIMITS_SENDER)) => EventSource::System,
        (MessageType::UserMessage | MessageType::Interrupt | MessageType::GuardianNudge, _) => EventSource::User,
    };
    let event = content_event(EventData::MessageQueued, work, &message).with_source(source, draft.sender);
    log_to_session(work, session, event).await?;
    // After the guardian's interrupt, the agent continues by itself.
    if draft.message_type == MessageType::Interrupt
        && message.sender.as_deref() != Some(atoll_core::guardian::GUARDIAN_SENDER)
        && let Some(live) = session.sandbox_id
        && let Some(mut sandbox) = sandboxes::find_sandbox(work.tx, live).await?
    {
        continuous::record_interrupt(work, &mut sandbox).await?;
    }
    wake_sandbox(work, session).await?;
    work.out.inboxes.push(session.id);
    metrics::counter!(crate::metrics::MESSAGES_QUEUED).increment(1);
    Ok(message)
}

/// Wakes the session's sandbox if it was paused because it was idle.
async fn wake_sandbox(work: &mut Work<'_>, session: &SessionRow) -> Result<()> {
    let Some(live) = session.sandbox_id else { return Ok(()) };
    if sandboxes::find_sandbox(work.tx, live).await?.is_some_and(|row| pausing::is_asleep(&row)) {
        jobs::schedule_job_if_absent(work.tx, JobKind::Wake, live, work.steady).await?;
        work.out.jobs = true;
    }
    Ok(())
}

/// Changes to a queued message.
#[derive(Debug, Clone, Default)]
pub struct MessageEdit {
    pub content: Option<String>,
    pub delivery: Option<Delivery>,
    /// Moves the message before this one.
    pub before: Option<MessageId>,
}

pub async fn edit_message(
    work: &mut Work<'_>,
    session: &SessionRow,
    id: MessageId,
    change: MessageEdit,
    actor: String,
) -> Result<MessageRow> {
    let mut message = find_message(work, session, id).await?;
    apply_step(&mut message, DeliveryInput::Edit, work)?;
    if let Some(content) = change.content {
        // The prompt has its own, larger bound.
        let most = if message.position == 0 { bounds::MAX_PROMPT_BYTES } else { bounds::MAX_MESSAGE_BYTES };
        bounds::check_content("content", &content, most)?;
        message.content = work.redact_text(session.project_id, content);
    }
    message.delivery = change.delivery.unwrap_or(message.delivery);
    message.updated_at = work.now;
    messages::update_message(work.tx, &message).await?;
    if let Some(before) = change.before {
        move_before(work, session, id, before).await?;
        message = find_message(work, session, id).await?;
    }
    let event = content_event(EventData::MessageEdited, work, &message).with_source(EventSource::User, Some(actor));
    log_to_session(work, session, event).await?;
    work.out.inboxes.push(session.id);
    Ok(message)
}

/// Reorders the queued messages within their existing positions.
async fn move_before(work: &mut Work<'_>, session: &SessionRow, id: MessageId, before: MessageId) -> Result<()> {
    let mut queued = messages::list_open_messages(work.tx, session.id).await?;
    queued.retain(|message| message.delivery_status.state == MessageState::Queued);
    let places: Vec<i64> = queued.iter().map(|message| message.position).collect();
    let mut order: Vec<MessageId> = queued.iter().map(|message| message.id).filter(|other| *other != id).collect();
    let at = match order.iter().position(|other| *other == before) {
        Some(at) => at,
        None if before == id => return Ok(()),
        None => return Err(Problem::invalid("before: must name another queued message of this session")),
    };
    order.insert(at, id);
    let moved: Vec<(MessageId, i64)> = order.into_iter().zip(places).collect();
    Ok(messages::reorder_messages(work.tx, &moved).await?)
}

pub async fn cancel_message(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    id: MessageId,
    actor: String,
) -> Result<MessageRow> {
    let mut message = find_message(work, session, id).await?;
    apply_step(&mut message, DeliveryInput::Cancel, work)?;
    messages::update_message(work.tx, &message).await?;
    let event = state_event(EventData::MessageCancelled, work, &message).with_source(EventSource::User, Some(actor));
    log_to_session(work, session, event).await?;
    if let Some(mut sandbox) = find_log_sandbox(work, session).await? {
        lifecycle::finish_if_done(work, session, &mut sandbox).await?;
    }
    Ok(message)
}

async fn find_message(work: &mut Work<'_>, session: &SessionRow, id: MessageId) -> Result<MessageRow> {
    messages::find_message(work.tx, session.id, id).await?.ok_or_else(|| Problem::not_found("message"))
}

/// Leases messages to a worker and renews its leases.
pub async fn lease_messages(work: &mut Work<'_>, id: SandboxId, request: &LeaseRequest) -> Result<LeaseAnswer> {
    let (session, mut sandbox) = work.lock_sandbox(id).await?;
    require_not_ended(&sandbox)?;
    let version = (sandbox.stream, sandbox.boot);
    fence::admit_stream(work, &session, &mut sandbox, request.stream, request.boot).await?;
    if version != (sandbox.stream, sandbox.boot) {
        sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    }
    let mut answer = LeaseAnswer::default();
    for lease in &request.renew {
        if !renew_lease(work, &session, *lease).await? {
            answer.lost.push(*lease);
        }
    }
    if sandbox.state.accepts_messages() {
        let most = i64::from(request.max).min(bounds::MAX_LEASES_AT_ONCE as i64);
        for message in
            messages::list_leasable_messages(work.tx, session.id, sandbox.status.turn_state(), work.steady, most)
                .await?
        {
            answer.items.push(lease_message(work, message, request.stream).await?);
        }
    } else {
        answer.state = Some(sandbox.state);
    }
    Ok(answer)
}

async fn renew_lease(work: &mut Work<'_>, session: &SessionRow, lease: LeaseId) -> Result<bool> {
    let Some(mut message) = messages::find_message_by_lease(work.tx, session.id, lease).await? else {
        return Ok(false);
    };
    let until = work.steady + work.config.messages.lease;
    if apply_step(&mut message, DeliveryInput::Renew { lease, until }, work).is_err() {
        return Ok(false);
    }
    messages::update_message(work.tx, &message).await?;
    Ok(true)
}

async fn lease_message(work: &mut Work<'_>, mut message: MessageRow, stream: uuid::Uuid) -> Result<LeasedMessage> {
    let lease = Lease { id: LeaseId::new(), stream, expires_at: work.steady + work.config.messages.lease };
    apply_step(&mut message, DeliveryInput::Lease(lease), work)?;
    messages::update_message(work.tx, &message).await?;
    Ok(to_leased_message(message, lease))
}

fn to_leased_message(message: MessageRow, lease: Lease) -> LeasedMessage {
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
        lease_until: lease.expires_at,
    }
}

/// Messages that a stream has leased. The worker may have missed the response that leased them.
pub async fn leased_by_stream(
    tx: &mut dyn atoll_store::Tx,
    session: SessionId,
    stream: uuid::Uuid,
) -> Result<Vec<LeasedMessage>> {
    let open = messages::list_open_messages(tx, session).await?;
    let leased = open.into_iter().filter(|message| message.delivery_status.lease_held_by(stream).is_some());
    Ok(leased
        .filter_map(|message| message.delivery_status.lease.map(|lease| to_leased_message(message, lease)))
        .collect())
}

/// The first message for a starting worker: one that it has already leased, else the next available one.
pub async fn first_message(
    work: &mut Work<'_>,
    session: &SessionRow,
    sandbox: &SandboxRow,
    stream: uuid::Uuid,
) -> Result<Option<LeasedMessage>> {
    for message in messages::list_open_messages(work.tx, session.id).await? {
        if let (MessageState::Leased, Some(lease)) = (message.delivery_status.state, message.delivery_status.lease)
            && lease.stream == stream
        {
            return Ok(Some(to_leased_message(message, lease)));
        }
    }
    let next =
        messages::list_leasable_messages(work.tx, session.id, sandbox.status.turn_state(), work.steady, 1).await?;
    match next.into_iter().next() {
        Some(message) => Ok(Some(lease_message(work, message, stream).await?)),
        None => Ok(None),
    }
}

pub(super) fn require_not_ended(sandbox: &SandboxRow) -> Result<()> {
    if sandbox.state.has_ended() { Err(Problem::unauthorized()) } else { Ok(()) }
}

/// Records that the agent has the message.
pub async fn submit_ack(app: &App, id: SandboxId, message: MessageId, ack: Ack) -> Result<()> {
    app.write(async move |work| record_ack(work, id, message, &ack).await).await
}

pub async fn submit_nack(app: &App, id: SandboxId, message: MessageId, nack: Nack) -> Result<()> {
    app.write(async move |work| record_nack(work, id, message, &nack).await).await
}

async fn record_ack(work: &mut Work<'_>, id: SandboxId, message: MessageId, ack: &Ack) -> Result<()> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    require_not_ended(&sandbox)?;
    fence::admit_stream(work, &session, &mut sandbox, ack.stream, None).await?;
    let mut message = find_message(work, &session, message).await?;
    let lease = message.delivery_status.lease_held_by(ack.stream).unwrap_or(ack.lease);
    if apply_step(&mut message, DeliveryInput::Ack { lease, delivery_method: ack.how, turn: ack.turn }, work)? {
        messages::update_message(work.tx, &message).await?;
        sandbox.apply_signal(Signal::MessageAcknowledged { how: ack.how, turn: ack.turn });
        sandbox.work_at = Some(work.steady);
        let event = state_event(EventData::MessageAcknowledged, work, &message);
        work.log(&mut sandbox, vec![event]).await?;
        let how = ack.how.as_str();
        metrics::counter!(crate::metrics::MESSAGES_ACKNOWLEDGED, "how" => how).increment(1);
        let waited = work.now.elapsed_since(message.created_at);
        record_seconds(crate::metrics::MESSAGE_SECONDS, &[("how", how)], waited);
    }
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    lifecycle::finish_if_done(work, &mut session, &mut sandbox).await
}

/// Records that the agent does not have the message, or that delivery is unknown.
async fn record_nack(work: &mut Work<'_>, id: SandboxId, message: MessageId, nack: &Nack) -> Result<()> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    require_not_ended(&sandbox)?;
    fence::admit_stream(work, &session, &mut sandbox, nack.stream, None).await?;
    let mut message = find_message(work, &session, message).await?;
    // A returned message can be leased to another worker, so only the exact lease may return it.
    let gives_back = !nack.handed && nack.retry;
    let lease = message.delivery_status.lease_held_by(nack.stream).filter(|_| !gives_back).unwrap_or(nack.lease);
    let input = DeliveryInput::Nack { lease, was_handed_over: nack.handed, may_retry: nack.retry };
    if apply_step(&mut message, input, work)? {
        let reason = work.redact_text(sandbox.project_id, nack.reason.clone());
        message.reason = Some(lifecycle::truncate_text(&reason, 500)).filter(|reason| !reason.is_empty());
        messages::update_message(work.tx, &message).await?;
        match message.delivery_status.state {
            MessageState::Undeliverable => {
                let event = state_event(EventData::MessageUndeliverable, work, &message);
                work.log(&mut sandbox, vec![event]).await?;
            }
            MessageState::DeliveredUnconfirmed => {
                let event = state_event(EventData::MessageDeliveredUnconfirmed, work, &message);
                work.log(&mut sandbox, vec![event]).await?;
            }
            MessageState::Queued | MessageState::Leased | MessageState::Acknowledged | MessageState::Cancelled => {
                work.out.inboxes.push(session.id);
            }
        }
    }
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    lifecycle::finish_if_done(work, &mut session, &mut sandbox).await
}

/// Marks the undelivered messages of a closed session as undeliverable.
pub async fn close_inbox(work: &mut Work<'_>, session: &SessionRow) -> Result<()> {
    for mut message in messages::list_open_messages(work.tx, session.id).await? {
        if apply_step(&mut message, DeliveryInput::SessionClosed, work)? {
            message.reason = Some("session_closed".into());
            messages::update_message(work.tx, &message).await?;
            let event = state_event(EventData::MessageUndeliverable, work, &message);
            log_to_session(work, session, event).await?;
        }
    }
    Ok(())
}
