//! `/sandboxes`: make, list, look, stop, remove.

use super::Page;
use super::continuous::ContinuousView;
use super::sessions::plan_from;
use super::usage::Usage;
use crate::app::create::{self, Made};
use crate::app::sessions::Given;
use crate::app::{results, sessions as app_sessions};
use crate::auth::{Caller, access};
use crate::cursor;
use crate::extract::{Body, Id, Params, page_size};
use crate::once::{Answer, Once};
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::continuous::Continuous;
use atoll_core::guardian::Guardian;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::limit::Limit;
use atoll_core::mode::ModeSettings;
use atoll_core::policy::ToolPolicy;
use atoll_core::principal::Action;
use atoll_core::sandbox::{
    Activity, AgentLimits, Approvals, End, IsolationTier, Mode, Network, Outcome, ProviderKind, Reason, Repo,
    Resources, Results, SandboxState, Settings, TakeResults,
};
use atoll_core::time::Timestamp;
use atoll_store::model_usage::Of;
use atoll_store::projects::{self, Among};
use atoll_store::sandboxes::{self, Filter, Sandbox};
use atoll_store::sessions as session_rows;
use axum::extract::State;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a new sandbox should be. Everything has a default.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSandbox {
    pub provider: Option<ProviderKind>,
    pub agent: Option<String>,
    pub model: Option<String>,
    /// The session's first message; without one the agent waits.
    pub prompt: Option<String>,
    pub title: Option<String>,
    pub mode: Option<Mode>,
    pub approvals: Option<Approvals>,
    pub end: Option<End>,
    #[serde(default, deserialize_with = "atoll_core::json::object")]
    pub repo: Option<Repo>,
    pub project_id: Option<ProjectId>,
    /// Goes on in this session instead of making one: with its agent, model and branch, unless others are named.
    pub session_id: Option<SessionId>,
    pub image: Option<String>,
    pub snapshot: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "atoll_core::json::object")]
    pub resources: Option<Resources>,
    /// Where less can be had, no sandbox is made; a project's demand can't be lowered.
    pub isolation: Option<IsolationTier>,
    /// Paths of the workspace that the agent must not change, besides those that its project and the server name.
    #[serde(default)]
    pub protected: Vec<String>,
    #[serde(default, deserialize_with = "atoll_core::json::object")]
    pub network: Option<Network>,
    #[serde(default, deserialize_with = "atoll_core::json::object")]
    pub limits: Option<AgentLimits>,
    /// What is decided about tool calls before they run; the rules of its project come first.
    #[serde(default, deserialize_with = "atoll_core::json::object")]
    pub policy: Option<ToolPolicy>,
    #[serde(default, deserialize_with = "atoll_core::json::object")]
    pub guardian: Option<Guardian>,
    #[schema(minimum = 1)]
    pub timeout_s: Option<u32>,
    /// The only tools that the agent has; without it all of its own.
    pub tools: Option<Vec<String>>,
    /// Tools that it has not, beside those that its project and its mode deny.
    #[serde(default)]
    pub denied_tools: Vec<String>,
    pub system_prompt: Option<String>,
    /// Whether the agent may start agents of its own; yes unless it says no.
    pub enable_subagents: Option<bool>,
    pub enable_skills: Option<bool>,
    /// Whether the work is taken out at the end; yes unless it, or its mode, says no.
    pub deliver: Option<bool>,
    /// Works until checks pass.
    #[serde(default, deserialize_with = "atoll_core::json::object")]
    pub continuous: Option<Continuous>,
    /// What a mode means: only among a project's defaults.
    #[serde(default)]
    pub modes: BTreeMap<Mode, ModeSettings>,
    #[schema(value_type = Option<Object>)]
    pub mcp: Option<serde_json::Map<String, serde_json::Value>>,
    pub secrets: Option<Vec<String>>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Cost {
    /// In US dollars.
    pub model: f64,
    pub compute: f64,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Sandbox)]
