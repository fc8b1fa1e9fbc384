//! Users of the deployment.

use super::views::{cut_page, load_usage, view_user};
use crate::auth::access::{Admin, ClientCaller};
use crate::cursor::decode_id;
use crate::extract::page_size;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::{ChangeUser, NewUser, Page, PageQuery};
use atoll_core::bounds;
use atoll_core::id::UserId;
use atoll_core::principal::Role;
use atoll_store::model_usage::UsageScope;
use atoll_store::users::{self, UserRow};

pub async fn create_user(app: &App, admin: Admin, key: IdempotencyKey, new: NewUser) -> Result<JsonResponse> {
    bounds::check_line("name", &new.name, bounds::MAX_NAME_CHARS)?;
    app.write_once(&admin.0, key, async move |work| {
        let NewUser { name, role } = new;
        let user = UserRow { id: UserId::new(), name, role, created_at: work.now, updated_at: work.now };
        users::insert_user(work.tx, &user).await?;
        JsonResponse::created(view_user(user))
    })
    .await
}

pub async fn list_users(app: &App, _: Admin, query: PageQuery) -> Result<Page<atoll_api::User>> {
    let limit = page_size(query.limit, 50, 200)?;
    let after = decode_id::<UserId>("users", query.cursor.as_deref())?;
    let rows = app.read(async move |tx| Ok(users::list_users(tx, after.as_deref(), limit + 1).await?));
    Ok(cut_page("users", rows.await?, limit, |row| row.id.to_string()).map(view_user))
}

/// Reads one user. Users may read themselves; other users require an admin.
pub async fn read_user(app: &App, client: ClientCaller, id: UserId) -> Result<atoll_api::User> {
    if client.0.user() != Some(id) {
        client.0.require_admin()?;
    }
    app.read(async move |tx| {
        let row = users::find_user(tx, id).await?.ok_or_else(|| Problem::not_found("user"))?;
        let creator = format!("user:{id}");
        Ok(atoll_api::User { usage: load_usage(tx, UsageScope::Creator(&creator)).await?, ..view_user(row) })
    })
    .await
}

fn last_admin() -> Problem {
    Problem::new(Code::InUse, "this is the last admin; create another admin first")
}

pub async fn change_user(
    app: &App,
    admin: Admin,
    id: UserId,
    key: IdempotencyKey,
    change: ChangeUser,
) -> Result<JsonResponse> {
    if let Some(name) = &change.name {
        bounds::check_line("name", name, bounds::MAX_NAME_CHARS)?;
    }
    let changed = app.write_once(&admin.0, key, async move |work| {
        let mut user = users::find_user(work.tx, id).await?.ok_or_else(|| Problem::not_found("user"))?;
        let is_demoted = user.role == Role::Admin && change.role.is_some_and(|role| role != Role::Admin);
        if is_demoted && users::count_admins(work.tx).await? <= 1 {
            return Err(last_admin());
        }
        user.name = change.name.unwrap_or(user.name);
        user.role = change.role.unwrap_or(user.role);
        user.updated_at = work.now;
        users::update_user(work.tx, &user).await?;
        JsonResponse::ok(view_user(user))
    });
    let response = changed.await?;
    app.tokens.forget();
    Ok(response)
}

/// Removes a user with all tokens.
pub async fn remove_user(app: &App, _: Admin, id: UserId) -> Result<atoll_api::User> {
    let removed = app.write(async move |work| {
        let user = users::find_user(work.tx, id).await?.ok_or_else(|| Problem::not_found("user"))?;
        if user.role == Role::Admin && users::count_admins(work.tx).await? <= 1 {
            return Err(last_admin());
        }
        users::delete_user(work.tx, id).await?;
        Ok(view_user(user))
    });
    let user = removed.await?;
    app.tokens.forget();
    Ok(user)
}
