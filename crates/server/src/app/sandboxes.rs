//! Sandboxes: list, read, fork and snapshot them.

use super::create;
use super::pausing::require_not_paused;
use super::sandbox_plan::plan_from_last;
use super::sessions::{fork_session, lock_session};
use super::targets::{SandboxTarget, find_target};
use super::views::{cut_page, load_progress, load_sandbox_view, load_usage, view_new_sandbox};
use crate::auth::access::{CanList, CanSee, CanWork, ReaderOrWorker};
use crate::cursor::decode_id;
use crate::extract::page_size;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::keyed_locks::run_to_completion;
use crate::problem::{Code, Problem, Result};
use crate::samples::{self, SAMPLE_INTERVAL};
use crate::state::App;
use atoll_api::{ForkSandbox, Page, ResourceQuery, ResourceSeries, SandboxListQuery};
use atoll_core::bounds;
use atoll_core::id::{SandboxId, SessionId};
use atoll_core::provider::capabilities::WorkerHost;
use atoll_core::provider::{CreateSpec, Identity, ProviderId};
use atoll_core::reference::ReferenceTarget;
use atoll_core::sandbox::{EndPolicy, SandboxState};
use atoll_store::model_usage::UsageScope;
use atoll_store::sandboxes::{self, SandboxFilter};
use atoll_store::traces;
use std::sync::Arc;
use std::time::Duration;

const MAX_SERIES_STEP_S: u64 = 3600;
/// As long as a branch name may be.
pub const MAX_REFERENCE_CHARS: usize = 255;

/// Lists the sandboxes of the visible projects, newest first.
pub async fn list_sandboxes(app: &App, access: CanList, query: SandboxListQuery) -> Result<Page<atoll_api::Sandbox>> {
    let limit = page_size(query.limit, 50, 200)?;
    let before = decode_id::<SandboxId>("sandboxes", query.cursor.as_deref())?;
    let label = query.label.map(|label| match label.split_once('=') {
        Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
        None => (label, None),
    });
    if let Some(reference) = &query.reference {
        bounds::check_line("reference", reference, MAX_REFERENCE_CHARS)?;
    }
    let filter = SandboxFilter {
        visible_projects: access.projects.as_filter(),
        state: query.state,
        activity: query.activity,
        provider: query.provider,
        project: query.project,
        session: query.session,
        label,
        reference: query.reference.clone(),
        created_by: query.mine.then(|| access.caller.actor()),
        is_live: query.live,
        with_archived: query.archived,
    };
    app.read(async move |tx| {
        let rows = sandboxes::list_sandboxes(tx, &filter, before.as_deref(), limit + 1).await?;
        let page = cut_page("sandboxes", rows, limit, |row| row.id.to_string());
        let mut items = Vec::new();
        for row in page.items {
            let view = load_sandbox_view(tx, row).await?;
            let is_meant = query.reference.as_deref().is_none_or(|reference| {
                let (id, name) = (view.id.to_string(), view.name.as_deref());
                ReferenceTarget { id: &id, name, branch: view.branch.as_deref() }.match_reference(reference).is_some()
            });
            if is_meant {
                items.push(view);
            }
        }
        Ok(Page { items, next_cursor: page.next_cursor })
    })
    .await
}

