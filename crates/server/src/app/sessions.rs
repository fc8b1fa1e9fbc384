//! Sessions: sending, resuming, forking, closing.

use super::create::{self, Made, Plan};
use super::inbox::{self, Draft};
use super::{Work, continuous, lifecycle};
use crate::problem::{Code, Problem, Result};
use atoll_core::event::{NewEvent, Source, kind};
use atoll_core::id::{SandboxId, SessionId};
use atoll_core::lifecycle::Trigger;
use atoll_core::sandbox::{End, ProviderKind, Reason, SandboxState, TurnState};
use atoll_core::session::SessionState;
use atoll_store::messages::Message;
use atoll_store::sandboxes;
use atoll_store::sessions::{self, Session};
use serde_json::json;

pub async fn locked(work: &mut Work<'_>, id: SessionId) -> Result<Session> {
    sessions::lock(work.tx, id).await?.ok_or_else(|| Problem::not_found("session"))
}

/// The settings of the session's newest sandbox, for its next one.
pub async fn plan_like_last(work: &mut Work<'_>, session: &Session, actor: String) -> Result<Plan> {
    let last = match session.last_sandbox_id {
        Some(id) => sandboxes::get(work.tx, id).await?,
        None => None,
    };
    let labels = match &last {
        Some(sandbox) => sandboxes::labels(work.tx, sandbox.id).await?,
        None => Default::default(),
    };
    let mut settings = last.as_ref().map(|sandbox| sandbox.settings.clone()).unwrap_or_default();
    // Its files are those of its branch, not those that its last sandbox began with.
    settings.forked_from = None;
    Ok(Plan {
        id: SandboxId::new(),
        project: session.project_id,
        provider: last.as_ref().map_or(work.policy.provider, |sandbox| sandbox.provider),
        agent: session.agent.clone(),
        prompt: None,
        title: None,
        end: last.as_ref().map_or(End::Keep, |sandbox| sandbox.end),
        labels,
        settings,
        actor,
    })
}

/// What a request for a session's next sandbox says itself.
#[derive(Debug, Clone, Copy)]
pub struct Given {
    pub agent: bool,
    pub model: bool,
    pub repo: bool,
}

/// The rest is as it was in the session's last sandbox: else the agent would not be the one that remembers, or would
/// not find what it did.
pub async fn go_on_like_last(work: &mut Work<'_>, session: &Session, plan: &mut Plan, given: Given) -> Result<()> {
    let Some(last) = session.last_sandbox_id else { return Ok(()) };
    let Some(last) = sandboxes::get(work.tx, last).await? else { return Ok(()) };
    if !given.agent {
        plan.agent = last.agent.or_else(|| plan.agent.take());
    }
    if !given.model && plan.agent == session.agent {
        plan.settings.model = last.settings.model.or_else(|| plan.settings.model.take());
    }
    if !given.repo && plan.provider.is_on_this_machine() {
        plan.settings.repo = last.settings.repo;
    }
    Ok(())
}

/// A message to a session; without a live sandbox it gets a new one like its last.
pub async fn send(work: &mut Work<'_>, id: SessionId, draft: Draft) -> Result<(Message, Option<Made>)> {
    let mut session = locked(work, id).await?;
    if session.state == SessionState::Closed {
        return Err(Problem::new(Code::SessionClosed, "a closed session takes no further messages"));
    }
    let mut made = None;
    if session.sandbox_id.is_none() {
        let actor = draft.sender.clone().unwrap_or_default();
        let plan = plan_like_last(work, &session, actor).await?;
        let next = create::next(work, &mut session, plan).await?;
        create::refuse_unheard(work, &next.sandbox).await?;
        made = Some(next);
    } else if let Some(id) = session.sandbox_id
        && let Some(sandbox) = sandboxes::get(work.tx, id).await?
    {
        create::refuse_unheard(work, &sandbox).await?;
    }
    let message = inbox::queue(work, &mut session, draft).await?;
    Ok((message, made))
}

/// A message to a sandbox: only while it can still reach the agent.
pub async fn send_to_sandbox(work: &mut Work<'_>, id: SandboxId, draft: Draft) -> Result<Message> {
    let (mut session, sandbox) = work.locked(id).await?;
    let refuse = |code, detail: &str| {
        Err(Problem::new(code, detail).with("session_id", session.id.to_string()).with("state", sandbox.state.as_str()))
    };
    match sandbox.state {
        SandboxState::Completing => {
            return refuse(Code::SandboxEnding, "its results are being taken out; send to the session instead");
        }
        SandboxState::Completed | SandboxState::Failed => {
            return refuse(Code::SandboxEnded, "send to the session: it gets a new sandbox");
        }
        SandboxState::Pending | SandboxState::Creating | SandboxState::Running => {}
    }
    create::refuse_unheard(work, &sandbox).await?;
    inbox::queue(work, &mut session, draft).await
}

