//! `/users`.

use super::usage::Usage;
use super::{Page, PageQuery};
use crate::auth::Caller;
use crate::cursor;
use crate::extract::{Body, Id, Params, page_size};
use crate::once::{Answer, Once};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::bounds;
use atoll_core::id::UserId;
use atoll_core::principal::{Principal, Role};
use atoll_core::time::Timestamp;
use atoll_store::model_usage::Of;
use atoll_store::users::{self, User};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = User)]
pub struct UserView {
    id: UserId,
    name: String,
    role: Role,
    /// Of models; only where one is asked for by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl From<User> for UserView {
    fn from(row: User) -> Self {
        let User { id, name, role, created_at, updated_at } = row;
        Self { id, name, role, usage: None, created_at, updated_at }
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    name: String,
    #[serde(default = "member")]
    role: Role,
}

const fn member() -> Role {
    Role::Member
}

/// Make a user.
#[utoipa::path(post, path = "/users", tag = "users", request_body = NewUser,
    params(("Idempotency-Key" = Option<String>, Header)), responses((status = 201, body = UserView)))]
pub async fn make(
    State(app): State<Arc<App>>,
    caller: Caller,
    once: Once,
    Body { value: new, hash }: Body<NewUser>,
) -> Result<Answer> {
    caller.must_be_admin()?;
    bounds::line("name", &new.name, bounds::NAME_CHARS)?;
    app.write_once(&caller, once, hash, move |work| {
        Box::pin(async move {
            let user =
                User { id: UserId::new(), name: new.name, role: new.role, created_at: work.now, updated_at: work.now };
            users::insert(work.tx, &user).await?;
            Answer::created(UserView::from(user))
        })
    })
    .await
}

/// List users.
#[utoipa::path(get, path = "/users", tag = "users", params(PageQuery),
    responses((status = 200, body = Page<UserView>)))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<UserView>>> {
    caller.must_be_admin()?;
    let limit = page_size(query.limit, 50, 200)?;
    let after = cursor::read_id::<UserId>("users", query.cursor.as_deref())?;
    let rows =
        app.read(move |tx| Box::pin(async move { Ok(users::list(tx, after.as_deref(), limit + 1).await?) })).await?;
    Ok(Json(Page::cut("users", rows, limit, |row| row.id.to_string()).map(UserView::from)))
}

/// One user; everybody may see themselves.
#[utoipa::path(get, path = "/users/{id}", tag = "users", params(("id" = UserId, Path)),
    responses((status = 200, body = UserView)))]
pub async fn get(State(app): State<Arc<App>>, caller: Caller, Id(id): Id<UserId>) -> Result<Json<UserView>> {
    let own = matches!(&caller.principal, Principal::User { user, .. } if *user == id);
    if !own {
        caller.must_be_admin()?;
    }
    let view = app.read(move |tx| {
        Box::pin(async move {
            let row = users::get(tx, id).await?.ok_or_else(|| Problem::not_found("user"))?;
            let maker = format!("user:{id}");
            Ok(UserView { usage: Usage::of(tx, Of::Maker(&maker)).await?, ..row.into() })
        })
    });
    Ok(Json(view.await?))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeUser {
    name: Option<String>,
    role: Option<Role>,
}

fn last_admin() -> Problem {
    Problem::new(Code::InUse, "this is the last admin; make another one first")
}

/// Rename a user or change their role.
#[utoipa::path(patch, path = "/users/{id}", tag = "users", params(("id" = UserId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeUser, responses((status = 200, body = UserView)))]
pub async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<UserId>,
    once: Once,
    Body { value: change, hash }: Body<ChangeUser>,
) -> Result<Answer> {
    caller.must_be_admin()?;
    if let Some(name) = &change.name {
        bounds::line("name", name, bounds::NAME_CHARS)?;
    }
    let answer = app
        .write_once(&caller, once, hash, move |work| {
            Box::pin(async move {
                let mut user = users::get(work.tx, id).await?.ok_or_else(|| Problem::not_found("user"))?;
                let demoted = user.role == Role::Admin && change.role.is_some_and(|role| role != Role::Admin);
                if demoted && users::admins(work.tx).await? <= 1 {
                    return Err(last_admin());
                }
                user.name = change.name.unwrap_or(user.name);
                user.role = change.role.unwrap_or(user.role);
                user.updated_at = work.now;
                users::update(work.tx, &user).await?;
                Answer::ok(UserView::from(user))
            })
        })
        .await?;
    app.tokens.forget();
    Ok(answer)
}

/// Remove a user and their tokens.
#[utoipa::path(delete, path = "/users/{id}", tag = "users", params(("id" = UserId, Path)),
    responses((status = 200, body = UserView)))]
pub async fn remove(State(app): State<Arc<App>>, caller: Caller, Id(id): Id<UserId>) -> Result<Answer> {
    caller.must_be_admin()?;
    let answer = app
        .write(move |work| {
            Box::pin(async move {
                let user = users::get(work.tx, id).await?.ok_or_else(|| Problem::not_found("user"))?;
                if user.role == Role::Admin && users::admins(work.tx).await? <= 1 {
                    return Err(last_admin());
                }
                users::delete(work.tx, id).await?;
                Answer::ok(UserView::from(user))
            })
        })
        .await?;
    app.tokens.forget();
    Ok(answer)
}