pub struct SandboxView {
    pub id: SandboxId,
    pub session_id: SessionId,
    pub project_id: ProjectId,
    pub state: SandboxState,
    pub activity: Activity,
    /// The limit that its agent is held back by, until a person raises it.
    pub limit_paused: Option<Limit>,
    pub outcome: Option<Outcome>,
    pub reason: Option<Reason>,
    pub results: Results,
    pub end: End,
    pub provider: ProviderKind,
    pub provider_id: Option<String>,
    pub agent: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub settings: Settings,
    /// Secrets whose values stand in its environment, or in a file of its agent.
    pub exposed_secrets: Vec<String>,
    pub turn: Option<i64>,
    pub first_seq: i64,
    pub last_seq: i64,
    pub last_heartbeat: Option<Timestamp>,
    pub cost: Cost,
    /// Of models; only where one is asked for by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// How far it is, where it works until checks pass; only where one is asked for by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuous: Option<ContinuousView>,
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub state_since: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// Only in the answer that made it, and only where the worker is started by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerStart>,
}

/// How to start the worker of an `external` sandbox.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct WorkerStart {
    /// Shown once. Put it into FILE of the command, readable by nobody else.
    pub token: Option<String>,
    pub command: String,
}

#[allow(clippy::cast_precision_loss, reason = "micro-dollars are far from the limit of f64")]
pub fn dollars(micros: i64) -> f64 {
    micros as f64 / 1e6
}

impl SandboxView {
    pub fn new(row: Sandbox, labels: BTreeMap<String, String>) -> Self {
        let mut settings = row.settings;
        // Values of variables may be secrets; their names are enough to see what was set.
        settings.env.values_mut().for_each(|value| *value = "***".into());
        Self {
            id: row.id,
            session_id: row.session_id,
            project_id: row.project_id,
            state: row.state,
            activity: row.activity,
            limit_paused: row.limit_paused,
            outcome: row.outcome,
            reason: row.reason,
            results: row.results,
            end: row.end,
            provider: row.provider,
            provider_id: row.provider_id,
            agent: row.agent,
            labels,
            exposed_secrets: std::mem::take(&mut settings.exposed_secrets),
            settings,
            turn: row.turn,
            first_seq: row.first_seq,
            last_seq: row.last_seq,
            last_heartbeat: row.last_heartbeat,
            cost: Cost { model: dollars(row.cost_model_micros), compute: dollars(row.cost_compute_micros) },
            usage: None,
            continuous: None,
            created_by: row.created_by,
            created_at: row.created_at,
            updated_at: row.updated_at,
            state_since: row.state_since,
            ended_at: row.ended_at,
            worker: None,
        }
    }

    pub fn made(made: Made, public_url: &str) -> Self {
        let mut view = Self::new(made.sandbox, made.labels);
        view.worker = made.worker.map(|secret| worker_start(&view.id, secret.token.expose_secret(), public_url));
        view
    }
}

pub fn worker_start(id: &SandboxId, token: &str, public_url: &str) -> WorkerStart {
    WorkerStart {
        token: Some(token.to_owned()),
        command: format!("atoll-worker --server {public_url} --sandbox {id} --token-file FILE --spool DIR --stdin"),
    }
}

/// Make a sandbox.
///
/// Answers at once; the work goes on behind it. With `provider: "external"` the answer holds
/// `worker`: how to start the worker by hand, anywhere.
#[utoipa::path(post, path = "/sandboxes", tag = "sandboxes", request_body = NewSandbox,
    params(("Idempotency-Key" = Option<String>, Header)),
    responses((status = 201, body = SandboxView)))]
pub async fn make(
    State(app): State<Arc<App>>,
    caller: Caller,
    once: Once,
    Body { value: new, hash }: Body<NewSandbox>,
) -> Result<Answer> {
    caller.must_not_be_worker()?;
    let new = with_repository(&app, &caller, new).await?;
    let (who, public_url, default_project) = (caller.clone(), app.public_url.clone(), app.default_project);
    app.write_once(&caller, once, hash, move |work| {
        Box::pin(async move {
            let made = match new.session_id {
                None => {
                    let project = new.project_id.unwrap_or(default_project);
                    access::check(work.tx, &who, project, Action::Work, "project").await?;
                    let plan = plan_from(work, new, project, &who).await?;
                    create::first(work, plan).await?
                }
                Some(id) => {
                    access::session(work.tx, &who, id, Action::Work).await?;
                    let mut session = app_sessions::locked(work, id).await?;
                    if new.project_id.is_some_and(|project| project != session.project_id) {
                        return Err(Problem::invalid("project_id: the session belongs to another project"));
                    }
                    let given =
                        Given { agent: new.agent.is_some(), model: new.model.is_some(), repo: new.repo.is_some() };
                    let mut plan = plan_from(work, new, session.project_id, &who).await?;
                    app_sessions::go_on_like_last(work, &session, &mut plan, given).await?;
                    create::next(work, &mut session, plan).await?
                }
            };
            Answer::created(SandboxView::made(made, &public_url))
        })
    })
    .await
}

