//! `…/messages` under sandboxes and sessions.

use super::Page;
use super::sandboxes::SandboxView;
use crate::app::inbox::{self, Draft, Edit};
use crate::app::sessions as app_sessions;
use crate::auth::{Caller, access};
use crate::cursor;
use crate::extract::{Body, Id, Ids, Params, page_size};
use crate::once::{Answer, Once};
use crate::problem::Result;
use crate::state::App;
use atoll_core::bounds;
use atoll_core::id::{MessageId, SandboxId, SessionId};
use atoll_core::message::{Delivery, How, MessageState, MessageType};
use atoll_core::principal::Action;
use atoll_core::time::Timestamp;
use atoll_store::messages::{self, Message};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Message)]
pub struct MessageView {
    pub id: MessageId,
    pub session_id: SessionId,
    pub position: i64,
    #[serde(rename = "type")]
    pub message_type: MessageType,
    pub delivery: Delivery,
    pub content: String,
    pub sender: Option<String>,
    pub state: MessageState,
    pub lease_until: Option<Timestamp>,
    pub how: Option<How>,
    pub turn: Option<i64>,
    pub reason: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl From<Message> for MessageView {
    fn from(row: Message) -> Self {
        let leased = row.standing.state == MessageState::Leased;
        Self {
            id: row.id,
            session_id: row.session_id,
            position: row.position,
            message_type: row.message_type,
            delivery: row.delivery,
            content: row.content,
            sender: row.sender,
            state: row.standing.state,
            lease_until: row.standing.lease.filter(|_| leased).map(|lease| lease.until),
            how: row.standing.how,
            turn: row.standing.turn,
            reason: row.reason,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMessage {
    #[schema(min_length = 1, max_length = 10240)]
    content: String,
    #[serde(default = "user_message", rename = "type")]
    message_type: MessageType,
    #[serde(default = "steer")]
    delivery: Delivery,
}

const fn user_message() -> MessageType {
    MessageType::UserMessage
}

const fn steer() -> Delivery {
    Delivery::Steer
}

fn draft(new: NewMessage, caller: &Caller) -> Result<Draft> {
    bounds::content("content", &new.content, bounds::MESSAGE_BYTES)?;
    match new.message_type {
        MessageType::UserMessage | MessageType::Interrupt => {}
        // Nobody speaks in the guardian's or the system's name.
        MessageType::GuardianNudge | MessageType::System => caller.must_be_admin()?,
    }
    Ok(Draft {
        content: new.content,
        message_type: new.message_type,
        delivery: new.delivery,
        sender: Some(caller.actor()),
    })
}

/// Say something to the agent in a sandbox.
#[utoipa::path(post, path = "/sandboxes/{id}/messages", tag = "messages", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = NewMessage, responses((status = 201, body = MessageView)))]
pub async fn send(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    once: Once,
    Body { value, hash }: Body<NewMessage>,
) -> Result<Answer> {
    let draft = draft(value, &caller)?;
    let who = caller.clone();
    app.write_once(&caller, once, hash, move |work| {
        Box::pin(async move {
            access::sandbox(work.tx, &who, id, Action::Work).await?;
            Answer::created(MessageView::from(app_sessions::send_to_sandbox(work, id, draft).await?))
        })
    })
    .await
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SentToSession {
    #[serde(flatten)]
    message: MessageView,
    /// The sandbox that was made for it, where the session had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<SandboxView>,
}

/// Say something to a session; without a live sandbox it gets a new one.
#[utoipa::path(post, path = "/sessions/{id}/messages", tag = "messages", params(("id" = SessionId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = NewMessage, responses((status = 201, body = SentToSession)))]
pub async fn send_to_session(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SessionId>,
    once: Once,
    Body { value, hash }: Body<NewMessage>,
) -> Result<Answer> {
    let draft = draft(value, &caller)?;
    let (who, public_url) = (caller.clone(), app.public_url.clone());
    app.write_once(&caller, once, hash, move |work| {
        Box::pin(async move {
            access::session(work.tx, &who, id, Action::Work).await?;
            let (message, made) = app_sessions::send(work, id, draft).await?;
            let sandbox = made.map(|made| SandboxView::made(made, &public_url));
            Answer::created(SentToSession { message: message.into(), sandbox })
        })
    })
    .await
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    state: Option<MessageState>,
    #[param(minimum = 1, maximum = 200)]
    limit: Option<i64>,
    cursor: Option<String>,
}

async fn page(app: &App, session: SessionId, query: ListQuery) -> Result<axum::Json<Page<MessageView>>> {
    let limit = page_size(query.limit, 50, 200)?;
    let after = cursor::read_number("messages", query.cursor.as_deref())?.unwrap_or(-1);
    let rows = app
        .read(move |tx| Box::pin(async move { Ok(messages::list(tx, session, query.state, after, limit + 1).await?) }));
    let page = Page::cut("messages", rows.await?, limit, |row| row.position.to_string());
    Ok(axum::Json(page.map(MessageView::from)))
}

/// The messages of a sandbox's session, in order.
#[utoipa::path(get, path = "/sandboxes/{id}/messages", tag = "messages", params(("id" = SandboxId, Path), ListQuery),
    responses((status = 200, body = Page<MessageView>)))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(query): Params<ListQuery>,
) -> Result<axum::Json<Page<MessageView>>> {
    let session =
        app.read(move |tx| Box::pin(async move { access::sandbox_or_its_worker(tx, &caller, id).await })).await?;
    page(&app, session, query).await
}

/// The messages of a session, in order.
#[utoipa::path(get, path = "/sessions/{id}/messages", tag = "messages", params(("id" = SessionId, Path), ListQuery),
    responses((status = 200, body = Page<MessageView>)))]
pub async fn list_of_session(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SessionId>,
    Params(query): Params<ListQuery>,
) -> Result<axum::Json<Page<MessageView>>> {
    app.read(move |tx| Box::pin(async move { access::session(tx, &caller, id, Action::See).await })).await?;
    page(&app, id, query).await
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeMessage {
    content: Option<String>,
    delivery: Option<Delivery>,
    /// Put it right before this queued message.
    before: Option<MessageId>,
}

impl From<ChangeMessage> for Edit {
    fn from(change: ChangeMessage) -> Self {
        Self { content: change.content, delivery: change.delivery, before: change.before }
    }
}

async fn edit_in(
    app: &App,
    caller: Caller,
    once: Once,
    body: Body<ChangeMessage>,
    session: SessionId,
    message: MessageId,
) -> Result<Answer> {
    let actor = caller.actor();
    app.write_once(&caller, once, body.hash, move |work| {
        Box::pin(async move {
            let session = app_sessions::locked(work, session).await?;
            let edited = inbox::edit(work, &session, message, body.value.into(), actor).await?;
            Answer::ok(MessageView::from(edited))
        })
    })
    .await
}

async fn cancel_in(app: &App, caller: Caller, session: SessionId, message: MessageId) -> Result<Answer> {
    let actor = caller.actor();
    app.write(move |work| {
        Box::pin(async move {
            let mut session = app_sessions::locked(work, session).await?;
            Answer::ok(MessageView::from(inbox::cancel(work, &mut session, message, actor).await?))
        })
    })
    .await
}

async fn may_work(app: &App, caller: &Caller, id: SandboxId) -> Result<SessionId> {
    let who = caller.clone();
    app.read(move |tx| Box::pin(async move { access::sandbox(tx, &who, id, Action::Work).await })).await
}

async fn may_work_in_session(app: &App, caller: &Caller, id: SessionId) -> Result<()> {
    let who = caller.clone();
    app.read(move |tx| Box::pin(async move { access::session(tx, &who, id, Action::Work).await })).await
}

/// Change a message while it is queued.
#[utoipa::path(patch, path = "/sandboxes/{id}/messages/{mid}", tag = "messages",
    params(("id" = SandboxId, Path), ("mid" = MessageId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeMessage, responses((status = 200, body = MessageView)))]
pub async fn edit(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, mid): Ids<SandboxId, MessageId>,
    once: Once,
    body: Body<ChangeMessage>,
) -> Result<Answer> {
    let session = may_work(&app, &caller, id).await?;
    edit_in(&app, caller, once, body, session, mid).await
}

/// Change a message while it is queued.
#[utoipa::path(patch, path = "/sessions/{id}/messages/{mid}", tag = "messages",
    params(("id" = SessionId, Path), ("mid" = MessageId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeMessage, responses((status = 200, body = MessageView)))]
pub async fn edit_of_session(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, mid): Ids<SessionId, MessageId>,
    once: Once,
    body: Body<ChangeMessage>,
) -> Result<Answer> {
    may_work_in_session(&app, &caller, id).await?;
    edit_in(&app, caller, once, body, id, mid).await
}

/// Take a message back while it is queued.
#[utoipa::path(delete, path = "/sandboxes/{id}/messages/{mid}", tag = "messages",
    params(("id" = SandboxId, Path), ("mid" = MessageId, Path)), responses((status = 200, body = MessageView)))]
pub async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, mid): Ids<SandboxId, MessageId>,
) -> Result<Answer> {
    let session = may_work(&app, &caller, id).await?;
    cancel_in(&app, caller, session, mid).await
}

/// Take a message back while it is queued.
#[utoipa::path(delete, path = "/sessions/{id}/messages/{mid}", tag = "messages",
    params(("id" = SessionId, Path), ("mid" = MessageId, Path)), responses((status = 200, body = MessageView)))]
pub async fn cancel_of_session(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, mid): Ids<SessionId, MessageId>,
) -> Result<Answer> {
    may_work_in_session(&app, &caller, id).await?;
    cancel_in(&app, caller, id, mid).await
}
