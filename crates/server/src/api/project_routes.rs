//! `/projects` and their members.

use crate::app::projects;
use crate::auth::access::{Admin, CanAdminister, CanList, CanSee};
use crate::extract::{Body, Id, Params, SubId};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::Result;
use crate::state::App;
use atoll_api::events::Empty;
use atoll_api::{ChangeProject, Member, NewProject, Page, PageQuery, Project, SetMember};
use atoll_core::id::{ProjectId, UserId};
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Create a project.
#[utoipa::path(post, path = "/projects", tag = "projects", request_body = NewProject,
    params(("Idempotency-Key" = Option<String>, Header)), responses((status = 201, body = Project)))]
pub async fn create_project(
    State(app): State<Arc<App>>,
    admin: Admin,
    key: IdempotencyKey,
    Body { value, hash }: Body<NewProject>,
) -> Result<JsonResponse> {
    projects::create_project(&app, admin, key.with_body(hash), value).await
}

/// List projects.
#[utoipa::path(get, path = "/projects", tag = "projects", params(PageQuery),
    responses((status = 200, body = Page<Project>)))]
pub async fn list_projects(
    State(app): State<Arc<App>>,
    access: CanList,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<Project>>> {
    projects::list_projects(&app, access, query).await.map(Json)
}

/// Show a project.
#[utoipa::path(get, path = "/projects/{id}", tag = "projects", params(("id" = ProjectId, Path)),
    responses((status = 200, body = Project)))]
pub async fn read_project(State(app): State<Arc<App>>, access: CanSee<ProjectId>) -> Result<Json<Project>> {
    projects::read_project(&app, access).await.map(Json)
}

/// Change a project.
#[utoipa::path(patch, path = "/projects/{id}", tag = "projects", params(("id" = ProjectId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeProject, responses((status = 200, body = Project)))]
pub async fn change_project(
    State(app): State<Arc<App>>,
    access: CanAdminister<ProjectId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<ChangeProject>,
) -> Result<JsonResponse> {
    projects::change_project(&app, access, key.with_body(hash), value).await
}

/// Remove a project without sessions.
#[utoipa::path(delete, path = "/projects/{id}", tag = "projects", params(("id" = ProjectId, Path)),
    responses((status = 200, body = Project)))]
pub async fn remove_project(State(app): State<Arc<App>>, admin: Admin, Id(id): Id<ProjectId>) -> Result<Json<Project>> {
    projects::remove_project(&app, admin, id).await.map(Json)
}

/// List the members of a project.
#[utoipa::path(get, path = "/projects/{id}/members", tag = "projects", params(("id" = ProjectId, Path)),
    responses((status = 200, body = Page<Member>)))]
pub async fn list_members(State(app): State<Arc<App>>, access: CanSee<ProjectId>) -> Result<Json<Page<Member>>> {
    projects::list_members(&app, access).await.map(Json)
}

/// Give a user a role in a project.
#[utoipa::path(put, path = "/projects/{id}/members/{user}", tag = "projects",
    params(("id" = ProjectId, Path), ("user" = UserId, Path)), request_body = SetMember,
    responses((status = 200, body = Member)))]
pub async fn set_member(
    State(app): State<Arc<App>>,
    access: CanAdminister<ProjectId>,
    SubId(user): SubId<UserId>,
    Body { value, .. }: Body<SetMember>,
) -> Result<Json<Member>> {
    projects::set_member(&app, access, user, value.role).await.map(Json)
}

/// Remove a user from a project.
#[utoipa::path(delete, path = "/projects/{id}/members/{user}", tag = "projects",
    params(("id" = ProjectId, Path), ("user" = UserId, Path)), responses((status = 200, body = Empty)))]
pub async fn remove_member(
    State(app): State<Arc<App>>,
    access: CanAdminister<ProjectId>,
    SubId(user): SubId<UserId>,
) -> Result<Json<Empty>> {
    projects::remove_member(&app, access, user).await?;
    Ok(Json(Empty {}))
}
