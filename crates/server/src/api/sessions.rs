//! `/sessions`: list, look, change, resume, fork; and how a request becomes a plan.

use super::Page;
use super::chosen;
use super::sandboxes::{NewSandbox, SandboxView, dollars};
use super::usage::Usage;
use crate::app::create::Plan;
use crate::app::{Work, sessions as app_sessions};
use crate::auth::{Caller, access};
use crate::cursor;
use crate::extract::{Body, Id, Params, page_size};
use crate::once::{Answer, Once};
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::bounds;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::policy::ToolPolicy;
use atoll_core::principal::Action;
use atoll_core::protected;
use atoll_core::sandbox::{End, ProviderKind, Repo, Resources, Settings};
use atoll_core::session::SessionState;
use atoll_core::time::Timestamp;
use atoll_store::model_usage::Of;
use atoll_store::projects;
use atoll_store::sessions::{self, Session};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Session)]
pub struct SessionView {
    pub id: SessionId,
    pub project_id: ProjectId,
    pub agent: Option<String>,
    pub title: String,
    pub branch: Option<String>,
    pub state: SessionState,
    /// The live sandbox, if there is one.
    pub sandbox_id: Option<SandboxId>,
    pub last_sandbox_id: Option<SandboxId>,
    pub native_id: Option<String>,
    pub transcript: Option<String>,
    pub forked_from: Option<SessionId>,
    /// In US dollars.
    pub cost: f64,
    /// Of models; only where one is asked for by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl From<Session> for SessionView {
    fn from(row: Session) -> Self {
        Self {
            id: row.id,
            project_id: row.project_id,
            agent: row.agent,
            title: row.title,
            branch: row.branch,
            state: row.state,
            sandbox_id: row.sandbox_id,
            last_sandbox_id: row.last_sandbox_id,
            native_id: row.native_id,
            transcript: row.transcript,
            forked_from: row.forked_from,
            cost: dollars(row.cost_micros),
            usage: None,
            created_by: row.created_by,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

/// The most that a provider of this version gives: nothing is run by it, so it is a plain bound.
const MOST: (f64, f64, f64, u32) = (1024.0, 256.0, 10_240.0, 1_000_000);

fn check_resources(resources: &Resources) -> Result<()> {
    let figures = [
        ("resources.memory_gb", resources.memory_gb, MOST.0),
        ("resources.cpu", resources.cpu, MOST.1),
        ("resources.disk_gb", resources.disk_gb, MOST.2),
        ("resources.pids", resources.pids.map(f64::from), f64::from(MOST.3)),
    ];
    for (field, value, most) in figures {
        if let Some(value) = value {
            bounds::amount(field, value, most)?;
        }
    }
    Ok(())
}

pub fn check_repo(repo: &Repo, caller: &Caller) -> Result<()> {
    let may_name_paths = caller.must_be_admin().is_ok() && caller.is_local;
    if repo.path.is_some() && !may_name_paths {
        return Err(Problem::forbidden(
            "repo.path names a directory of the server: only an admin on the same machine may",
        ));
    }
    match (&repo.url, &repo.path) {
        (Some(_), Some(_)) => return Err(Problem::invalid("repo: give `url` or `path`, not both")),
        (None, None) => return Err(Problem::invalid("repo: needs a `url` or a `path`")),
        (Some(url), None) => bounds::git_url("repo.url", url, may_name_paths)?,
        (None, Some(path)) => bounds::line("repo.path", path, 4096)?,
    }
    for (field, name) in [("repo.base", &repo.base), ("repo.branch", &repo.branch)] {
        if let Some(name) = name {
            bounds::line(field, name, 255)?;
            if name.starts_with('-') || name.contains("..") || name.contains(char::is_whitespace) {
                return Err(Problem::invalid(format!("{field}: is not a branch name")));
            }
        }
    }
    Ok(())
}

fn check(new: &NewSandbox, caller: &Caller) -> Result<()> {
    let lines = [
        ("agent", &new.agent),
        ("model", &new.model),
        ("image", &new.image),
        ("snapshot", &new.snapshot),
        ("title", &new.title),
    ];
    for (field, value) in lines {
        if let Some(value) = value {
            bounds::line(field, value, bounds::TITLE_CHARS)?;
        }
    }
    if let Some(prompt) = &new.prompt {
        bounds::content("prompt", prompt, bounds::PROMPT_BYTES)?;
    }
    if let Some(text) = &new.system_prompt {
        bounds::content("system_prompt", text, chosen::PROMPT)?;
    }
    if new.timeout_s == Some(0) {
        return Err(Problem::invalid("timeout_s: must be above 0"));
    }
    for name in new.secrets.iter().flatten() {
        atoll_core::secret::name("secrets", name)?;
    }
    for (field, names) in [("tools", &new.tools), ("secrets", &new.secrets)] {
        for name in names.iter().flatten() {
            bounds::line(field, name, bounds::NAME_CHARS)?;
        }
        if names.as_ref().is_some_and(|names| names.len() > 200) {
            return Err(Problem::invalid(format!("{field}: at most 200")));
        }
    }
    if let Some(mcp) = &new.mcp {
        let text = serde_json::to_string(mcp).map_err(Problem::internal)?;
        bounds::event_data(&text).map_err(|error| Problem::invalid(format!("mcp: {}", error.detail)))?;
    }
    chosen::check(new)?;
    bounds::labels(&new.labels)?;
    bounds::env(&new.env)?;
    protected::paths("protected", &new.protected)?;
    if let Some(resources) = &new.resources {
        check_resources(resources)?;
    }
    if let Some(limits) = &new.limits {
        limits.check("limits")?;
    }
    if let Some(policy) = &new.policy {
        policy.check("policy")?;
    }
    if let Some(guardian) = &new.guardian {
        guardian.check("guardian")?;
    }
    if let Some(network) = &new.network {
        crate::app::network::check(network)?;
    }
    new.repo.as_ref().map_or(Ok(()), |repo| check_repo(repo, caller))
}

/// Fills what the request leaves open from the project, then from the configuration.
pub async fn plan_from(work: &mut Work<'_>, mut new: NewSandbox, project: ProjectId, caller: &Caller) -> Result<Plan> {
    check(&new, caller)?;
    if !new.modes.is_empty() {
        return Err(Problem::invalid("modes: what a mode means is said in a project's defaults"));
    }
    let row = projects::get(work.tx, project).await?.ok_or_else(|| Problem::not_found("project"))?;
    let mut defaults: NewSandbox =
        serde_json::from_value(row.defaults.into()).map_err(|error| Problem::internal(format!("defaults: {error}")))?;
    let policy = &work.policy;
    let has_repository = new.repo.is_some() || defaults.repo.is_some() || row.repo.is_some();
    let chosen = chosen::choose(&mut new, &mut defaults, &policy.continuous, has_repository);
    let mut env = defaults.env;
    env.extend(new.env);
    let mut labels = defaults.labels;
    labels.extend(new.labels);
    let of_project = defaults.resources.unwrap_or_default().or(policy.resources);
    let resources = new.resources.unwrap_or_default().or(of_project);
    let limits = match (new.limits, defaults.limits) {
        (Some(asked), Some(of_project)) => Some(asked.or(of_project)),
        (asked, of_project) => asked.or(of_project),
    };
    let provider = new.provider.or(defaults.provider).unwrap_or(policy.provider);
    // What holds for all on this machine is no reason to refuse a worker elsewhere.
    let of_all = if provider.is_on_this_machine() { policy.protected.as_slice() } else { &[] };
    let protected = protected::paths("protected", new.protected.iter().chain(&defaults.protected).chain(of_all))?;
    if let Some(continuous) = &chosen.continuous {
        chosen::check_continuous(continuous, provider, has_repository && chosen.deliver != Some(false))?;
    }
    let settings = Settings {
        model: chosen.model.or_else(|| policy.model.clone()),
        mode: chosen.mode,
        approvals: chosen.approvals,
        repo: new.repo.or(defaults.repo).or(row.repo),
        image: new.image.or(defaults.image).or_else(|| policy.image.clone()),
        snapshot: new.snapshot.or(defaults.snapshot).or_else(|| policy.snapshot.clone()),
        env,
        resources: Some(resources),
        isolation: new.isolation.max(defaults.isolation),
        protected,
        network: new.network.or(defaults.network),
        limits,
        policy: ToolPolicy::joined(defaults.policy, new.policy),
        guardian: new.guardian.or(defaults.guardian),
        timeout_s: new.timeout_s.or(defaults.timeout_s),
        tools: chosen.tools,
        denied_tools: chosen.denied_tools,
        enable_subagents: chosen.enable_subagents,
        enable_skills: chosen.enable_skills,
        deliver: chosen.deliver,
        continuous: chosen.continuous,
        system_prompt: chosen.system_prompt,
        mcp: new.mcp.or(defaults.mcp),
        forked_from: None,
        secrets: new.secrets.or(defaults.secrets),
        exposed_secrets: Vec::new(),
    };
    let end = if new.prompt.is_some() { End::WhenDone } else { End::Keep };
    Ok(Plan {
        id: SandboxId::new(),
        project,
        provider,
        agent: new.agent.or(defaults.agent).or_else(|| policy.agent.clone()),
        prompt: new.prompt,
        title: new.title,
        end: new.end.or(defaults.end).unwrap_or(end),
        labels,
        settings,
        actor: caller.actor(),
    })
}

/// Whether a project's defaults make sense: they are a request of their own, less what only one sandbox has.
pub fn check_defaults(defaults: &serde_json::Map<String, serde_json::Value>, caller: &Caller) -> Result<()> {
    let parsed: NewSandbox = serde_json::from_value(defaults.clone().into())
        .map_err(|error| Problem::invalid(format!("defaults: {error}")))?;
    for (field, given) in [
        ("prompt", parsed.prompt.is_some()),
        ("title", parsed.title.is_some()),
        ("session_id", parsed.session_id.is_some()),
        ("project_id", parsed.project_id.is_some()),
    ] {
        if given {
            return Err(Problem::invalid(format!("defaults: `{field}` is not a default")));
        }
    }
    check(&parsed, caller)
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    project: Option<ProjectId>,
    state: Option<SessionState>,
    #[param(minimum = 1, maximum = 200)]
    limit: Option<i64>,
    cursor: Option<String>,
}

/// List sessions, newest first.
#[utoipa::path(get, path = "/sessions", tag = "sessions", params(ListQuery),
    responses((status = 200, body = Page<SessionView>)))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(query): Params<ListQuery>,
) -> Result<axum::Json<Page<SessionView>>> {
    let limit = page_size(query.limit, 50, 200)?;
    let before = cursor::read_id::<SessionId>("sessions", query.cursor.as_deref())?;
    let page = app.read(move |tx| {
        Box::pin(async move {
            let among = access::visible(tx, &caller).await?.among();
            let found = sessions::list(tx, &among, query.project, query.state, before.as_deref(), limit + 1).await?;
            Ok(Page::cut("sessions", found, limit, |row| row.id.to_string()))
        })
    });
    Ok(axum::Json(page.await?.map(SessionView::from)))
}

/// One session.
#[utoipa::path(get, path = "/sessions/{id}", tag = "sessions", params(("id" = SessionId, Path)),
    responses((status = 200, body = SessionView)))]