pub async fn read_sandbox(app: &App, access: ReaderOrWorker) -> Result<atoll_api::Sandbox> {
    let id = access.sandbox;
    app.read(async move |tx| {
        let row = sandboxes::find_sandbox(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
        let mut view = load_sandbox_view(tx, row).await?;
        view.trace_id = traces::find_trace(tx, id).await?.map(|trace| trace.context.trace.to_string());
        view.usage = load_usage(tx, UsageScope::Sandbox(id)).await?;
        view.continuous = load_progress(tx, id, &view.settings).await?;
        view.services = super::services::load_statuses(tx, id, view.state, &view.settings).await?;
        Ok(view)
    })
    .await
}

/// Forks a sandbox: a new sandbox with its current files, in a fork of its session.
pub async fn fork_sandbox(
    app: Arc<App>,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    request: ForkSandbox,
) -> Result<JsonResponse> {
    if let Some(title) = &request.title {
        bounds::check_line("title", title, bounds::MAX_TITLE_CHARS)?;
    }
    if let Some(prompt) = &request.prompt {
        bounds::check_content("prompt", prompt, bounds::MAX_PROMPT_BYTES)?;
    }
    run_to_completion(async move {
        let _lock = app.sandbox_locks.lock(access.id).await;
        // A fork ends the parent's processes, so a repeated request must not reach the provider.
        match app.find_replay(&access.caller, &key).await? {
            Some(response) => Ok(response),
            None => fork_once(&app, access, key, request).await,
        }
    })
    .await
}

async fn fork_once(
    app: &App,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    request: ForkSandbox,
) -> Result<JsonResponse> {
    let (id, actor) = (access.id, access.actor());
    let SandboxTarget { row, provider, id: parent } = find_target(app, &access).await?;
    match row.state {
        SandboxState::Running | SandboxState::Failed => {}
        SandboxState::Pending | SandboxState::Creating | SandboxState::Completing | SandboxState::Completed => {
            let detail = format!("the sandbox is {}; only a running or failed sandbox can be forked", row.state);
            return Err(Problem::new(Code::IllegalTransition, detail).with("state", row.state.as_str()));
        }
    }
    require_not_paused(&row)?;
    let (child, session, parent_session) = (SandboxId::new(), SessionId::new(), row.session_id);
    let labels = app.read(async move |tx| Ok(sandboxes::list_labels(tx, id).await?)).await?;
    let identity = Identity { deployment: app.deployment.clone(), sandbox: child, session, project: row.project_id };
    let programs =
        if provider.capabilities().runs_agents() { app.agents.programs_for(row.agent.as_deref())? } else { Vec::new() };
    let spec = CreateSpec { identity, labels, settings: row.settings.clone(), source: None, programs, cache: None };
    // Files first: recovery removes files without a row, but a row without files would be wrong.
    let forked = provider.fork(&parent, &spec, &child.to_string()).await?;
    let public_url = app.public_url.clone();
    let stored = app.write_once(&access.caller, key, async move |work| {
        let fork = fork_session(work, parent_session, session, request.title, actor.clone()).await?;
        let mut fork = lock_session(work, fork.id).await?;
        let mut plan = plan_from_last(work, &fork, actor).await?;
        plan.id = child;
        plan.settings.forked_from = Some(id);
        plan.end = request.end.unwrap_or(if request.prompt.is_some() { plan.end } else { EndPolicy::Keep });
        plan.prompt = request.prompt;
        let created = create::create_next_sandbox(work, &mut fork, plan).await?;
        JsonResponse::created(view_new_sandbox(created, &public_url))
    });
    let response = stored.await;
    // On an error or a replay the new files have no row.
    let is_stored = response.as_ref().is_ok_and(|response| response.body["id"] == child.to_string());
    if !is_stored && let Err(error) = provider.destroy(&forked.id).await {
        tracing::warn!(sandbox = %child, %error, "failed to destroy the files of a failed fork");
    }
    response
}

/// Measures a sandbox and returns its series.
pub async fn read_resources(app: &App, access: CanSee<SandboxId>, query: ResourceQuery) -> Result<ResourceSeries> {
    let row = super::targets::load_sandbox(app, &access).await?;
    let step_s = query.step.unwrap_or(SAMPLE_INTERVAL.as_secs());
    if !(SAMPLE_INTERVAL.as_secs()..=MAX_SERIES_STEP_S).contains(&step_s) {
        return Err(Problem::new(Code::BadRequest, "step: a whole number of seconds from 10 to 3600"));
    }
    let provider = app.providers()?.get(row.provider);
    // Where a person runs the worker, there are only the worker's own samples.
    let is_measured = row.state.is_live() && provider.capabilities().worker != WorkerHost::Person;
    let now = match row.provider_id.clone().filter(|_| is_measured) {
        Some(id) => Some(samples::sample_now(app, &*provider, access.id, &ProviderId(id)).await?),
        None => None,
    };
    let items = samples::read_series(app, access.id, query.since, Duration::from_secs(step_s)).await?;
    Ok(ResourceSeries { limits: row.settings.resources, now, step_s, items })
}
