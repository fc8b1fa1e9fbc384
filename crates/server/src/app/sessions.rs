//! Sessions: send to, resume, fork, change and close them.

use super::create::{self, CreatedSandbox};
use super::inbox;
use super::sandbox_plan::plan_from_last;
use super::sandboxes::MAX_REFERENCE_CHARS;
use super::views::{cut_page, load_session_view, load_usage, view_new_sandbox};
use super::{Work, continuous, lifecycle};
use crate::auth::access::{CanList, CanSee, CanWork};
use crate::cursor::decode_id;
use crate::extract::page_size;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::events::{EventData, SessionChanged, SessionForked};
use atoll_api::{ChangeSession, ForkSession, Page, ResumeSession, SessionListQuery};
use atoll_core::bounds;
use atoll_core::event::EventSource;
use atoll_core::id::SessionId;
use atoll_core::lifecycle::Trigger;
use atoll_core::reference::ReferenceTarget;
use atoll_core::sandbox::{ProviderKind, Reason, SandboxState};
use atoll_core::session::SessionState;
use atoll_store::model_usage::UsageScope;
use atoll_store::sandboxes;
use atoll_store::sessions::{self, SessionFilter, SessionRow};

pub async fn lock_session(work: &mut Work<'_>, id: SessionId) -> Result<SessionRow> {
    sessions::lock_session(work.tx, id).await?.ok_or_else(|| Problem::not_found("session"))
}

pub async fn resume_session(
    work: &mut Work<'_>,
    id: SessionId,
    provider: Option<ProviderKind>,
    actor: String,
) -> Result<CreatedSandbox> {
    let mut session = lock_session(work, id).await?;
    let mut plan = plan_from_last(work, &session, actor).await?;
    plan.provider = provider.unwrap_or(plan.provider);
    create::create_next_sandbox(work, &mut session, plan).await
}

/// Creates a session that continues from the current state of another one.
pub async fn fork_session(
    work: &mut Work<'_>,
    id: SessionId,
    fork: SessionId,
    title: Option<String>,
    actor: String,
) -> Result<SessionRow> {
    let parent = lock_session(work, id).await?;
    let session = SessionRow {
        id: fork,
        title: title
            .map(|title| work.redact_text(parent.project_id, title))
            .unwrap_or_else(|| format!("{} (fork)", parent.title)),
        branch: None,
        state: SessionState::Open,
        sandbox_id: None,
        // Its first sandbox gets the settings of the parent's last one.
        last_sandbox_id: parent.last_sandbox_id,
        forked_from: Some(parent.id),
        cost_micros: 0,
        next_position: 0,
        attention: None,
        is_archived: false,
        created_by: Some(actor.clone()),
        created_at: work.now,
        updated_at: work.now,
        ..parent.clone()
    };
    sessions::insert_session(work.tx, &session).await?;
    if let Some(mut sandbox) = inbox::find_log_sandbox(work, &parent).await? {
        let forked = EventData::SessionForked(SessionForked { session_id: parent.id, fork: session.id });
        let event = forked.into_event(work.now).with_source(EventSource::User, Some(actor));
        work.log(&mut sandbox, vec![event]).await?;
        sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    }
    Ok(session)
}

/// A change of a session's title, state or presence in lists.
#[derive(Debug, Clone, Default)]
pub struct SessionChange {
    pub title: Option<String>,
    pub state: Option<SessionState>,
    pub archived: Option<bool>,
}

pub async fn change_session(
    work: &mut Work<'_>,
    id: SessionId,
    change: SessionChange,
    actor: String,
) -> Result<SessionRow> {
    let mut session = lock_session(work, id).await?;
    let title = change.title.map(|title| work.redact_text(session.project_id, title));
    session.title = title.unwrap_or(session.title);
    session.updated_at = work.now;
    if let Some(live) = session.sandbox_id.filter(|_| change.archived == Some(true)) {
        let detail = format!("the session runs in sandbox {live}; stop it first");
        return Err(Problem::new(Code::SessionBusy, detail).with("sandbox_id", live.to_string()));
    }
    session.is_archived = change.archived.unwrap_or(session.is_archived);
    let closing = change.state == Some(SessionState::Closed) && session.state == SessionState::Open;
    let reopening = change.state == Some(SessionState::Open) && session.state == SessionState::Closed;
    if reopening {
        return Err(Problem::new(Code::SessionClosed, "a closed session cannot be reopened; fork it instead")
            .with("session_id", id.to_string()));
    }
    if closing {
        session.state = SessionState::Closed;
    }
    sessions::update_session(work.tx, &session).await?;
    if let Some(mut sandbox) = inbox::find_log_sandbox(work, &session).await? {
        let changed = SessionChanged { session_id: session.id, title: session.title.clone(), state: session.state };
        let data = if closing { EventData::SessionClosed(changed) } else { EventData::SessionChanged(changed) };
        let event = data.into_event(work.now).with_source(EventSource::User, Some(actor.clone()));
        work.log(&mut sandbox, vec![event]).await?;
        sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    }
    if closing {
        inbox::close_inbox(work, &session).await?;
        stop_for_close(work, &mut session, actor).await?;
    }
    Ok(session)
}