pub async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SessionId>,
) -> Result<axum::Json<SessionView>> {
    let view = app.read(move |tx| {
        Box::pin(async move {
            access::session(tx, &caller, id, Action::See).await?;
            let row = sessions::get(tx, id).await?.ok_or_else(|| Problem::not_found("session"))?;
            Ok(SessionView { usage: Usage::of(tx, Of::Session(id)).await?, ..row.into() })
        })
    });
    Ok(axum::Json(view.await?))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeSession {
    title: Option<String>,
    state: Option<SessionState>,
}

/// Rename or close a session.
///
/// Closing makes what is queued undeliverable and stops its sandbox.
#[utoipa::path(patch, path = "/sessions/{id}", tag = "sessions", params(("id" = SessionId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeSession, responses((status = 200, body = SessionView)))]
pub async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SessionId>,
    once: Once,
    Body { value, hash }: Body<ChangeSession>,
) -> Result<Answer> {
    if let Some(title) = &value.title {
        bounds::line("title", title, bounds::TITLE_CHARS)?;
    }
    let who = caller.clone();
    app.write_once(&caller, once, hash, move |work| {
        Box::pin(async move {
            access::session(work.tx, &who, id, Action::Work).await?;
            let change = app_sessions::Change { title: value.title, state: value.state };
            Answer::ok(SessionView::from(app_sessions::change(work, id, change, who.actor()).await?))
        })
    })
    .await
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    provider: Option<ProviderKind>,
}