pub async fn resume(work: &mut Work<'_>, id: SessionId, provider: Option<ProviderKind>, actor: String) -> Result<Made> {
    let mut session = locked(work, id).await?;
    let mut plan = plan_like_last(work, &session, actor).await?;
    plan.provider = provider.unwrap_or(plan.provider);
    create::next(work, &mut session, plan).await
}

/// A new session that goes on from where this one is; both go their own ways.
pub async fn fork(
    work: &mut Work<'_>,
    id: SessionId,
    fork: SessionId,
    title: Option<String>,
    actor: String,
) -> Result<Session> {
    let parent = locked(work, id).await?;
    let session = Session {
        id: fork,
        title: title
            .map(|title| work.redacted(parent.project_id, title))
            .unwrap_or_else(|| format!("{} (fork)", parent.title)),
        branch: None,
        state: SessionState::Open,
        sandbox_id: None,
        // Its first sandbox is made like the parent's last.
        last_sandbox_id: parent.last_sandbox_id,
        forked_from: Some(parent.id),
        cost_micros: 0,
        next_position: 0,
        created_by: Some(actor.clone()),
        created_at: work.now,
        updated_at: work.now,
        ..parent.clone()
    };
    sessions::insert(work.tx, &session).await?;
    if let Some(mut sandbox) = inbox::home(work, &parent).await? {
        let data = json!({ "session_id": parent.id, "fork": session.id });
        let event = NewEvent::system(kind::SESSION_FORKED, work.now, &data).by(Source::User, Some(actor));
        work.log(&mut sandbox, vec![event]).await?;
        sandboxes::update(work.tx, &mut sandbox).await?;
    }
    Ok(session)
}

/// What a person may change of a session.
#[derive(Debug, Clone, Default)]
pub struct Change {
    pub title: Option<String>,
    pub state: Option<SessionState>,
}

pub async fn change(work: &mut Work<'_>, id: SessionId, change: Change, actor: String) -> Result<Session> {
    let mut session = locked(work, id).await?;
    let title = change.title.map(|title| work.redacted(session.project_id, title));
    session.title = title.unwrap_or(session.title);
    session.updated_at = work.now;
    let closing = change.state == Some(SessionState::Closed) && session.state == SessionState::Open;
    let reopening = change.state == Some(SessionState::Open) && session.state == SessionState::Closed;
    if reopening {
        return Err(Problem::new(Code::SessionClosed, "a closed session stays closed; fork it to go on"));
    }
    if closing {
        session.state = SessionState::Closed;
    }
    sessions::update(work.tx, &session).await?;
    let event_type = if closing { kind::SESSION_CLOSED } else { kind::SESSION_CHANGED };
    if let Some(mut sandbox) = inbox::home(work, &session).await? {
        let data = json!({ "session_id": session.id, "title": session.title, "state": session.state });
        let event = NewEvent::system(event_type, work.now, &data).by(Source::User, Some(actor.clone()));
        work.log(&mut sandbox, vec![event]).await?;
        sandboxes::update(work.tx, &mut sandbox).await?;
    }
    if closing {
        inbox::close(work, &session).await?;
        stop_for_closing(work, &mut session, actor).await?;
    }
    Ok(session)
}

async fn stop_for_closing(work: &mut Work<'_>, session: &mut Session, actor: String) -> Result<()> {
    let Some(live) = session.sandbox_id else { return Ok(()) };
    let Some(mut sandbox) = sandboxes::get(work.tx, live).await? else { return Ok(()) };
    if sandbox.state == SandboxState::Completing {
        return Ok(());
    }
    let work_was_done = sandbox.turn_state == TurnState::Done && !continuous::is_live(work.tx, &sandbox).await?;
    let trigger = Trigger::StopTaking { work_was_done };
    let reason = Reason::new("session_closed", "its session was closed");
    lifecycle::apply(work, session, &mut sandbox, trigger, Some(reason), Some(actor)).await?;
    lifecycle::complete_if_left(work, session, &mut sandbox).await
}
