//! Projects: their settings, budgets and members.

use super::sandbox_plan::{check_default_repo, check_defaults};
use super::views::{cut_page, load_budget, load_usage, restore_hidden_values, view_project};
use crate::auth::access::{Admin, CanAdminister, CanList, CanSee};
use crate::cursor::decode_id;
use crate::extract::page_size;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::jobs::budgets::resume_within_budget;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::{ChangeProject, Member, NewBudget, NewProject, Page, PageQuery};
use atoll_core::bounds;
use atoll_core::budget::Budget;
use atoll_core::id::{ProjectId, UserId};
use atoll_core::principal::Role;
use atoll_store::model_usage::UsageScope;
use atoll_store::projects::{self, ProjectRow};
use atoll_store::{Tx, users};

/// Checks a new budget. An absent period keeps the old one.
fn check_budget(new: &NewBudget, before: Option<Budget>) -> Result<Budget> {
    let per = new.per.or(before.map(|budget| budget.per)).unwrap_or_default();
    let budget = Budget { usd: new.usd, per };
    budget.check_bounds("budget")?;
    Ok(budget)
}

async fn find_project(tx: &mut dyn Tx, id: ProjectId) -> Result<ProjectRow> {
    projects::find_project(tx, id).await?.ok_or_else(|| Problem::not_found("project"))
}

pub async fn create_project(app: &App, admin: Admin, key: IdempotencyKey, new: NewProject) -> Result<JsonResponse> {
    bounds::check_line("name", &new.name, bounds::MAX_NAME_CHARS)?;
    check_default_repo(new.repo.as_ref(), &admin.0)?;
    check_defaults(&new.defaults, &admin.0)?;
    let budget = new.budget.map(|budget| check_budget(&budget, None)).transpose()?;
    app.write_once(&admin.0, key, async move |work| {
        let project = ProjectRow {
            id: ProjectId::new(),
            name: new.name,
            is_default: false,
            repo: new.repo,
            defaults: new.defaults,
            budget,
            created_at: work.now,
            updated_at: work.now,
        };
        projects::insert_project(work.tx, &project).await?;
        JsonResponse::created(view_project(project))
    })
    .await
}

pub async fn list_projects(app: &App, access: CanList, query: PageQuery) -> Result<Page<atoll_api::Project>> {
    let limit = page_size(query.limit, 50, 200)?;
    let after = decode_id::<ProjectId>("projects", query.cursor.as_deref())?;
    let filter = access.projects.as_filter();
    let rows = app.read(async move |tx| Ok(projects::list_projects(tx, &filter, after.as_deref(), limit + 1).await?));
    Ok(cut_page("projects", rows.await?, limit, |row| row.id.to_string()).map(view_project))
}

pub async fn read_project(app: &App, access: CanSee<ProjectId>) -> Result<atoll_api::Project> {
    let (id, now) = (access.id, app.clock.now());
    app.read(async move |tx| {
        let row = find_project(tx, id).await?;
        let budget = load_budget(tx, id, row.budget, now).await?;
        Ok(atoll_api::Project { usage: load_usage(tx, UsageScope::Project(id)).await?, budget, ..view_project(row) })
    })
    .await
}

/// Changes a project, updates the gateway's cache and resumes agents that a raised budget releases.
pub async fn change_project(
    app: &App,
    access: CanAdminister<ProjectId>,
    key: IdempotencyKey,
    change: ChangeProject,
) -> Result<JsonResponse> {
    if let Some(name) = &change.name {
        bounds::check_line("name", name, bounds::MAX_NAME_CHARS)?;
    }
    check_default_repo(change.repo.as_ref(), &access.caller)?;
    if let Some(defaults) = &change.defaults {
        check_defaults(defaults, &access.caller)?;
    }
    let (id, changes_budget) = (access.id, change.budget.is_some());
    let changed = app.write_once(&access.caller, key, async move |work| {
        let mut project = find_project(work.tx, id).await?;
        project.name = change.name.unwrap_or(project.name);
        project.repo = change.repo.or(project.repo);
        if let Some(defaults) = change.defaults {
            project.defaults = restore_hidden_values(defaults, &project.defaults);
        }
        if let Some(budget) = change.budget {
            project.budget = budget.map(|budget| check_budget(&budget, project.budget)).transpose()?;
        }
        project.updated_at = work.now;
        projects::update_project(work.tx, &project).await?;
        let budget = load_budget(work.tx, id, project.budget, work.now).await?;
        JsonResponse::ok(atoll_api::Project { budget, ..view_project(project) })
    });
    let response = changed.await?;
    app.gateway.reload_project(app, id).await;
    if changes_budget && let Err(problem) = resume_within_budget(app).await {
        tracing::debug!(detail = %problem.detail, "failed to resume agents after a budget change; a job retries");
    }
    Ok(response)
}

/// Removes a project without sessions and tickets.
pub async fn remove_project(app: &App, _: Admin, id: ProjectId) -> Result<atoll_api::Project> {
    let removed = app.write(async move |work| {
        let project = find_project(work.tx, id).await?;
        if project.is_default || !projects::delete_project(work.tx, id).await? {
            return Err(Problem::new(
                Code::InUse,
                "the project is the default project, or has sessions, tickets or tasks",
            ));
        }
        Ok(view_project(project))
    });
    let project = removed.await?;
    app.tokens.forget();
    Ok(project)
}

pub async fn list_members(app: &App, access: CanSee<ProjectId>) -> Result<Page<Member>> {
    let rows = app.read(async move |tx| Ok(projects::list_members(tx, access.id).await?)).await?;
    let items = rows.into_iter().map(|row| Member { user_id: row.user_id, role: row.role }).collect();
    Ok(Page { items, next_cursor: None })
}

pub async fn set_member(app: &App, access: CanAdminister<ProjectId>, user: UserId, role: Role) -> Result<Member> {
    app.write(async move |work| {
        users::find_user(work.tx, user).await?.ok_or_else(|| Problem::not_found("user"))?;
        projects::set_member(work.tx, access.id, user, role).await?;
        Ok(Member { user_id: user, role })
    })
    .await
}

pub async fn remove_member(app: &App, access: CanAdminister<ProjectId>, user: UserId) -> Result<()> {
    app.write(async move |work| {
        if projects::remove_member(work.tx, access.id, user).await? {
            Ok(())
        } else {
            Err(Problem::not_found("member"))
        }
    })
    .await
}