/// Give a session a new sandbox like its last.
#[utoipa::path(post, path = "/sessions/{id}/resume", tag = "sessions", params(("id" = SessionId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = Resume, responses((status = 201, body = SandboxView)))]
pub async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SessionId>,
    once: Once,
    Body { value, hash }: Body<Resume>,
) -> Result<Answer> {
    let (who, public_url) = (caller.clone(), app.public_url.clone());
    app.write_once(&caller, once, hash, move |work| {
        Box::pin(async move {
            access::session(work.tx, &who, id, Action::Work).await?;
            let made = app_sessions::resume(work, id, value.provider, who.actor()).await?;
            Answer::created(SandboxView::made(made, &public_url))
        })
    })
    .await
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    title: Option<String>,
}

/// A new session that goes on from where this one is.
#[utoipa::path(post, path = "/sessions/{id}/fork", tag = "sessions", params(("id" = SessionId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = Fork, responses((status = 201, body = SessionView)))]
pub async fn fork(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SessionId>,
    once: Once,
    Body { value, hash }: Body<Fork>,
) -> Result<Answer> {
    if let Some(title) = &value.title {
        bounds::line("title", title, bounds::TITLE_CHARS)?;
    }
    let who = caller.clone();
    app.write_once(&caller, once, hash, move |work| {
        Box::pin(async move {
            access::session(work.tx, &who, id, Action::Work).await?;
            Answer::created(SessionView::from(
                app_sessions::fork(work, id, SessionId::new(), value.title, who.actor()).await?,
            ))
        })
    })
    .await
}