/// Settles which commit a sandbox on this machine begins at, before anything is made: what can't be
/// had is said here. The rest of the request is checked where it is carried out.
async fn with_repository(app: &App, caller: &Caller, mut new: NewSandbox) -> Result<NewSandbox> {
    let session = new.session_id;
    let (who, project) = (caller.clone(), new.project_id.unwrap_or(app.default_project));
    let project = app
        .read(move |tx| {
            Box::pin(async move {
                match session {
                    Some(id) => {
                        access::session(tx, &who, id, Action::Work).await?;
                        let session = session_rows::get(tx, id).await?;
                        Ok(session.ok_or_else(|| Problem::not_found("session"))?.project_id)
                    }
                    None => {
                        access::check(tx, &who, project, Action::Work, "project").await?;
                        Ok(project)
                    }
                }
            })
        })
        .await?;
    let redactor = app.secrets.redactor(project);
    let project = app.read(move |tx| Box::pin(async move { Ok(projects::get(tx, project).await?) })).await?;
    let defaults = project.as_ref().map(|project| project.defaults.clone()).unwrap_or_default();
    let defaults: NewSandbox = serde_json::from_value(defaults.into()).unwrap_or_default();
    let provider = new.provider.or(defaults.provider).unwrap_or(app.policy.provider);
    if !provider.is_on_this_machine() {
        return Ok(new);
    }
    if new.approvals.or(defaults.approvals).is_none() {
        new.approvals = Some(approvals_in(app, provider).await?);
    }
    if let Some(repo) = &new.repo {
        super::sessions::check_repo(repo, caller)?;
    }
    // A session goes on with what it had, which is settled already.
    if session.is_some() && new.repo.is_none() {
        return Ok(new);
    }
    let repo = new.repo.take().or(defaults.repo).or(project.and_then(|project| project.repo));
    if let Some(repo) = repo {
        let title = new.title.clone().or_else(|| new.prompt.as_deref().map(create::title_of)).unwrap_or_default();
        let title = redactor.redact(&title).unwrap_or(title);
        new.repo = Some(crate::repo::settle(repo, app.policy.branch_prefix.clone(), title).await?);
    }
    Ok(new)
}

/// For a machine to say how well it keeps sandboxes apart.
const TIER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Who is kept apart well enough needs nobody's yes for each command.
async fn approvals_in(app: &App, provider: ProviderKind) -> Result<Approvals> {
    let providers = app.providers()?;
    let asked = tokio::time::timeout(TIER_TIMEOUT, providers.get(provider).isolation());
    Ok(match asked.await.ok().flatten() {
        Some(IsolationTier::Strong) => Approvals::Full,
        Some(IsolationTier::Standard) | None => Approvals::Edits,
    })
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    state: Option<SandboxState>,
    activity: Option<Activity>,
    provider: Option<ProviderKind>,
    project: Option<ProjectId>,
    session: Option<SessionId>,
    /// `key` or `key=value`.
    label: Option<String>,
    #[param(minimum = 1, maximum = 200)]
    limit: Option<i64>,
    cursor: Option<String>,
}

