//! `/tokens`, and one-time tickets for WebSockets.

use crate::app::tokens;
use crate::auth::access::ClientCaller;
use crate::extract::{Body, Id, Params};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{NewToken, Page, PageQuery, Token, WebSocketTicket};
use atoll_core::id::TokenId;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Create a token, which only this response shows.
///
/// Users can create their own tokens; tokens of other users and of services require an admin.
#[utoipa::path(post, path = "/tokens", tag = "tokens", request_body = NewToken,
    params(("Idempotency-Key" = Option<String>, Header)), responses((status = 201, body = Token)))]
pub async fn create_token(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    key: IdempotencyKey,
    Body { value, hash }: Body<NewToken>,
) -> Result<JsonResponse> {
    tokens::create_token(&app, client, key.with_body(hash), value).await
}

/// List tokens: all for an admin, else the caller's own.
#[utoipa::path(get, path = "/tokens", tag = "tokens", params(PageQuery), responses((status = 200, body = Page<Token>)))]
pub async fn list_tokens(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<Token>>> {
    tokens::list_tokens(&app, client, query).await.map(Json)
}

/// Revoke a token.
#[utoipa::path(delete, path = "/tokens/{id}", tag = "tokens", params(("id" = TokenId, Path)),
    responses((status = 200, body = Token)))]
pub async fn remove_token(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    Id(id): Id<TokenId>,
) -> Result<Json<Token>> {
    tokens::remove_token(&app, client, id).await.map(Json)
}

/// Issue a one-time ticket for `/events/ws?ticket=…`, valid for 30 seconds.
#[utoipa::path(post, path = "/ws-tickets", tag = "tokens", responses((status = 201, body = WebSocketTicket)))]
pub async fn issue_ticket(State(app): State<Arc<App>>, client: ClientCaller) -> Result<JsonResponse> {
    JsonResponse::created(tokens::issue_ticket(&app, client)?)
}
