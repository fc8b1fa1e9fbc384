//! Messages of people to agents, addressed to a sandbox or to its session.

use super::inbox::{self, MessageDraft, MessageEdit};
use super::views::{cut_page, view_message, view_new_sandbox};
use super::{Work, sessions};
use crate::auth::Caller;
use crate::auth::access::{Access, CanSee, CanWork, Permission, ReaderOrWorker};
use crate::cursor::decode_number;
use crate::extract::page_size;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_api::{ChangeMessage, MessageListQuery, NewMessage, Page, SentToSession};
use atoll_core::bounds;
use atoll_core::id::{MessageId, SandboxId, SessionId};
use atoll_core::message::MessageType;
use atoll_store::{messages, sandboxes};

fn check_message(new: NewMessage, caller: &Caller) -> Result<MessageDraft> {
    bounds::check_content("content", &new.content, bounds::MAX_MESSAGE_BYTES)?;
    match new.message_type {
        MessageType::UserMessage | MessageType::Interrupt => {}
        // Only admins may send in the guardian's or the system's name.
        MessageType::GuardianNudge | MessageType::System => caller.require_admin()?,
    }
    Ok(MessageDraft {
        content: new.content,
        message_type: new.message_type,
        delivery: new.delivery,
        sender: Some(caller.actor()),
    })
}

pub async fn send_to_sandbox(
    app: &App,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    new: NewMessage,
) -> Result<JsonResponse> {
    let (id, draft) = (access.id, check_message(new, &access.caller)?);
    app.write_once(&access.caller, key, async move |work| {
        JsonResponse::created(view_message(sessions::send_to_sandbox(work, id, draft).await?))
    })
    .await
}

/// Sends to a session, which gets a new sandbox if it has no live one.
pub async fn send_to_session(
    app: &App,
    access: CanWork<SessionId>,
    key: IdempotencyKey,
    new: NewMessage,
) -> Result<JsonResponse> {
    let (id, draft) = (access.id, check_message(new, &access.caller)?);
    let public_url = app.public_url.clone();
    app.write_once(&access.caller, key, async move |work| {
        let (message, created) = sessions::send_to_session(work, id, draft).await?;
        let sandbox = created.map(|created| view_new_sandbox(created, &public_url));
        JsonResponse::created(SentToSession { message: view_message(message), sandbox })
    })
    .await
}

async fn find_session(app: &App, sandbox: SandboxId) -> Result<SessionId> {
    let owner = app.read(async move |tx| Ok(sandboxes::find_owner_ids(tx, sandbox).await?)).await?;
    Ok(owner.ok_or_else(|| Problem::not_found("sandbox"))?.0)
}

async fn list_messages(app: &App, session: SessionId, query: MessageListQuery) -> Result<Page<atoll_api::Message>> {
    let limit = page_size(query.limit, 50, 200)?;
    let after = decode_number("messages", query.cursor.as_deref())?.unwrap_or(-1);
    let rows = app.read(async move |tx| Ok(messages::list_messages(tx, session, query.state, after, limit + 1).await?));
    Ok(cut_page("messages", rows.await?, limit, |row| row.position.to_string()).map(view_message))
}

pub async fn list_of_sandbox(
    app: &App,
    access: ReaderOrWorker,
    query: MessageListQuery,
) -> Result<Page<atoll_api::Message>> {
    let session = find_session(app, access.sandbox).await?;
    list_messages(app, session, query).await
}

pub async fn list_of_session(
    app: &App,
    access: CanSee<SessionId>,
    query: MessageListQuery,
) -> Result<Page<atoll_api::Message>> {
    list_messages(app, access.id, query).await
}

async fn edit_message<T, P: Permission>(
    app: &App,
    access: Access<T, P>,
    session: SessionId,
    message: MessageId,
    key: IdempotencyKey,
    change: ChangeMessage,
) -> Result<JsonResponse> {
    let ChangeMessage { content, delivery, before } = change;
    let (edit, actor) = (MessageEdit { content, delivery, before }, access.caller.actor());
    app.write_once(&access.caller, key, async move |work| {
        let session = sessions::lock_session(work, session).await?;
        JsonResponse::ok(view_message(inbox::edit_message(work, &session, message, edit, actor).await?))
    })
    .await
}

pub async fn edit_in_sandbox(
    app: &App,
    access: CanWork<SandboxId>,
    message: MessageId,
    key: IdempotencyKey,
    change: ChangeMessage,
) -> Result<JsonResponse> {
    let session = find_session(app, access.id).await?;
    edit_message(app, access, session, message, key, change).await
}

pub async fn edit_in_session(
    app: &App,
    access: CanWork<SessionId>,
    message: MessageId,
    key: IdempotencyKey,
    change: ChangeMessage,
) -> Result<JsonResponse> {
    let session = access.id;
    edit_message(app, access, session, message, key, change).await
}

async fn cancel_message(
    work: &mut Work<'_>,
    session: SessionId,
    message: MessageId,
    actor: String,
) -> Result<atoll_api::Message> {
    let mut session = sessions::lock_session(work, session).await?;
    Ok(view_message(inbox::cancel_message(work, &mut session, message, actor).await?))
}

pub async fn cancel_in_sandbox(
    app: &App,
    access: CanWork<SandboxId>,
    message: MessageId,
) -> Result<atoll_api::Message> {
    let (session, actor) = (find_session(app, access.id).await?, access.actor());
    app.write(async move |work| cancel_message(work, session, message, actor).await).await
}

pub async fn cancel_in_session(
    app: &App,
    access: CanWork<SessionId>,
    message: MessageId,
) -> Result<atoll_api::Message> {
    app.write(async move |work| cancel_message(work, access.id, message, access.actor()).await).await
}