async fn stop_for_close(work: &mut Work<'_>, session: &mut SessionRow, actor: String) -> Result<()> {
    let Some(live) = session.sandbox_id else { return Ok(()) };
    let Some(mut sandbox) = sandboxes::find_sandbox(work.tx, live).await? else { return Ok(()) };
    if sandbox.state == SandboxState::Completing {
        return Ok(());
    }
    let work_was_done = sandbox.status.is_turn_done() && !continuous::is_live(work.tx, &sandbox).await?;
    let trigger = Trigger::StopAndExport { work_was_done };
    let reason = Reason::new("session_closed", "the session was closed");
    lifecycle::apply_trigger(work, session, &mut sandbox, trigger, Some(reason), Some(actor)).await?;
    lifecycle::complete_if_worker_left(work, session, &mut sandbox).await
}

pub async fn list_sessions(app: &App, access: CanList, query: SessionListQuery) -> Result<Page<atoll_api::Session>> {
    let limit = page_size(query.limit, 50, 200)?;
    let before = decode_id::<SessionId>("sessions", query.cursor.as_deref())?;
    if let Some(reference) = &query.reference {
        bounds::check_line("reference", reference, MAX_REFERENCE_CHARS)?;
    }
    let filter = SessionFilter {
        visible_projects: access.projects.as_filter(),
        project: query.project,
        state: query.state,
        reference: query.reference.clone(),
        with_archived: query.archived,
    };
    app.read(async move |tx| {
        let rows = sessions::list_sessions(tx, &filter, before.as_deref(), limit + 1).await?;
        let page = cut_page("sessions", rows, limit, |row| row.id.to_string());
        let mut items = Vec::new();
        for row in page.items {
            let is_meant = query.reference.as_deref().is_none_or(|reference| {
                let target = ReferenceTarget { id: &row.id.to_string(), name: None, branch: row.branch.as_deref() };
                target.match_reference(reference).is_some()
            });
            if !is_meant {
                continue;
            }
            items.push(load_session_view(tx, row).await?);
        }
        Ok(Page { items, next_cursor: page.next_cursor })
    })
    .await
}

pub async fn read_session(app: &App, access: CanSee<SessionId>) -> Result<atoll_api::Session> {
    let id = access.id;
    app.read(async move |tx| {
        let row = sessions::find_session(tx, id).await?.ok_or_else(|| Problem::not_found("session"))?;
        let usage = load_usage(tx, UsageScope::Session(id)).await?;
        Ok(atoll_api::Session { usage, ..load_session_view(tx, row).await? })
    })
    .await
}

pub async fn submit_change(
    app: &App,
    access: CanWork<SessionId>,
    key: IdempotencyKey,
    change: ChangeSession,
) -> Result<JsonResponse> {
    let change = SessionChange { title: change.title, state: change.state, archived: change.archived };
    if let Some(title) = &change.title {
        bounds::check_line("title", title, bounds::MAX_TITLE_CHARS)?;
    }
    let (id, actor) = (access.id, access.actor());
    app.write_once(&access.caller, key, async move |work| {
        let row = change_session(work, id, change, actor).await?;
        JsonResponse::ok(load_session_view(work.tx, row).await?)
    })
    .await
}

pub async fn submit_resume(
    app: &App,
    access: CanWork<SessionId>,
    key: IdempotencyKey,
    request: ResumeSession,
) -> Result<JsonResponse> {
    let (id, actor, public_url) = (access.id, access.actor(), app.public_url.clone());
    app.write_once(&access.caller, key, async move |work| {
        let created = resume_session(work, id, request.provider, actor).await?;
        JsonResponse::created(view_new_sandbox(created, &public_url))
    })
    .await
}

pub async fn submit_fork(
    app: &App,
    access: CanWork<SessionId>,
    key: IdempotencyKey,
    request: ForkSession,
) -> Result<JsonResponse> {
    if let Some(title) = &request.title {
        bounds::check_line("title", title, bounds::MAX_TITLE_CHARS)?;
    }
    let (id, actor) = (access.id, access.actor());
    app.write_once(&access.caller, key, async move |work| {
        let fork = fork_session(work, id, SessionId::new(), request.title, actor).await?;
        JsonResponse::created(load_session_view(work.tx, fork).await?)
    })
    .await
}
