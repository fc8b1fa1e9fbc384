//! `/sandboxes/{id}/messages` and `/sessions/{id}/messages`: messages to agents.

use crate::app::messages;
use crate::auth::access::{CanSee, CanWork, ReaderOrWorker};
use crate::extract::{Body, Params, SubId};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{ChangeMessage, Message, MessageListQuery, NewMessage, Page, SentToSession};
use atoll_core::id::{MessageId, SandboxId, SessionId};
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Send a message to the agent in a sandbox.
#[utoipa::path(post, path = "/sandboxes/{id}/messages", tag = "messages", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = NewMessage, responses((status = 201, body = Message)))]
pub async fn send_message(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<NewMessage>,
) -> Result<JsonResponse> {
    messages::send_to_sandbox(&app, access, key.with_body(hash), value).await
}

/// Send a message to a session, which gets a new sandbox if it has no live one.
#[utoipa::path(post, path = "/sessions/{id}/messages", tag = "messages", params(("id" = SessionId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = NewMessage, responses((status = 201, body = SentToSession)))]
pub async fn send_session_message(
    State(app): State<Arc<App>>,
    access: CanWork<SessionId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<NewMessage>,
) -> Result<JsonResponse> {
    messages::send_to_session(&app, access, key.with_body(hash), value).await
}

/// List the messages of a sandbox's session, in order.
#[utoipa::path(get, path = "/sandboxes/{id}/messages", tag = "messages", params(("id" = SandboxId, Path), MessageListQuery),
    responses((status = 200, body = Page<Message>)))]
pub async fn list_messages(
    State(app): State<Arc<App>>,
    access: ReaderOrWorker,
    Params(query): Params<MessageListQuery>,
) -> Result<Json<Page<Message>>> {
    messages::list_of_sandbox(&app, access, query).await.map(Json)
}

/// List the messages of a session, in order.
#[utoipa::path(get, path = "/sessions/{id}/messages", tag = "messages", params(("id" = SessionId, Path), MessageListQuery),
    responses((status = 200, body = Page<Message>)))]
pub async fn list_session_messages(
    State(app): State<Arc<App>>,
    access: CanSee<SessionId>,
    Params(query): Params<MessageListQuery>,
) -> Result<Json<Page<Message>>> {
    messages::list_of_session(&app, access, query).await.map(Json)
}

/// Change a queued message.
#[utoipa::path(patch, path = "/sandboxes/{id}/messages/{mid}", tag = "messages",
    params(("id" = SandboxId, Path), ("mid" = MessageId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeMessage, responses((status = 200, body = Message)))]
pub async fn edit_message(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    SubId(message): SubId<MessageId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<ChangeMessage>,
) -> Result<JsonResponse> {
    messages::edit_in_sandbox(&app, access, message, key.with_body(hash), value).await
}

/// Change a queued message.
#[utoipa::path(patch, path = "/sessions/{id}/messages/{mid}", tag = "messages",
    params(("id" = SessionId, Path), ("mid" = MessageId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeMessage, responses((status = 200, body = Message)))]
pub async fn edit_session_message(
    State(app): State<Arc<App>>,
    access: CanWork<SessionId>,
    SubId(message): SubId<MessageId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<ChangeMessage>,
) -> Result<JsonResponse> {
    messages::edit_in_session(&app, access, message, key.with_body(hash), value).await
}

/// Cancel a queued message.
#[utoipa::path(delete, path = "/sandboxes/{id}/messages/{mid}", tag = "messages",
    params(("id" = SandboxId, Path), ("mid" = MessageId, Path)), responses((status = 200, body = Message)))]
pub async fn cancel_message(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    SubId(message): SubId<MessageId>,
) -> Result<Json<Message>> {
    messages::cancel_in_sandbox(&app, access, message).await.map(Json)
}

/// Cancel a queued message.
#[utoipa::path(delete, path = "/sessions/{id}/messages/{mid}", tag = "messages",
    params(("id" = SessionId, Path), ("mid" = MessageId, Path)), responses((status = 200, body = Message)))]
pub async fn cancel_session_message(
    State(app): State<Arc<App>>,
    access: CanWork<SessionId>,
    SubId(message): SubId<MessageId>,
) -> Result<Json<Message>> {
    messages::cancel_in_session(&app, access, message).await.map(Json)
}
