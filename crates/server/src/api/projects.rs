//! `/projects` and their members.

use super::budget::{BudgetView, NewBudget};
use super::sessions::check_defaults;
use super::usage::Usage;
use super::{Page, PageQuery};
use crate::auth::{Caller, access};
use crate::cursor;
use crate::extract::{Body, Id, Ids, Params, page_size};
use crate::jobs;
use crate::once::{Answer, Once};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::bounds;
use atoll_core::id::{ProjectId, UserId};
use atoll_core::principal::{Action, Role};
use atoll_core::sandbox::Repo;
use atoll_core::time::Timestamp;
use atoll_store::model_usage::Of;
use atoll_store::projects::{self, Defaults, Project};
use atoll_store::users;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Deserializer, Serialize};
use std::sync::Arc;

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Project)]
pub struct ProjectView {
    id: ProjectId,
    name: String,
    is_default: bool,
    repo: Option<Repo>,
    /// What its sandboxes have unless they say otherwise.
    #[schema(value_type = Object)]
    defaults: Defaults,
    /// What its sandboxes may spend on models together.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<BudgetView>,
    /// Of models; only where one is asked for by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl From<Project> for ProjectView {
    fn from(row: Project) -> Self {
        let mut defaults = row.defaults;
        if let Some(serde_json::Value::Object(env)) = defaults.get_mut("env") {
            env.values_mut().for_each(|value| *value = "***".into());
        }
        Self {
            id: row.id,
            name: row.name,
            is_default: row.is_default,
            repo: row.repo,
            defaults,
            budget: row.budget.map(BudgetView::from),
            usage: None,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewProject {
    name: String,
    #[serde(default, deserialize_with = "atoll_core::json::object")]
    repo: Option<Repo>,
    /// The fields of `POST /sandboxes`, for sandboxes that leave them open.
    #[serde(default)]
    #[schema(value_type = Object)]
    defaults: Defaults,
    #[serde(default, deserialize_with = "atoll_core::json::object")]
    budget: Option<NewBudget>,
}

/// An object, `null`, or absent.
fn given_budget<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<Option<NewBudget>>, D::Error> {
    atoll_core::json::object(from).map(Some)
}

fn check_repo(repo: &Option<Repo>, caller: &Caller) -> Result<()> {
    let mut as_default = Defaults::new();
    if let Some(repo) = repo {
        as_default.insert("repo".into(), serde_json::to_value(repo).map_err(Problem::internal)?);
    }
    check_defaults(&as_default, caller)
}

/// Make a project.
#[utoipa::path(post, path = "/projects", tag = "projects", request_body = NewProject,
    params(("Idempotency-Key" = Option<String>, Header)), responses((status = 201, body = ProjectView)))]
pub async fn make(
    State(app): State<Arc<App>>,
    caller: Caller,
    once: Once,
    Body { value: new, hash }: Body<NewProject>,
) -> Result<Answer> {
    caller.must_be_admin()?;
    bounds::line("name", &new.name, bounds::NAME_CHARS)?;
    check_repo(&new.repo, &caller)?;
    check_defaults(&new.defaults, &caller)?;
    let budget = new.budget.map(|budget| budget.checked(None)).transpose()?;
    app.write_once(&caller, once, hash, move |work| {
        Box::pin(async move {
            let project = Project {
                id: ProjectId::new(),
                name: new.name,
                is_default: false,
                repo: new.repo,
                defaults: new.defaults,
                budget,
                created_at: work.now,
                updated_at: work.now,
            };
            projects::insert(work.tx, &project).await?;
            Answer::created(ProjectView::from(project))
        })
    })
    .await
}

/// List projects.
#[utoipa::path(get, path = "/projects", tag = "projects", params(PageQuery),
    responses((status = 200, body = Page<ProjectView>)))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<ProjectView>>> {
    let limit = page_size(query.limit, 50, 200)?;
    let after = cursor::read_id::<ProjectId>("projects", query.cursor.as_deref())?;
    let page = app.read(move |tx| {
        Box::pin(async move {
            let among = access::visible(tx, &caller).await?.among();
            let found = projects::list(tx, &among, after.as_deref(), limit + 1).await?;
            Ok(Page::cut("projects", found, limit, |row| row.id.to_string()))
        })
    });
    Ok(Json(page.await?.map(ProjectView::from)))
}

async fn find(work: &mut dyn atoll_store::Tx, id: ProjectId) -> Result<Project> {
    projects::get(work, id).await?.ok_or_else(|| Problem::not_found("project"))
}

/// One project.
#[utoipa::path(get, path = "/projects/{id}", tag = "projects", params(("id" = ProjectId, Path)),
    responses((status = 200, body = ProjectView)))]
