//! `/users`: users of the deployment.

use crate::app::users;
use crate::auth::access::{Admin, ClientCaller};
use crate::extract::{Body, Id, Params};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{ChangeUser, NewUser, Page, PageQuery, User};
use atoll_core::id::UserId;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Create a user.
#[utoipa::path(post, path = "/users", tag = "users", request_body = NewUser,
    params(("Idempotency-Key" = Option<String>, Header)), responses((status = 201, body = User)))]
pub async fn create_user(
    State(app): State<Arc<App>>,
    admin: Admin,
    key: IdempotencyKey,
    Body { value, hash }: Body<NewUser>,
) -> Result<JsonResponse> {
    users::create_user(&app, admin, key.with_body(hash), value).await
}

/// List users.
#[utoipa::path(get, path = "/users", tag = "users", params(PageQuery), responses((status = 200, body = Page<User>)))]
pub async fn list_users(
    State(app): State<Arc<App>>,
    admin: Admin,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<User>>> {
    users::list_users(&app, admin, query).await.map(Json)
}

/// Show a user. Users can see themselves.
#[utoipa::path(get, path = "/users/{id}", tag = "users", params(("id" = UserId, Path)),
    responses((status = 200, body = User)))]
pub async fn read_user(State(app): State<Arc<App>>, client: ClientCaller, Id(id): Id<UserId>) -> Result<Json<User>> {
    users::read_user(&app, client, id).await.map(Json)
}

/// Rename a user or change the user's role.
#[utoipa::path(patch, path = "/users/{id}", tag = "users", params(("id" = UserId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeUser, responses((status = 200, body = User)))]
pub async fn change_user(
    State(app): State<Arc<App>>,
    admin: Admin,
    Id(id): Id<UserId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<ChangeUser>,
) -> Result<JsonResponse> {
    users::change_user(&app, admin, id, key.with_body(hash), value).await
}

/// Remove a user with all tokens.
#[utoipa::path(delete, path = "/users/{id}", tag = "users", params(("id" = UserId, Path)),
    responses((status = 200, body = User)))]
pub async fn remove_user(State(app): State<Arc<App>>, admin: Admin, Id(id): Id<UserId>) -> Result<Json<User>> {
    users::remove_user(&app, admin, id).await.map(Json)
}