/// List sandboxes, newest first.
#[utoipa::path(get, path = "/sandboxes", tag = "sandboxes", params(ListQuery),
    responses((status = 200, body = Page<SandboxView>)))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(query): Params<ListQuery>,
) -> Result<axum::Json<Page<SandboxView>>> {
    let limit = page_size(query.limit, 50, 200)?;
    let before = cursor::read_id::<SandboxId>("sandboxes", query.cursor.as_deref())?;
    let label = query.label.map(|label| match label.split_once('=') {
        Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
        None => (label, None),
    });
    let filter = Filter {
        among: Among::default(),
        state: query.state,
        activity: query.activity,
        provider: query.provider,
        project: query.project,
        session: query.session,
        label,
    };
    let page = app.read(move |tx| {
        Box::pin(async move {
            let among = access::visible(tx, &caller).await?.among();
            let filter = Filter { among, ..filter };
            let found = sandboxes::list(tx, &filter, before.as_deref(), limit + 1).await?;
            let page = Page::cut("sandboxes", found, limit, |row| row.id.to_string());
            let mut items = Vec::new();
            for row in page.items {
                let labels = sandboxes::labels(tx, row.id).await?;
                items.push(SandboxView::new(row, labels));
            }
            Ok(Page { items, next_cursor: page.next_cursor })
        })
    });
    Ok(axum::Json(page.await?))
}

/// One sandbox.
#[utoipa::path(get, path = "/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = SandboxView)))]
pub async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> Result<axum::Json<SandboxView>> {
    let view = app.read(move |tx| {
        Box::pin(async move {
            access::sandbox_or_its_worker(tx, &caller, id).await?;
            let row = sandboxes::get(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
            let mut view = SandboxView::new(row, sandboxes::labels(tx, id).await?);
            view.usage = Usage::of(tx, Of::Sandbox(id)).await?;
            view.continuous = ContinuousView::of(tx, id, &view.settings).await?;
            Ok(view)
        })
    });
    Ok(axum::Json(view.await?))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    #[serde(default = "take")]
    results: TakeResults,
}

const fn take() -> TakeResults {
    TakeResults::Take
}

/// End a sandbox.
///
/// `take` (the default) takes the results out first; `discard` ends it at once.
#[utoipa::path(post, path = "/sandboxes/{id}/stop", tag = "sandboxes", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = Stop, responses((status = 200, body = SandboxView)))]
pub async fn stop(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    once: Once,
    Body { value, hash }: Body<Stop>,
) -> Result<Answer> {
    super::pause::wake(&app, &caller, id).await?;
    let who = caller.clone();
    app.write_once(&caller, once, hash, move |work| {
        Box::pin(async move {
            access::sandbox(work.tx, &who, id, Action::Work).await?;
            let row = results::stop(work, id, value.results, who.actor()).await?;
            Answer::ok(SandboxView::new(row, sandboxes::labels(work.tx, id).await?))
        })
    })
    .await
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveQuery {
    /// Also when results are not out yet: they are lost.
    #[serde(default)]
    force: bool,
}

/// Remove a sandbox at its provider. Its row, events and blobs stay until retention.
#[utoipa::path(delete, path = "/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxId, Path), RemoveQuery),
    responses((status = 200, body = SandboxView)))]
pub async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(query): Params<RemoveQuery>,
) -> Result<Answer> {
    app.write(move |work| {
        Box::pin(async move {
            access::sandbox(work.tx, &caller, id, Action::Work).await?;
            let row = results::remove(work, id, query.force, caller.actor()).await?;
            Answer::ok(SandboxView::new(row, sandboxes::labels(work.tx, id).await?))
        })
    })
    .await
}

/// A new token for the sandbox's worker; it ends the old one.
#[utoipa::path(post, path = "/sandboxes/{id}/worker-token", tag = "sandboxes", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 201, body = WorkerStart)))]
pub async fn worker_token(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    once: Once,
) -> Result<Answer> {
    let (who, public_url) = (caller.clone(), app.public_url.clone());
    let answer = app
        .write_once(&caller, once, String::new(), move |work| {
            Box::pin(async move {
                access::sandbox(work.tx, &who, id, Action::Work).await?;
                let (_, row) = work.locked(id).await?;
                crate::app::ingest::refuse_drained(&row).map_err(|_| {
                    Problem::new(crate::problem::Code::SandboxEnded, "its worker has nothing left to say")
                })?;
                let secret = create::worker_token(work, id).await?;
                Answer::created(worker_start(&id, secret.token.expose_secret(), &public_url))
            })
        })
        .await?;
    app.tokens.forget();
    Ok(answer)
}