pub async fn get(State(app): State<Arc<App>>, caller: Caller, Id(id): Id<ProjectId>) -> Result<Json<ProjectView>> {
    caller.must_not_be_worker()?;
    let now = app.clock.now();
    let row = app.read(move |tx| {
        Box::pin(async move {
            let row = find(tx, id).await?;
            access::check(tx, &caller, id, Action::See, "project").await?;
            let budget = BudgetView::of(tx, id, row.budget, now).await?;
            Ok(ProjectView { usage: Usage::of(tx, Of::Project(id)).await?, budget, ..row.into() })
        })
    });
    Ok(Json(row.await?))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeProject {
    name: Option<String>,
    #[serde(default, deserialize_with = "atoll_core::json::object")]
    repo: Option<Repo>,
    /// Replaces the defaults as a whole.
    #[schema(value_type = Option<Object>)]
    defaults: Option<Defaults>,
    /// `null` takes it away.
    #[serde(default, deserialize_with = "given_budget")]
    #[schema(value_type = Option<NewBudget>)]
    budget: Option<Option<NewBudget>>,
}

/// Change a project.
#[utoipa::path(patch, path = "/projects/{id}", tag = "projects", params(("id" = ProjectId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeProject, responses((status = 200, body = ProjectView)))]
pub async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ProjectId>,
    once: Once,
    Body { value: change, hash }: Body<ChangeProject>,
) -> Result<Answer> {
    caller.must_not_be_worker()?;
    if let Some(name) = &change.name {
        bounds::line("name", name, bounds::NAME_CHARS)?;
    }
    check_repo(&change.repo, &caller)?;
    if let Some(defaults) = &change.defaults {
        check_defaults(defaults, &caller)?;
    }
    let (who, with_budget) = (caller.clone(), change.budget.is_some());
    let changed = app.write_once(&caller, once, hash, move |work| {
        Box::pin(async move {
            let mut project = find(work.tx, id).await?;
            access::check(work.tx, &who, id, Action::Administer, "project").await?;
            project.name = change.name.unwrap_or(project.name);
            project.repo = change.repo.or(project.repo);
            project.defaults = change.defaults.unwrap_or(project.defaults);
            if let Some(budget) = change.budget {
                project.budget = budget.map(|budget| budget.checked(project.budget)).transpose()?;
            }
            project.updated_at = work.now;
            projects::update(work.tx, &project).await?;
            let budget = BudgetView::of(work.tx, id, project.budget, work.now).await?;
            Answer::ok(ProjectView { budget, ..project.into() })
        })
    });
    let answer = changed.await?;
    // The gateway remembers a project's name and budget.
    app.gateway.project_changed(&app, id).await;
    if with_budget && let Err(problem) = jobs::budgets::look(&app).await {
        tracing::debug!(detail = %problem.detail, "who waits for a budget is looked for again soon");
    }
    Ok(answer)
}

/// Remove a project that nothing belongs to.
#[utoipa::path(delete, path = "/projects/{id}", tag = "projects", params(("id" = ProjectId, Path)),
    responses((status = 200, body = ProjectView)))]
pub async fn remove(State(app): State<Arc<App>>, caller: Caller, Id(id): Id<ProjectId>) -> Result<Answer> {
    caller.must_be_admin()?;
    let answer = app
        .write(move |work| {
            Box::pin(async move {
                let project = find(work.tx, id).await?;
                if project.is_default || !projects::delete(work.tx, id).await? {
                    return Err(Problem::new(Code::InUse, "it is the default project, or sessions belong to it"));
                }
                Answer::ok(ProjectView::from(project))
            })
        })
        .await?;
    app.tokens.forget();
    Ok(answer)
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct MemberView {
    user_id: UserId,
    role: Role,
}

/// The members of a project.
#[utoipa::path(get, path = "/projects/{id}/members", tag = "projects", params(("id" = ProjectId, Path)),
    responses((status = 200, body = Page<MemberView>)))]
pub async fn members(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<ProjectId>,
) -> Result<Json<Page<MemberView>>> {
    caller.must_not_be_worker()?;
    let rows = app.read(move |tx| {
        Box::pin(async move {
            find(tx, id).await?;
            access::check(tx, &caller, id, Action::See, "project").await?;
            Ok(projects::members(tx, id).await?)
        })
    });
    let items = rows.await?.into_iter().map(|row| MemberView { user_id: row.user_id, role: row.role }).collect();
    Ok(Json(Page { items, next_cursor: None }))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetMember {
    role: Role,
}

/// Give a user a role in a project.
#[utoipa::path(put, path = "/projects/{id}/members/{user}", tag = "projects",
    params(("id" = ProjectId, Path), ("user" = UserId, Path)), request_body = SetMember,
    responses((status = 200, body = MemberView)))]
pub async fn set_member(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, user): Ids<ProjectId, UserId>,
    Body { value, .. }: Body<SetMember>,
) -> Result<Answer> {
    caller.must_not_be_worker()?;
    app.write(move |work| {
        Box::pin(async move {
            find(work.tx, id).await?;
            access::check(work.tx, &caller, id, Action::Administer, "project").await?;
            users::get(work.tx, user).await?.ok_or_else(|| Problem::not_found("user"))?;
            projects::set_member(work.tx, id, user, value.role).await?;
            Answer::ok(MemberView { user_id: user, role: value.role })
        })
    })
    .await
}

/// Take a user out of a project.
#[utoipa::path(delete, path = "/projects/{id}/members/{user}", tag = "projects",
    params(("id" = ProjectId, Path), ("user" = UserId, Path)), responses((status = 200)))]
pub async fn remove_member(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, user): Ids<ProjectId, UserId>,
) -> Result<Answer> {
    caller.must_not_be_worker()?;
    app.write(move |work| {
        Box::pin(async move {
            find(work.tx, id).await?;
            access::check(work.tx, &caller, id, Action::Administer, "project").await?;
            if !projects::remove_member(work.tx, id, user).await? {
                return Err(Problem::not_found("member"));
            }
            Answer::ok(serde_json::json!({}))
        })
    })
    .await
}
